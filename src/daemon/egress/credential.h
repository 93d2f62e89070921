/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * Credentials: secrets that are written once and never read again through any API. On disk each is sealed with
 * AES-256-GCM (bound to its name) under a key that lies beside the database, in a file that only cspaced's user can read: a
 * copy of the database alone gives nothing away. In memory they stay sealed, and are opened for the moment in which
 * a gateway is configured.
 *
 * A credential has a provider. With "static" the secret is what gateways get. With "oauth2" it is what a token is got with, with
 * "command" there is none; gateways get the token (provider.h).
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <jansson.h>

#include "base/error.h"
#include "policy/binding.h"

#define CREDENTIALS_MAX 1000
#define CREDENTIAL_NAME_MAX BINDING_ID_MAX
#define CREDENTIAL_KEY_FILE "credential.key"
#define CREDENTIAL_KEY_BYTES 32

enum credential_provider { CREDENTIAL_STATIC, CREDENTIAL_OAUTH2, CREDENTIAL_COMMAND, N_CREDENTIAL_PROVIDERS };

struct app;
struct credential;
struct credentials;
struct db_batch;
struct provider;

int credentials_load(struct app *app, struct credentials **ret, struct error *err);
void credentials_free(struct credentials *c);

bool credential_name_valid(const char *s);
/* What a credential is to be. Borrowed. */
struct credential_spec {
        enum credential_provider provider;
        const char *secret;     /* NULL: that of before, where the provider is the same; none with COMMAND */
        int64_t expires_ms;     /* STATIC; 0: never */
        const json_t *settings; /* object of strings; NULL with STATIC */
};

const struct credential *credential_find(struct app *app, const char *name);
/* Another one, or another secret for an old one; into memory and into b. -EINVAL, -EAGAIN (CREDENTIALS_MAX). A token that
 * it had, and what is under way to get one, are dropped if the settings are other ones. */
int credential_set(struct app *app, const char *name, const struct credential_spec *spec, struct db_batch *b, struct error *err);
int credential_remove(struct app *app, const char *name, struct db_batch *b); /* -ENOENT */
/* What a gateway gets, NUL-terminated; the caller wipes it. -EBADMSG: it was sealed with another key. -ENOENT: there is no
 * token now. */
int credential_open(struct app *app, const struct credential *c, char ret[BINDING_SECRET_MAX + 1]);
int64_t credential_expires_ms(const struct credential *c); /* of that; 0: never */
/* What it was given. */
int credential_open_own(struct app *app, const struct credential *c, char ret[BINDING_SECRET_MAX + 1]);
const char *credential_name(const struct credential *c);
enum credential_provider credential_provider(const struct credential *c);
int credential_provider_of(const char *name, enum credential_provider *ret); /* -EINVAL */
const json_t *credential_settings(const struct credential *c); /* NULL with STATIC */

/* For provider.c: its own state beside each. */
struct credential *credential_find_own(struct app *app, const char *name);
struct credential *credential_next(struct app *app, size_t *pos); /* all, as map_next() */
struct provider *credential_runtime(const struct credential *c);
void credential_set_runtime(struct credential *c, struct provider *p);
int credential_set_token(struct app *app, struct credential *c, const char *token, int64_t expires_ms);
void credentials_stop(struct app *app); /* no more tokens: who waits for one is told so */

/* All, by name, without secrets. */
json_t *credentials_to_json(struct app *app);
json_t *credential_to_json(const struct credential *c);
