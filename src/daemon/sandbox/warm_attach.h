/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * A command session from attach to end, as a client has it: a line of input, its end, the output taken and acknowledged.
 * For a guest that is being warmed.
 */

#include "base/error.h"

struct app;
struct warm_attach;
/* Called once, later. err 0: the command has ended. */
typedef void (*warm_attach_cb)(void *arg, int err, const struct error *e);

/* process: one that waits to be attached to. timeout_ms is for everything together. */
int warm_attach_start(struct app *app, const char *id, const char *process, const char *token, unsigned timeout_ms,
                      warm_attach_cb cb, void *arg, struct warm_attach **ret, struct error *err);
void warm_attach_cancel(struct warm_attach *a); /* before cb was called; NULL is fine */
