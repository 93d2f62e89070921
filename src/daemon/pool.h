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

#define POOL_IDLE_PER_GUEST 8      /* idle connections kept to one agent */
#define POOL_IDLE_MAX 512          /* and to all together */
#define POOL_IDLE_MS 20000         /* age at which one is closed; below the agent's own patience */
#define POOL_USERS_PER_GUEST 1000  /* exchanges and calls of one sandbox at one time */
#define POOL_DIAL_TRIES 5          /* while a port refuses or the link has no room */
#define POOL_DIAL_GAP_MS 100       /* before the second try; doubled each time */

struct pool;
struct guest;

/* Embedded in each exchange and call. */
struct pool_user {
        struct guest *guest;
        struct pool_user *prev, *next;
        void (*on_drop)(struct pool_user *u); /* the sandbox is dropped: end and leave, at once */
};

int pool_new(uv_loop_t *loop, const char *run_dir, struct pool **ret, struct error *err);
void pool_free(struct pool *p); /* drops all; NULL is fine */
void pool_drop(struct pool *p, const char *id);
uv_loop_t *pool_loop(struct pool *p);
int pool_sock_path(const struct pool *p, const char *id, char *out, size_t cap);

/* Registers u with sandbox id: 0, -ENOMEM, or -EBUSY at POOL_USERS_PER_GUEST. */
int pool_join(struct pool *p, const char *id, struct pool_user *u);
void pool_leave(struct pool_user *u); /* not joined is fine */
const char *pool_user_id(const struct pool_user *u);

/* An idle connection to the agent, or NULL. */
struct stream *pool_take(struct guest *g);
/* Keeps s (a connection to the agent between two requests) for later, or closes it. */
void pool_give(struct guest *g, struct stream *s);

/* Dials with retries: as dial_open(), but -ECONNREFUSED and -EAGAIN are reported only after
 * POOL_DIAL_TRIES. The caller cancels before it leaves the guest. */
struct pool_dial;
int pool_dial(struct guest *g, uint16_t port, dial_cb cb, void *arg, struct pool_dial **ret);
void pool_dial_cancel(struct pool_dial *d);
