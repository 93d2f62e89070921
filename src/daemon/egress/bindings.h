/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * Bindings as cspaced keeps them: JSON of policy/binding.h, with the variable of the guest's environment ("env") that has the
 * placeholder. They lie with the sandbox's policy (egress.h).
 */

#include <stdbool.h>
#include <stdint.h>
#include <jansson.h>

#include "base/buf.h"
#include "base/error.h"

struct app;

/* What a caller gave becomes a binding: id and placeholder are added, without "inject" it is a bearer token. -ENOENT: no such
 * credential. */
int binding_make(struct app *app, const json_t *given, json_t **ret, struct error *err);
/* Whether the list can be given to a gateway; and with this secret for one credential. */
int bindings_check(const json_t *list, struct error *err);
int bindings_check_secret(const json_t *list, const char *credential, const char *secret, struct error *err);
/* As the gateway takes it; NULL: no memory. */
json_t *bindings_for_gateway(const json_t *list);
/* Appends "secrets" of all that the list names, as a JSON object. Those that cannot be opened are left out: what needs them is
 * refused. The caller wipes out. */
int bindings_write_secrets(struct app *app, const json_t *list, struct buf *out);
/* A gateway has been given the list: tokens that its credentials have not yet are got (provider.h). */
void bindings_want_tokens(struct app *app, const json_t *list);
bool bindings_name(const json_t *list, const char *credential);
/* Placeholders, by variable, for those that `env` does not have. */
int bindings_add_env(const json_t *list, json_t *env);
/* n more uses of one; false: there is none of that id. */
bool bindings_count_use(json_t *list, const char *id, uint64_t n);
