/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* The connection to one cspace-warden (ctl.sock). What it says is not trusted beyond its own
 * sandbox. */

#include <jansson.h>

#include "ipc/ipc.h"
#include "ipc/messages.h"

struct app;
struct warden;

struct warden_handler {
        void (*on_event)(void *arg, const struct ipc_warden_event *e);
        void (*on_close)(void *arg, int err); /* after outstanding calls got err; owner frees */
};
int warden_connect(struct app *app, const char *sandbox_id, const struct warden_handler *h, void *arg,
                   struct warden **ret, struct error *err);
void warden_set_handler(struct warden *w, const struct warden_handler *h, void *arg);
void warden_free(struct warden *w); /* no callback after this; NULL is fine */
int warden_call(struct warden *w, uint16_t type, const void *body, size_t n, unsigned timeout_ms,
                ipc_reply_cb cb, void *arg, struct error *err);
/* With a descriptor, which stays the caller's. */
int warden_call_fd(struct warden *w, uint16_t type, int fd, unsigned timeout_ms, ipc_reply_cb cb, void *arg,
                   struct error *err);
