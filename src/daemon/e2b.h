/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* The E2B routes and the routing of sandbox traffic by host name and headers. main.c calls these
 * once, after all of the native API is in place and before it listens. */

#include "base/error.h"

struct app;

/* Sets app->e2b, adds its routes (api_add_routes()) and its router (api_set_router()). */
int e2b_init(struct app *app, struct error *err);
void e2b_free(struct app *app);
