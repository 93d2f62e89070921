/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * Whether what the rows say of sandboxes has been held against what is on the host (reconcile.h). Right after
 * the start it has not: a host that was started again has rows of VMs that went with it. Requests that tell states, or
 * depend on them (API_FLAG_SETTLED), wait for the first pass, but not for long: cspace-rootd may be away. What a state forbids
 * is then not known to be forbidden, and refused as API_UNAVAILABLE.
 *
 * A sandbox that was found to be lost can be started, forked and so on once its disk is stored. Requests of that kind wait for
 * it, up to STORED_LIMIT_MS.
 */

#include <stdbool.h>

#include "api/api.h"

struct settle;
struct sandbox;

int settle_new(struct app *app, struct settle **ret, struct error *err);
void settle_free(struct settle *s); /* after api_free(); NULL is fine */
bool settle_known(const struct settle *s); /* the first pass is done */
void settle_done(struct settle *s);        /* it is: all that wait for it go on. Later calls do nothing */
/* The disk of one that had failed is stored, or that was given up. NULL settle: cspaced ends, nobody waits. */
void settle_stored(struct settle *s, const struct sandbox *of);
/* Whether r waits for either; fn is called when that is over, unless the client goes before or r was answered. */
bool settle_hold(struct settle *s, struct api_req *r, void (*fn)(struct api_req *r));
