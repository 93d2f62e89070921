/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * API keys: "e2b_" and 40 hex digits, stored as SHA-256. The form is that of the E2B clients,
 * which check it. A key is valid from when its row is durable and dead from the moment its
 * revocation is asked for: lookups read memory, never a cache.
 */

#include <stdbool.h>
#include <stdint.h>
#include <jansson.h>

#include "base/error.h"
#include "base/id.h"

#define KEY_NAME_MAX 128
#define KEY_TEXT_LEN (4 + 40)
#define KEY_MAX 10000

struct app;
struct db_batch;

struct key {
        char id[ID_SIZE];
        char hash[DIGEST_LEN + 1];
        char name[KEY_NAME_MAX + 1];
        char prefix[13]; /* "e2b_" and 8 digits, to tell keys apart */
        int64_t created_ms;
        int64_t last_used_ms; /* 0: never; of an earlier run of cspaced to KEY_USED_MS */
};

struct keys;
int keys_load(struct app *app, struct keys **ret, struct error *err);
void keys_free(struct keys *k);
size_t keys_count(const struct keys *k);

/* NULL: no such key. Takes the same time whatever is wrong with text. */
const struct key *key_check(struct app *app, const char *text);
const struct key *key_find(struct app *app, const char *id);

/* Makes a key in the transaction b (taken); cb gets it, with the one chance to see its text, when
 * that is durable. */
typedef void (*key_create_cb)(void *arg, int err, const struct error *e, const struct key *k, const char *text);
int key_create(struct app *app, const char *name, struct db_batch *b, key_create_cb cb, void *arg, struct error *err);
/* Dead at return; cb when that is durable. -ENOENT: no such id. */
typedef void (*key_revoke_cb)(void *arg, int err, const struct error *e);
int key_revoke(struct app *app, const char *id, key_revoke_cb cb, void *arg, struct error *err);
json_t *key_to_json(const struct key *k);
json_t *keys_to_json(struct app *app); /* array, oldest first */
