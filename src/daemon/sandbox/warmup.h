/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * What runs in a booted template before it is snapshotted: the programs that agents start first
 * and the agent's own services, so that a restored VM has them in memory.
 */

#include <jansson.h>

#include "base/error.h"

struct app;
struct warmup;

struct warmup_ops {
        void (*on_step)(void *arg, const char *what, unsigned at, unsigned of);
        void (*on_done)(void *arg, int err, const struct error *e);
};
/* id: a booted VM that has got identity with this access token; own: the template's shell commands to
 * run last, an array of strings or NULL. */
int warmup_start(struct app *app, const char *id, const char *token, const json_t *own, const struct warmup_ops *ops,
                 void *arg, struct warmup **ret, struct error *err);
void warmup_cancel(struct warmup *w); /* before on_done only; NULL is fine */
