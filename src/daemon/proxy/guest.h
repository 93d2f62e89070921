/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * Connections into sandboxes, and who uses them. A guest is what the proxy knows of one sandbox:
 * idle keep-alive connections to its agent, and the users (exchanges, calls) that must be told
 * when the sandbox is dropped. Internal to the proxy.
 */

#include <stdbool.h>
#include <stdint.h>
#include <uv.h>

#include "base/id.h"
#include "dial.h"
#include "io/stream.h"

#define GUEST_IDLE_EACH 8      /* idle connections kept to one agent */
#define GUEST_IDLE_MAX 512     /* and to all together */
#define GUEST_IDLE_MS 20000    /* age at which one is closed; below the agent's own patience */
#define GUEST_USERS_MAX 1000   /* exchanges and calls of one sandbox at one time */
#define GUEST_DIAL_TRIES 5     /* while a port refuses or the link has no room */
#define GUEST_DIAL_GAP_MS 100  /* before the second try; doubled each time */

struct guests;
struct guest;

/* Embedded in each exchange and call. */
struct guest_user {
        struct guest *guest;
        struct guest_user *prev, *next;
        void (*on_drop)(struct guest_user *u); /* the sandbox is dropped: end and leave, at once */
        bool own; /* the daemon's own request, which is no use of the sandbox */
};

int guests_new(uv_loop_t *loop, const char *run_dir, struct guests **ret, struct error *err);
void guests_free(struct guests *all); /* drops all; NULL is fine */
void guests_drop(struct guests *all, const char *id);
uv_loop_t *guests_loop(struct guests *all);
int guests_sock_path(const struct guests *all, const char *id, char *out, size_t cap);

/* Registers u with sandbox id: 0, -ENOMEM, or -EBUSY at GUEST_USERS_MAX. */
int guest_join(struct guests *all, const char *id, struct guest_user *u);
void guest_leave(struct guest_user *u); /* not joined is fine */
/* Whether somebody else than the daemon itself uses it. */
bool guests_busy(const struct guests *all, const char *id);
/* Told when such a use has ended. */
void guests_on_end(struct guests *all, void (*fn)(void *arg, const char *id), void *arg);
const char *guest_user_id(const struct guest_user *u);

/* An idle connection to the agent, or NULL. */
struct stream *guest_take(struct guest *g);
/* Keeps s (a connection to the agent between two requests) for later, or closes it. */
void guest_give(struct guest *g, struct stream *s);

/* Dials with retries: as dial_open(), but -ECONNREFUSED and -EAGAIN are reported only after
 * GUEST_DIAL_TRIES. The caller cancels before it leaves the guest. */
struct guest_dial;
int guest_dial(struct guest *g, uint16_t port, dial_cb cb, void *arg, struct guest_dial **ret);
void guest_dial_cancel(struct guest_dial *d);
