/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * The way to a command session: a stream to the agent, and on it GET .../attach with an upgrade to the frames of wire/attach.h.
 */

#include <stddef.h>
#include <stdint.h>

#include "base/error.h"

struct app;
struct stream;
struct agent_attach;

/* One of them comes, once and later, and ends the agent_attach. */
struct agent_attach_ops {
        void (*upgraded)(void *arg, struct stream *s); /* s is the callee's */
        /* The agent answered something else; body is borrowed, and cut where it is long. */
        void (*refused)(void *arg, int status, const char *body, size_t n);
        /* No answer. err as of dial_cb; -ECONNRESET: the stream was lost on the way; -ENOMEM. */
        void (*lost)(void *arg, int err, const char *why);
};

/* process: a legal id; offset: the first byte of its output that is wanted; token: the agent's. ops must outlive it. */
int agent_attach_start(struct app *app, const char *id, const char *process, uint64_t offset, const char *token,
                       const struct agent_attach_ops *ops, void *arg, struct agent_attach **ret, struct error *err);
void agent_attach_cancel(struct agent_attach *a); /* before any of ops; NULL is fine */
