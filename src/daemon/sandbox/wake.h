/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* Requests that came to a sandbox which is not running and whose rules say that a request wakes it. */

#include "api/api.h"

struct sandbox;

/* Whether s is one of these, or on its way down or up. */
bool wake_wanted(const struct sandbox *s);
/* Wakes it, if that is not under way, and calls the route's handler again when it runs; answers r otherwise. */
void wake_request(struct api_req *r, struct sandbox *s);
/* The same for sandbox traffic: again(app, x) is called, or the exchange is refused. */
void wake_traffic(struct app *app, struct http_x *x, struct sandbox *s, bool (*again)(struct app *app, struct http_x *x));
