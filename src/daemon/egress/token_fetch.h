/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* One token from cspace-token, which cspace-rootd starts. */

#include <stdint.h>

#include "base/error.h"

struct app;
struct credential;
struct token_fetch;

/* cb comes once, never from inside, and ends the fetch; secret is wiped after it. err < 0: no token; -EAGAIN: this host has too many under way. */
typedef void (*token_fetch_cb)(void *arg, int err, const struct error *e, const char *secret, uint64_t seconds);
int token_fetch_start(struct app *app, const struct credential *c, token_fetch_cb cb, void *arg, struct token_fetch **ret,
                      struct error *err);
void token_fetch_free(struct token_fetch *f); /* before cb; no callback then. NULL is fine */
