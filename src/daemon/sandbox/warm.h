/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * The warm pool: for each template of the configuration's [pool] some sandboxes that are placed and
 * restored but have no identity yet. A create that asks for exactly that (template, default size)
 * takes one; the pool fills up again in the background, one VM at a time.
 */

#include <jansson.h>

#include "base/error.h"
#include "sandbox.h"

struct app;
struct warden;
struct warm;

int warm_new(struct app *app, struct warm **ret, struct error *err);
void warm_free(struct warm *w);

/* Takes a ready one of this content and size: its id (its struct is gone from the table) and its
 * connection. False: there is none, and ret_id is left as it is. */
bool warm_take(struct app *app, const struct tmpl *t, uint32_t memory_mb, uint32_t cpus, uint64_t disk_bytes,
               char ret_id[ID_SIZE], struct warden **ret);
/* A pooled one is gone or was found after a restart; or the names or variants changed. */
void warm_lost(struct app *app, struct sandbox *s, const char *reason);
void warm_adopt(struct app *app, struct sandbox *s);
void warm_check(struct app *app); /* looks, soon, whether something is to be done */
bool warm_busy(struct app *app, const struct sandbox *s); /* PLACE is under way */
json_t *warm_to_json(struct app *app);
