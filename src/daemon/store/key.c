/* SPDX-License-Identifier: Apache-2.0 */

#include "key.h"

#include <errno.h>
#include <openssl/sha.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "app.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "base/str.h"
#include "db.h"
#include "map.h"

#define KEY_PREFIX "e2b_"
#define KEY_TEXT_MAX 512 /* of what a client sends as a key */

#define KEY_USED_MS 60000 /* how often the use of a key is written down */

struct entry {
        struct key key;
        int64_t written_ms; /* when its use was */
        struct entry *next;
};

struct keys {
        struct map *by_hash;
        struct entry *first, **end; /* by creation */
};

static void hash_text(const char *text, size_t n, char out[DIGEST_LEN + 1]) {
        uint8_t md[SHA256_DIGEST_LENGTH];
        (void) SHA256((const uint8_t *) text, n, md);
        str_hex(md, sizeof md, out);
}

static int add(struct keys *k, const struct key *key) {
        struct entry *e = calloc(1, sizeof *e);
        if (!e)
                return -ENOMEM;
        e->key = *key;
        int r = map_put(k->by_hash, e->key.hash, e);
        if (r < 0) {
                free(e);
                return r;
        }
        *k->end = e;
        k->end = &e->next;
        return 0;
}

static int load_row(void *arg, struct db_row *row, struct error *err) {
        struct key key = { .created_ms = db_row_int(row, 4), .last_used_ms = db_row_int(row, 5) };
        if (str_copy(key.id, sizeof key.id, db_row_str(row, 0)) < 0 ||
            str_copy(key.hash, sizeof key.hash, db_row_str(row, 1)) < 0 ||
            str_copy(key.name, sizeof key.name, db_row_str(row, 2)) < 0 ||
            str_copy(key.prefix, sizeof key.prefix, db_row_str(row, 3)) < 0)
                return error_set(err, -EBADMSG, "state.db: an API key's row is damaged");
        int r = add(arg, &key);
        return r < 0 ? error_errno(err, r, "could not load API keys") : 0;
}

int keys_load(struct app *app, struct keys **ret, struct error *err) {
        struct keys *k = calloc(1, sizeof *k);
        if (k)
                k->by_hash = map_new();
        if (!k || !k->by_hash) {
                free(k);
                return error_set(err, -ENOMEM, "out of memory");
        }
        k->end = &k->first;
        int r = db_query(db_conn_of(app->db), load_row, k, err,
                         "SELECT id, hash, name, prefix, created_ms, last_used_ms FROM keys ORDER BY created_ms, id", "");
        if (r < 0) {
                keys_free(k);
                return r;
        }
        *ret = k;
        return 0;
}

void keys_free(struct keys *k) {
        if (!k)
                return;
        while (k->first) {
                struct entry *e = k->first;
                k->first = e->next;
                free(e);
        }
        map_free(k->by_hash);
        free(k);
}

size_t keys_count(const struct keys *k) {
        return map_count(k->by_hash);
}

/* Not waited for: the request goes on whether this is stored or not. */
static void note_use(struct app *app, struct entry *e) {
        int64_t now = clock_real_ms(), since = now - e->written_ms;
        e->key.last_used_ms = now;
        if (since >= 0 && since < KEY_USED_MS)
                return;
        e->written_ms = now;
        struct db_batch *b = db_batch_new();
        db_batch_add(b, "UPDATE keys SET last_used_ms = ? WHERE id = ?", "is", now, e->key.id);
        (void) db_batch_submit(app->db, b, NULL, NULL);
}

const struct key *key_check(struct app *app, const char *text) {
        char hash[DIGEST_LEN + 1];
        size_t n = strnlen(text, KEY_TEXT_MAX + 1);
        if (n > KEY_TEXT_MAX)
                return NULL;
        /* What is looked up and compared is a hash: its timing tells nothing about any key. */
        hash_text(text, n, hash);
        struct entry *e = map_get(app->keys->by_hash, hash);
        if (!e || !mem_eq_ct(e->key.hash, hash, DIGEST_LEN))
                return NULL;
        note_use(app, e);
        return &e->key;
}

static struct entry **find_slot(struct keys *k, const char *id) {
        for (struct entry **at = &k->first; *at; at = &(*at)->next)
                if (strcmp((*at)->key.id, id) == 0)
                        return at;
        return NULL;
}

const struct key *key_find(struct app *app, const char *id) {
        struct entry **at = find_slot(app->keys, id);
        return at ? &(*at)->key : NULL;
}

/* ---- create -------------------------------------------------------------------------------- */

struct creation {
        struct app *app;
        struct key key;
        char text[KEY_TEXT_LEN + 1];
        key_create_cb cb;
        void *arg;
};

static void on_created(void *arg, int err, const struct error *e) {
        struct creation *c = arg;
        struct error own = ERROR_INIT;
        if (err >= 0) {
                err = add(c->app->keys, &c->key);
                if (err < 0) {
                        (void) error_errno(&own, err, "could not add the key");
                        e = &own;
                }
        }
        c->cb(c->arg, err < 0 ? err : 0, e, err < 0 ? NULL : &c->key, err < 0 ? NULL : c->text);
        explicit_bzero(c->text, sizeof c->text);
        free(c);
}

int key_create(struct app *app, const char *name, struct db_batch *b, key_create_cb cb, void *arg,
               struct error *err) {
        struct creation *c = calloc(1, sizeof *c);
        uint8_t raw[20];
        if (!c || !b || random_bytes(raw, sizeof raw) < 0 || id_new(c->key.id) < 0) {
                free(c);
                db_batch_free(b);
                return error_set(err, -ENOMEM, "could not make a key");
        }
        c->app = app;
        c->cb = cb;
        c->arg = arg;
        memcpy(c->text, KEY_PREFIX, sizeof KEY_PREFIX);
        str_hex(raw, sizeof raw, c->text + sizeof KEY_PREFIX - 1);
        hash_text(c->text, KEY_TEXT_LEN, c->key.hash);
        memcpy(c->key.prefix, c->text, sizeof c->key.prefix - 1);
        (void) str_copy(c->key.name, sizeof c->key.name, name);
        c->key.created_ms = clock_real_ms();
        db_batch_add(b, "INSERT INTO keys (id, hash, name, prefix, created_ms) VALUES (?, ?, ?, ?, ?)", "ssssi",
                     c->key.id, c->key.hash, c->key.name, c->key.prefix, c->key.created_ms);
        int r = db_batch_submit(app->db, b, on_created, c);
        if (r < 0) {
                explicit_bzero(c->text, sizeof c->text);
                free(c);
                return error_errno(err, r, "could not store the key");
        }
        return 0;
}

/* ---- revoke -------------------------------------------------------------------------------- */

int key_revoke(struct app *app, const char *id, key_revoke_cb cb, void *arg, struct error *err) {
        struct keys *k = app->keys;
        struct entry **at = find_slot(k, id);
        if (!at)
                return error_set(err, -ENOENT, "API key \"%s\" does not exist", id);
        struct db_batch *b = db_batch_new();
        db_batch_add(b, "DELETE FROM keys WHERE id = ?", "s", id);
        int r = db_batch_submit(app->db, b, cb, arg);
        if (r < 0)
                return error_errno(err, r, "could not revoke the key");
        struct entry *e = *at;
        *at = e->next;
        if (k->end == &e->next)
                k->end = at;
        (void) map_remove(k->by_hash, e->key.hash);
        free(e);
        return 0;
}

/* ---- JSON ---------------------------------------------------------------------------------- */

json_t *key_to_json(const struct key *k) {
        char created[RFC3339_SIZE], used[RFC3339_SIZE];
        clock_rfc3339(k->created_ms, created);
        clock_rfc3339(k->last_used_ms, used);
        return json_pack("{s:s, s:s, s:s, s:s, s:s?}", "id", k->id, "name", k->name, "prefix", k->prefix, "created_at",
                         created, "last_used_at", k->last_used_ms ? used : NULL);
}

json_t *keys_to_json(struct app *app) {
        json_t *a = json_array();
        for (const struct entry *e = app->keys->first; e; e = e->next)
                (void) json_array_append_new(a, key_to_json(&e->key));
        return a;
}
