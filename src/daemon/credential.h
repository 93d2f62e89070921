/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * Credentials: secrets that are written once and never read again through any API. On disk each is sealed with
 * AES-256-GCM (bound to its name) under a key that lies beside the database, in a file that only cspaced's user can read: a
 * copy of the database alone gives nothing away. In memory they stay sealed, and are opened for the moment in which
 * a gateway is configured.
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

struct app;
struct credential;
struct credentials;
struct db_batch;

int credentials_load(struct app *app, struct credentials **ret, struct error *err);
void credentials_free(struct credentials *c);

bool credential_name_valid(const char *s);
const struct credential *credential_find(struct app *app, const char *name);
/* A new one, or another secret for an old one; into memory and into b. -EINVAL, -EAGAIN (CREDENTIALS_MAX). */
int credential_set(struct app *app, const char *name, const char *secret, int64_t expires_ms, struct db_batch *b, struct error *err);
int credential_remove(struct app *app, const char *name, struct db_batch *b); /* -ENOENT */
/* The secret, NUL-terminated; the caller wipes it. -EBADMSG: it was sealed with another key. */
int credential_open(struct app *app, const struct credential *c, char ret[BINDING_SECRET_MAX + 1]);
int64_t credential_expires_ms(const struct credential *c);
/* All, by name, without secrets. */
json_t *credentials_to_json(struct app *app);
json_t *credential_to_json(const struct credential *c);
