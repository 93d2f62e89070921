/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* An answer's body of any size, read on a thread of the pool as fast as the client takes it. */

#include "agent.h"

#define DOWNLOAD_CHUNK (256u * 1024)

struct download_ops {
        /* On a thread: up to cap bytes into out; 0 is the end. */
        ssize_t (*read)(void *ctx, uint8_t *out, size_t cap, struct error *err);
        /* On the loop: the same of what needs no waiting, else -EAGAIN. May be NULL. */
        ssize_t (*read_now)(void *ctx, uint8_t *out, size_t cap);
        void (*release)(void *ctx); /* last call, on the loop */
};

/* x's answer has been started. A failed read breaks the connection off: the client must not take
 * what it has for the whole. */
void download_start(struct agent *a, struct http_x *x, const struct user *as, const struct download_ops *ops,
                    void *ctx);
