/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * Calls of the agent's control service (docs/architecture.md, "Control"): one stream with the
 * authority "control" each, HTTP/1.1, JSON both ways. The answer is the guest's and hostile: it has
 * a limit, must be a JSON object, and nothing but what the caller picks out of it is used.
 */

#include <jansson.h>

#include "link/link.h"

#define CONTROL_ANSWER_MAX (64u * 1024)

struct control_call;

/* err 0 with the answer's object, or a negative errno with its text. */
typedef void (*control_cb)(void *arg, int err, const struct error *e, const json_t *answer);

/* Makes the body just before it is sent, so that a time in it is fresh; a malloc'd string which is wiped
 * and freed. */
typedef char *(*control_body)(void *arg);

struct control_request {
        const char *method, *path;
        const char *authority; /* NULL: "control" */
        control_body body; /* NULL: none */
        unsigned timeout_ms;
        control_cb cb;
        void *arg;
};

/* cb is called once, later; also with -ECANCELED by control_cancel(). */
int control_call(uv_loop_t *loop, struct link *l, const struct control_request *r, struct control_call **ret,
                 struct error *err);
/* Calls cb with err -ECANCELED. NULL is fine. */
void control_cancel(struct control_call *c);
