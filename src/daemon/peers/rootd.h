/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * The connection to cspace-rootd: kept open, made again when lost, with a reconcile pass
 * (reconcile.h) after each connect. While there is none, calls fail at once with -ENOTCONN; how long that is borne:
 * peers/patience.h.
 */

#include <stdbool.h>

#include "ipc/ipc.h"
#include "ipc/messages.h"

struct app;
struct rootd;

int rootd_new(struct app *app, struct rootd **ret, struct error *err);
void rootd_stop(struct rootd *r); /* calls under way get -ECANCELED, later ones -ENOTCONN; NULL is fine */
void rootd_free(struct rootd *r);
bool rootd_connected(const struct rootd *r);
const struct ipc_host_info *rootd_host(const struct rootd *r); /* of the last hello; zeroes before */
const char *rootd_engine(const struct rootd *r);               /* "qemu-tcg"; "" before the first hello */

/* As ipc_conn_call(); on an error return cb is not called. */
int rootd_call(struct rootd *r, uint16_t type, const void *body, size_t n, const int *fds, size_t n_fds,
               unsigned timeout_ms, ipc_reply_cb cb, void *arg, struct error *err);
