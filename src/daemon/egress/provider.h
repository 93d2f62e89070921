/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * Tokens of credentials whose provider is not "static". One is got when a sandbox with a placement has a binding for it,
 * renewed before it expires for as long as that is so, and handed to the gateways of those sandboxes. A token lives in
 * memory alone, sealed as secrets are.
 *
 * IDLE      nobody needs it. A token may still be there. ASKING: provider_want(), provider_fetch()
 * ASKING    cspace-token is under way, or waits for its turn. WAITING, IDLE
 * WAITING   for the time to renew, or after a failure for a pause that grows from 1 s to 5 min. What was got before stays in use
 *           until it expires. ASKING, IDLE
 */

#include <jansson.h>

#include "base/error.h"

struct app;
struct credential;
struct provider;

/*
 * Turns. One provider that hangs must not hold up another's tokens. So a question that takes longer than PROVIDER_TURN_MS makes its
 * credential a slow one, until it is answered faster. Slow ones get half of the places at most; where they have more, having become
 * slow while they were asked, the one asked for longest gives way to others and waits for another turn. Otherwise it goes by
 * who waits for longest. A credential that is not slow thus waits a turn for each PROVIDER_SLOW_MAX before it at most,
 * whatever the providers of the others do.
 */
#define PROVIDER_ASKING_MAX 8        /* at one time; cspace-rootd has places for those too that are just being ended */
#define PROVIDER_SLOW_MAX 4
#define PROVIDER_TURN_MS 5000
#define PROVIDER_PAUSE_MIN_MS 1000
#define PROVIDER_PAUSE_MAX_MS 300000
#define PROVIDER_MARGIN_MAX_MS 600000 /* a token is renewed after 4/5 of its time, but not earlier than this before its end */

/* A gateway needs its token: asked for if there is none. Credentials that have no token are fine too. */
void provider_want(struct app *app, const char *credential);
/* A new one, now; cb (may be NULL) when it is there or cannot be had. -ENOMEM. */
typedef void (*provider_cb)(void *arg, int err, const struct error *e);
int provider_fetch(struct app *app, const char *credential, provider_cb cb, void *arg, struct error *err);
/* {"state","expires_at","reason"}: new reference. */
json_t *provider_to_json(const struct credential *c);

void provider_free(struct provider *p); /* by its credential; who waits is told -ECANCELED */
