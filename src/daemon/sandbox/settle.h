/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * Whether what the rows say of sandboxes has been held against what is on the host (reconcile.h). Right after
 * the start it has not: a host that was started again has rows of VMs that went with it. Requests that tell states
 * (API_FLAG_SETTLED) wait for the first pass, but not for long: cspace-rootd may be away.
 */

#include <stdbool.h>

#include "api/api.h"

struct settle;

int settle_new(struct app *app, struct settle **ret, struct error *err);
void settle_free(struct settle *s); /* after api_free(); NULL is fine */
bool settle_over(const struct settle *s);
/* The first pass is done: all that wait go on. Later calls do nothing. */
void settle_done(struct settle *s);
/* Calls fn when it is over, unless the client goes before. */
void settle_wait(struct settle *s, struct api_req *r, void (*fn)(struct api_req *r));
