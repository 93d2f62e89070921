/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* The E2B routes and the routing of sandbox traffic by host name and headers. main.c calls these
 * once, after all of the native API is in place and before it listens. */

#include <jansson.h>
#include <stdbool.h>

#include "base/error.h"

struct app;

/* Sets app->e2b, adds its routes (api_add_routes()) and its router (api_set_router()). */
int e2b_init(struct app *app, struct error *err);
void e2b_free(struct app *app);

/* What the E2B routes keep of a sandbox, for a fork of it: with a traffic token of its own. own_policy: what it says about the policy
 * is not true of the fork. *ret NULL: nothing is kept. */
int e2b_ext_fork(const json_t *ext, bool own_policy, json_t **ret);
