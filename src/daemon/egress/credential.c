/* SPDX-License-Identifier: Apache-2.0 */

#include "credential.h"

#include <errno.h>
#include <fcntl.h>
#include <openssl/evp.h>
#include <stdlib.h>
#include <string.h>

#include "app.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "base/fd.h"
#include "base/id.h"
#include "base/json.h"
#include "base/limits.h"
#include "base/log.h"
#include "base/str.h"
#include "map.h"
#include "provider.h"
#include "store/db.h"

#define NONCE_BYTES 12 /* NIST SP 800-38D: random, and far fewer than 2^32 under one key */
#define TAG_BYTES 16
#define SEALED_MAX (NONCE_BYTES + TAG_BYTES + BINDING_SECRET_MAX)

struct sealed {
        size_t n;       /* 0: none */
        uint8_t *bytes; /* nonce, tag, ciphertext */
};

struct credential {
        char name[CREDENTIAL_NAME_MAX + 1];
        int64_t created_ms, updated_ms, expires_ms;
        enum credential_provider provider;
        json_t *settings;            /* NULL with STATIC */
        struct sealed secret, token; /* token: not with STATIC */
        int64_t token_expires_ms;
        struct provider *runtime;
};

static const char *const provider_names[N_CREDENTIAL_PROVIDERS] = { "static", "oauth2", "command" };

struct credentials {
        uint8_t key[CREDENTIAL_KEY_BYTES];
        struct map *by_name;
};

/* ---- sealing ------------------------------------------------------------------------------- */

static int aes_gcm(const uint8_t *key, const char *name, bool seal, uint8_t *nonce, uint8_t *tag, const uint8_t *in, size_t n,
                 uint8_t *out) {
        EVP_CIPHER_CTX *c = EVP_CIPHER_CTX_new();
        int len = 0, end = 0;
        bool ok = c && EVP_CipherInit_ex(c, EVP_aes_256_gcm(), NULL, key, nonce, seal) == 1 &&
                  EVP_CipherUpdate(c, NULL, &len, (const uint8_t *) name, (int) strlen(name)) == 1 &&
                  EVP_CipherUpdate(c, out, &len, in, (int) n) == 1 &&
                  (seal || EVP_CIPHER_CTX_ctrl(c, EVP_CTRL_GCM_SET_TAG, TAG_BYTES, tag) == 1) &&
                  EVP_CipherFinal_ex(c, out + len, &end) == 1 &&
                  (!seal || EVP_CIPHER_CTX_ctrl(c, EVP_CTRL_GCM_GET_TAG, TAG_BYTES, tag) == 1);
        EVP_CIPHER_CTX_free(c);
        return ok ? 0 : -EBADMSG;
}

static void sealed_done(struct sealed *s) {
        free(s->bytes);
        *s = (struct sealed){ 0 };
}

static int seal(struct credentials *all, const char *name, const char *secret, struct sealed *ret) {
        size_t n = strlen(secret);
        uint8_t *out = malloc(NONCE_BYTES + TAG_BYTES + n);
        if (!out)
                return -ENOMEM;
        if (random_bytes(out, NONCE_BYTES) < 0 || aes_gcm(all->key, name, true, out, out + NONCE_BYTES, (const uint8_t *) secret, n,
                                                        out + NONCE_BYTES + TAG_BYTES) < 0) {
                free(out);
                return -EIO;
        }
        sealed_done(ret);
        *ret = (struct sealed){ .n = NONCE_BYTES + TAG_BYTES + n, .bytes = out };
        return 0;
}

static int open_sealed(struct app *app, const struct credential *c, const struct sealed *s, char ret[BINDING_SECRET_MAX + 1]) {
        if (s->n == 0) {
                ret[0] = 0;
                return -ENOENT;
        }
        size_t n = s->n - NONCE_BYTES - TAG_BYTES;
        int r = aes_gcm(app->credentials->key, c->name, false, s->bytes, s->bytes + NONCE_BYTES, s->bytes + NONCE_BYTES + TAG_BYTES, n,
                      (uint8_t *) ret);
        ret[r < 0 ? 0 : n] = 0;
        return r;
}

int credential_open_own(struct app *app, const struct credential *c, char ret[BINDING_SECRET_MAX + 1]) {
        return open_sealed(app, c, &c->secret, ret);
}

int credential_open(struct app *app, const struct credential *c, char ret[BINDING_SECRET_MAX + 1]) {
        return open_sealed(app, c, c->provider == CREDENTIAL_STATIC ? &c->secret : &c->token, ret);
}

int credential_set_token(struct app *app, struct credential *c, const char *token, int64_t expires_ms) {
        int r = seal(app->credentials, c->name, token, &c->token);
        if (r >= 0)
                c->token_expires_ms = expires_ms;
        return r;
}

/* ---- table --------------------------------------------------------------------------------- */

bool credential_name_valid(const char *s) {
        static const char allowed[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-";
        size_t n = strlen(s);
        return n >= 1 && n <= CREDENTIAL_NAME_MAX && strspn(s, allowed) == n && s[0] != '.' && s[0] != '-';
}

const struct credential *credential_find(struct app *app, const char *name) {
        return app->credentials ? map_get(app->credentials->by_name, name) : NULL;
}

int64_t credential_expires_ms(const struct credential *c) {
        return c->provider == CREDENTIAL_STATIC ? c->expires_ms : c->token_expires_ms;
}

const char *credential_name(const struct credential *c) {
        return c->name;
}

enum credential_provider credential_provider(const struct credential *c) {
        return c->provider;
}

int credential_provider_of(const char *name, enum credential_provider *ret) {
        for (size_t i = 0; i < N_CREDENTIAL_PROVIDERS; i++)
                if (str_eq(name, provider_names[i])) {
                        *ret = (enum credential_provider) i;
                        return 0;
                }
        return -EINVAL;
}

const json_t *credential_settings(const struct credential *c) {
        return c->settings;
}

struct credential *credential_find_own(struct app *app, const char *name) {
        return app->credentials ? map_get(app->credentials->by_name, name) : NULL;
}

struct credential *credential_next(struct app *app, size_t *pos) {
        return map_next(app->credentials->by_name, pos);
}

struct provider *credential_runtime(const struct credential *c) {
        return c->runtime;
}

void credential_set_runtime(struct credential *c, struct provider *p) {
        c->runtime = p;
}

static void drop_token(struct credential *c) {
        struct provider *p = STEAL(c->runtime);
        sealed_done(&c->token);
        c->token_expires_ms = 0;
        provider_free(p);
}

void credentials_stop(struct app *app) {
        struct credential *c;
        for (size_t pos = 0; app->credentials && (c = credential_next(app, &pos));)
                drop_token(c);
}

static void credential_free(struct credential *c) {
        if (!c)
                return;
        drop_token(c);
        sealed_done(&c->secret);
        json_decref(c->settings);
        free(c);
}

static int check(const char *name, const struct credential_spec *spec, struct error *err) {
        size_t n = spec->secret ? strlen(spec->secret) : 0;
        size_t min = spec->provider == CREDENTIAL_STATIC ? BINDING_SECRET_MIN : 1; /* what gateways look for in answers is the token */
        if (!credential_name_valid(name))
                return error_set(err, -EINVAL, "a credential's name is 1 to %d of A-Z a-z 0-9 . _ -, starting with a letter, a digit or _",
                                 CREDENTIAL_NAME_MAX);
        if (spec->secret && (n < min || n > BINDING_SECRET_MAX))
                return error_set(err, -EINVAL, "a secret has from %zu to %d bytes", min, BINDING_SECRET_MAX);
        return 0;
}

static struct credential *find_or_add(struct credentials *all, const char *name) {
        struct credential *c = map_get(all->by_name, name);
        if (c)
                return c;
        c = calloc(1, sizeof *c);
        if (!c || str_copy(c->name, sizeof c->name, name) < 0 || map_put(all->by_name, c->name, c) < 0) {
                free(c);
                return NULL;
        }
        return c;
}

/* c stays as it is when it fails. */
static int fill(struct credentials *all, struct credential *c, const struct credential_spec *spec, struct error *err) {
        json_t *settings = spec->settings ? json_deep_copy(spec->settings) : NULL;
        bool same = c->provider == spec->provider && c->created_ms;
        if (spec->settings && !settings)
                return error_set(err, -ENOMEM, "out of memory");
        if (!spec->secret && spec->provider != CREDENTIAL_COMMAND && !(same && c->secret.n)) {
                json_decref(settings);
                return error_set(err, -EINVAL, "\"secret\" is missing");
        }
        int r = spec->secret ? seal(all, c->name, spec->secret, &c->secret) : 0;
        if (r < 0) {
                json_decref(settings);
                return error_errno(err, r, "the secret could not be sealed");
        }
        if (!same || !json_equal(settings, c->settings))
                drop_token(c);
        if (spec->provider == CREDENTIAL_COMMAND)
                sealed_done(&c->secret);
        json_decref(c->settings);
        c->settings = settings;
        c->provider = spec->provider;
        c->updated_ms = clock_real_ms();
        c->created_ms = c->created_ms ? c->created_ms : c->updated_ms;
        c->expires_ms = spec->expires_ms;
        return 0;
}

int credential_set(struct app *app, const char *name, const struct credential_spec *spec, struct db_batch *b, struct error *err) {
        struct credentials *all = app->credentials;
        int r = check(name, spec, err);
        if (r < 0)
                return r;
        if (!map_get(all->by_name, name) && map_count(all->by_name) >= CREDENTIALS_MAX)
                return error_set(err, -EAGAIN, "this host has its %d credentials", CREDENTIALS_MAX);
        struct credential *c = find_or_add(all, name);
        if (!c)
                return error_set(err, -ENOMEM, "out of memory");
        r = fill(all, c, spec, err);
        if (r < 0) {
                if (!c->created_ms)
                        credential_free(map_remove(all->by_name, name));
                return r;
        }
        _cleanup_free_ char *text = malloc(base64_encoded_len(c->secret.n) + 1);
        if (!text)
                return error_set(err, -ENOMEM, "out of memory");
        base64_encode(c->secret.bytes, c->secret.n, text);
        db_batch_add(b, "INSERT OR REPLACE INTO credentials (name, sealed, created_ms, updated_ms, expires_ms, provider, settings)"
                     " VALUES (?, ?, ?, ?, ?, ?, ?)",
                     "ssiiisj", c->name, text, c->created_ms, c->updated_ms, c->expires_ms, provider_names[c->provider], c->settings);
        return 0;
}

int credential_remove(struct app *app, const char *name, struct db_batch *b) {
        struct credential *c = map_remove(app->credentials->by_name, name);
        if (!c)
                return -ENOENT;
        db_batch_add(b, "DELETE FROM credentials WHERE name = ?", "s", name);
        credential_free(c);
        return 0;
}

/* ---- telling ------------------------------------------------------------------------------- */

json_t *credential_to_json(const struct credential *c) {
        char created[RFC3339_SIZE], updated[RFC3339_SIZE], expires[RFC3339_SIZE];
        clock_rfc3339(c->created_ms, created);
        clock_rfc3339(c->updated_ms, updated);
        clock_rfc3339(c->expires_ms, expires);
        json_t *j = json_pack("{s:s, s:s, s:s, s:s, s:s?}", "name", c->name, "provider", provider_names[c->provider], "created_at", created,
                              "updated_at", updated, "expires_at", c->expires_ms ? expires : NULL);
        if (j && c->provider != CREDENTIAL_STATIC) {
                (void) json_object_update_missing(j, c->settings);
                (void) json_object_set_new(j, "token", provider_to_json(c));
        }
        return j;
}

static int by_name(const void *a, const void *b) {
        const struct credential *x = *(struct credential *const *) a, *y = *(struct credential *const *) b;
        return strcmp(x->name, y->name);
}

json_t *credentials_to_json(struct app *app) {
        struct credential *all[CREDENTIALS_MAX] = { NULL }, *c;
        size_t pos = 0, n = 0;
        json_t *out = json_array();
        while (n < CREDENTIALS_MAX && (c = map_next(app->credentials->by_name, &pos)))
                all[n++] = c;
        qsort(all, n, sizeof *all, by_name);
        for (size_t i = 0; i < n; i++)
                (void) json_array_append_new(out, credential_to_json(all[i]));
        return out;
}

/* ---- load ---------------------------------------------------------------------------------- */

static int load_key(struct app *app, uint8_t key[CREDENTIAL_KEY_BYTES], struct error *err) {
        char path[CONF_STR_MAX + 32];
        char *text = NULL;
        size_t n = 0;
        int r = conf_data_path(&app->conf, CREDENTIAL_KEY_FILE, path, sizeof path);
        if (r < 0)
                return error_errno(err, r, "the data folder's path is too long");
        r = fd_read_file_at(AT_FDCWD, path, CREDENTIAL_KEY_BYTES, &text, &n, err);
        if (r == -ENOENT) {
                r = random_bytes(key, CREDENTIAL_KEY_BYTES);
                return r < 0 ? r : fd_replace_file_at(AT_FDCWD, path, key, CREDENTIAL_KEY_BYTES, 0600, err);
        }
        if (r >= 0 && n != CREDENTIAL_KEY_BYTES)
                r = error_set(err, -EBADMSG, "\"%s\" is not a key of %d bytes", path, CREDENTIAL_KEY_BYTES);
        if (r >= 0)
                memcpy(key, text, CREDENTIAL_KEY_BYTES);
        if (text)
                explicit_bzero(text, n);
        free(text);
        return r;
}

static int load_settings(struct credential *c, const char *provider, const char *text) {
        if (credential_provider_of(provider ? provider : "", &c->provider) < 0)
                return -EBADMSG;
        if (c->provider == CREDENTIAL_STATIC)
                return 0;
        int r = text ? json_parse(text, strlen(text), LIMIT_JSON_BODY, &c->settings, NULL) : -EBADMSG;
        return r < 0 || !json_is_object(c->settings) ? -EBADMSG : 0;
}

static int load_row(void *arg, struct db_row *row, struct error *err) {
        struct credentials *all = arg;
        const char *name = db_row_str(row, 0), *text = db_row_str(row, 1);
        size_t n = text ? strlen(text) : 0;
        struct credential *c = name && credential_name_valid(name) ? find_or_add(all, name) : NULL;
        if (!c || n > base64_encoded_len(SEALED_MAX) || load_settings(c, db_row_str(row, 5), db_row_str(row, 6)) < 0)
                return error_set(err, -EBADMSG, "state.db: a credential's row is damaged");
        c->created_ms = db_row_int(row, 2);
        c->updated_ms = db_row_int(row, 3);
        c->expires_ms = db_row_int(row, 4);
        if (c->provider == CREDENTIAL_COMMAND)
                return 0;
        c->secret.bytes = malloc(3 * n / 4 + 1);
        ssize_t len = c->secret.bytes ? base64_decode(text, n, c->secret.bytes) : -ENOMEM;
        if (len <= NONCE_BYTES + TAG_BYTES)
                return error_set(err, -EBADMSG, "state.db: a credential's row is damaged");
        c->secret.n = (size_t) len;
        return 0;
}

int credentials_load(struct app *app, struct credentials **ret, struct error *err) {
        struct credentials *all = calloc(1, sizeof *all);
        if (all)
                all->by_name = map_new();
        if (!all || !all->by_name) {
                free(all);
                return error_set(err, -ENOMEM, "out of memory");
        }
        *ret = all;
        int r = load_key(app, all->key, err);
        return r < 0 ? r : db_query(db_conn_of(app->db), load_row, all, err,
                                    "SELECT name, sealed, created_ms, updated_ms, expires_ms, provider, settings FROM credentials", "");
}

void credentials_free(struct credentials *all) {
        if (!all)
                return;
        size_t pos = 0;
        struct credential *c;
        while ((c = map_next(all->by_name, &pos))) {
                (void) map_remove(all->by_name, c->name);
                credential_free(c);
        }
        map_free(all->by_name);
        explicit_bzero(all->key, sizeof all->key);
        free(all);
}
