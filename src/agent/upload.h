/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * A request body of any size, brought to a thread of the pool piece by piece: constant memory, the
 * client held back while the disk is slower. What is done with the bytes is in the ops.
 */

#include "agent.h"

struct upload_ops {
        /* On a thread, one call at a time. */
        int (*consume)(void *ctx, const uint8_t *data, size_t n, struct error *err);
        int (*finish)(void *ctx, struct error *err); /* the body is complete */
        void (*discard)(void *ctx);                  /* it will not be, or a call failed: undo */
        /* On the loop. r: 0, or the negative errno that e tells of. */
        void (*answer)(void *ctx, struct http_x *x, int r, const struct error *e);
        void (*release)(void *ctx); /* last call */
};

/* Sets the ops of x. gunzip: the body is compressed. as: whose rights the thread has (copied). */
void upload_start(struct agent *a, struct http_x *x, const struct user *as, bool gunzip,
                  const struct upload_ops *ops, void *ctx);
