/* SPDX-License-Identifier: Apache-2.0 */

/* The table of sandboxes, their states and their rows. */

#include "sandbox.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "app.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "base/json.h"
#include "base/log.h"
#include "base/str.h"
#include "checkpoint.h"
#include "egress/bindings.h"
#include "egress/egress.h"
#include "map.h"
#include "sandbox_flow.h"

struct sandboxes {
        struct map *by_id;
        struct map *by_name;
        struct sandbox *oldest, *newest; /* sorted by created_ms, id */
};

#define BIT(s) SANDBOX_BIT(SANDBOX_##s)

static const struct {
        const char *name;
        unsigned next; /* legal moves, see the enum */
} states[] = {
        [SANDBOX_POOLED] = { "pooled", BIT(DELETING) },
        [SANDBOX_SNAPSHOT] = { "snapshot", BIT(DELETING) },
        [SANDBOX_CREATING] = { "creating", BIT(RUNNING) | BIT(FAILED) | BIT(DELETING) },
        [SANDBOX_RUNNING] = { "running", BIT(ROLLING_BACK) | BIT(PAUSING) | BIT(SUSPENDING) | BIT(STOPPING) | BIT(FAILED) | BIT(DELETING) },
        [SANDBOX_PAUSING] = { "pausing", BIT(PAUSED) | BIT(RUNNING) | BIT(FAILED) | BIT(DELETING) },
        [SANDBOX_PAUSED] = { "paused", BIT(ROLLING_BACK) | BIT(RESUMING) | BIT(SUSPENDING) | BIT(STOPPING) | BIT(FAILED) | BIT(DELETING) },
        [SANDBOX_RESUMING] = { "resuming", BIT(RUNNING) | BIT(PAUSED) | BIT(FAILED) | BIT(DELETING) },
        [SANDBOX_SUSPENDING] = { "suspending",
                                 BIT(SUSPENDED) | BIT(RUNNING) | BIT(PAUSED) | BIT(FAILED) | BIT(DELETING) },
        [SANDBOX_SUSPENDED] = { "suspended", BIT(RESTORING) | BIT(STOPPING) | BIT(ROLLING_BACK) | BIT(DELETING) },
        [SANDBOX_RESTORING] = { "restoring", BIT(RUNNING) | BIT(SUSPENDED) | BIT(DELETING) },
        [SANDBOX_STOPPING] = { "stopping", BIT(STOPPED) | BIT(FAILED) | BIT(DELETING) },
        [SANDBOX_STOPPED] = { "stopped", BIT(STARTING) | BIT(ROLLING_BACK) | BIT(DELETING) },
        [SANDBOX_STARTING] = { "starting", BIT(RUNNING) | BIT(STOPPED) | BIT(DELETING) },
        [SANDBOX_ROLLING_BACK] = { "rolling_back", BIT(RESTORING) | BIT(STARTING) | BIT(DELETING) },
        [SANDBOX_FAILED] = { "failed", BIT(STARTING) | BIT(ROLLING_BACK) | BIT(DELETING) },
        [SANDBOX_DELETING] = { "deleting", BIT(DELETED) },
        [SANDBOX_DELETED] = { "deleted", 0 },
};
static_assert(ARRAY_SIZE(states) == SANDBOX_STATE_MAX_);

const char *sandbox_state_name(enum sandbox_state s) {
        return s < SANDBOX_STATE_MAX_ ? states[s].name : "?";
}

static int state_from_name(const char *s) {
        for (size_t i = 0; s && i < ARRAY_SIZE(states); i++)
                if (strcmp(states[i].name, s) == 0)
                        return (int) i;
        return -EINVAL;
}

int sandbox_move(struct app *app, struct sandbox *s, enum sandbox_state to) {
        (void) app;
        if (!(states[s->state].next & SANDBOX_BIT(to))) {
                log_error("sandbox %s: refused to go from %s to %s", s->id, states[s->state].name, states[to].name);
                return -EPERM;
        }
        s->state = to;
        return 0;
}

/* ---- life ---------------------------------------------------------------------------------- */

int sandbox_new_token(struct sandbox *s) {
        uint8_t raw[SANDBOX_TOKEN_LEN / 2];
        int r = random_bytes(raw, sizeof raw);
        if (r >= 0)
                str_hex(raw, sizeof raw, s->token);
        return r;
}

struct sandbox *sandbox_alloc(struct app *app) {
        (void) app;
        struct sandbox *s = calloc(1, sizeof *s);
        if (!s || id_new(s->id) < 0 || sandbox_new_token(s) < 0) {
                free(s);
                return NULL;
        }
        s->created_ms = s->active_ms = clock_real_ms();
        s->rules = SANDBOX_RULES_DEFAULT;
        s->metadata = json_object();
        s->env = json_object();
        s->refs = 1;
        return s;
}

struct sandbox *sandbox_ref(struct sandbox *s) {
        s->refs++;
        return s;
}

void sandbox_unref(struct sandbox *s) {
        if (!s || --s->refs > 0)
                return;
        explicit_bzero(s->token, sizeof s->token);
        json_decref(s->metadata);
        json_decref(s->env);
        json_decref(s->ext);
        egress_free(s->egress);
        checkpoints_free(s);
        free(s);
}

static bool before(const struct sandbox *a, const struct sandbox *b) {
        return a->created_ms != b->created_ms ? a->created_ms < b->created_ms : strcmp(a->id, b->id) < 0;
}

int sandbox_insert(struct app *app, struct sandbox *s) {
        struct sandboxes *all = app->sandboxes;
        int r = map_put(all->by_id, s->id, s);
        if (r < 0)
                return r;
        if (s->name[0]) {
                r = map_put(all->by_name, s->name, s);
                if (r < 0) {
                        (void) map_remove(all->by_id, s->id);
                        return r;
                }
        }
        struct sandbox *prev = all->newest;
        while (prev && before(s, prev))
                prev = prev->prev;
        s->prev = prev;
        s->next = prev ? prev->next : all->oldest;
        *(s->prev ? &s->prev->next : &all->oldest) = s;
        *(s->next ? &s->next->prev : &all->newest) = s;
        (void) sandbox_ref(s);
        return 0;
}

void sandbox_take_out(struct app *app, struct sandbox *s) {
        struct sandboxes *all = app->sandboxes;
        if (!map_remove(all->by_id, s->id))
                return;
        if (s->name[0])
                (void) map_remove(all->by_name, s->name);
        *(s->prev ? &s->prev->next : &all->oldest) = s->next;
        *(s->next ? &s->next->prev : &all->newest) = s->prev;
        s->prev = s->next = NULL;
        (void) sandbox_set_template(app, s, NULL);
        sandbox_unref(s);
}

int sandbox_set_template(struct app *app, struct sandbox *s, struct tmpl *t) {
        struct tmpl *old = s->tmpl;
        s->tmpl = t;
        if (t) {
                t->n_sandboxes++;
                memcpy(s->digest, t->digest, sizeof s->digest);
        }
        if (old && --old->n_sandboxes == 0)
                template_unused(app, old);
        return 0;
}

bool sandbox_name_valid(const char *s) {
        size_t n = strlen(s);
        /* What looks like an id would be ambiguous where either may stand. */
        return n >= 1 && n <= SANDBOX_NAME_MAX && template_name_valid(s, n) && !id_valid(s);
}

/* ---- lookup -------------------------------------------------------------------------------- */

static bool visible(const struct sandbox *s) {
        return s && s->state != SANDBOX_POOLED && s->state != SANDBOX_SNAPSHOT && s->state != SANDBOX_DELETED;
}

struct sandbox *sandbox_find_all(struct app *app, const char *id) {
        return map_get(app->sandboxes->by_id, id);
}

struct sandbox *sandbox_find(struct app *app, const char *id) {
        struct sandbox *s = sandbox_find_all(app, id);
        return visible(s) ? s : NULL;
}

struct sandbox *sandbox_find_any(struct app *app, const char *id_or_name) {
        struct sandbox *s = sandbox_find(app, id_or_name);
        if (!s)
                s = map_get(app->sandboxes->by_name, id_or_name);
        return visible(s) ? s : NULL;
}

struct sandbox *sandbox_oldest(struct app *app) {
        return app->sandboxes->oldest;
}

static bool metadata_matches(const struct sandbox *s, const json_t *want) {
        const char *key;
        json_t *value;
        json_object_foreach((json_t *) (uintptr_t) want, key, value) {
                const json_t *have = json_object_get(s->metadata, key);
                if (!have || !json_equal(have, value))
                        return false;
        }
        return true;
}

static bool matches(const struct sandbox *s, const struct sandbox_filter *f) {
        if (!visible(s) || (f->states && !(f->states & SANDBOX_BIT(s->state))))
                return false;
        if (f->digest && strcmp(s->digest, f->digest) != 0)
                return false;
        if (f->template_ref && strcmp(s->template_ref, f->template_ref) != 0)
                return false;
        if (f->started_after_ms && s->started_ms <= f->started_after_ms)
                return false;
        return !f->metadata || metadata_matches(s, f->metadata);
}

/* Cursor: "<created_ms>.<id>" of the last one given. */
static int cursor_parse(const char *cursor, struct sandbox *ret) {
        const char *dot = strchr(cursor, '.');
        char ms[24];
        uint64_t v;
        if (!dot || (size_t) (dot - cursor) >= sizeof ms || !id_valid(dot + 1))
                return -EINVAL;
        memcpy(ms, cursor, (size_t) (dot - cursor));
        ms[dot - cursor] = 0;
        if (str_to_u64(ms, INT64_MAX, &v) < 0)
                return -EINVAL;
        ret->created_ms = (int64_t) v;
        return str_copy(ret->id, sizeof ret->id, dot + 1);
}

int sandbox_list(struct app *app, const struct sandbox_filter *f, const char *cursor, size_t limit,
                 void (*fn)(void *arg, struct sandbox *s), void *arg, char ret_next[SANDBOX_CURSOR_SIZE],
                 struct error *err) {
        struct sandbox from = { .created_ms = 0 };
        bool has_cursor = cursor && cursor[0];
        if (has_cursor && cursor_parse(cursor, &from) < 0)
                return error_set(err, -EINVAL, "the cursor is not one that a list gave");
        const struct sandbox *last = NULL;
        size_t n = 0;
        ret_next[0] = 0;
        for (struct sandbox *s = f->oldest_first ? app->sandboxes->oldest : app->sandboxes->newest; s;
             s = f->oldest_first ? s->next : s->prev) {
                if (has_cursor && !(f->oldest_first ? before(&from, s) : before(s, &from)))
                        continue;
                if (!matches(s, f))
                        continue;
                if (n == limit) {
                        (void) snprintf(ret_next, SANDBOX_CURSOR_SIZE, "%lld.%s", (long long) last->created_ms, last->id);
                        break;
                }
                fn(arg, s);
                last = s;
                n++;
        }
        return 0;
}

size_t sandbox_count(struct app *app, unsigned mask) {
        struct sandbox_filter f = { .states = mask };
        size_t n = 0;
        for (const struct sandbox *s = app->sandboxes->oldest; s; s = s->next)
                n += matches(s, &f);
        return n;
}

/* ---- rows ---------------------------------------------------------------------------------- */

void sandbox_row_insert(const struct sandbox *s, struct db_batch *b) {
        _cleanup_json_ json_t *rules = sandbox_rules_store(&s->rules);
        db_batch_add(b,
                     "INSERT OR REPLACE INTO sandboxes (id, name, state, reason, template_ref, digest, memory_mb, cpus, disk_bytes,"
                     " token, owner, metadata, env, ext, created_ms, started_ms, expires_ms, image, rules, head,"
                     " forked_from) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
                     "ssssssiiissjjjiiisjss", s->id, s->name, sandbox_state_name(s->state), s->reason, s->template_ref, s->digest,
                     (int64_t) s->memory_mb, (int64_t) s->cpus, (int64_t) s->disk_bytes, s->token, s->owner, s->metadata,
                     s->env, s->ext, s->created_ms, s->started_ms, s->expires_ms, s->image, rules, s->head,
                     s->forked_from);
        egress_row_insert(s, b);
}

void sandbox_row_update(const struct sandbox *s, struct db_batch *b) {
        _cleanup_json_ json_t *rules = sandbox_rules_store(&s->rules);
        db_batch_add(b,
                     "UPDATE sandboxes SET name = ?, state = ?, reason = ?, template_ref = ?, owner = ?, metadata = ?,"
                     " env = ?, ext = ?, created_ms = ?, started_ms = ?, expires_ms = ?, image = ?, rules = ?, head = ?, token = ? WHERE id = ?",
                     "sssssjjjiiisjsss", s->name, sandbox_state_name(s->state), s->reason, s->template_ref, s->owner, s->metadata,
                     s->env, s->ext, s->created_ms, s->started_ms, s->expires_ms, s->image, rules, s->head, s->token, s->id);
}

void sandbox_row_delete(const struct sandbox *s, struct db_batch *b) {
        db_batch_add(b, "DELETE FROM sandboxes WHERE id = ?", "s", s->id);
        db_batch_add(b, "DELETE FROM events WHERE sandbox_id = ?", "s", s->id);
        egress_row_delete(s, b);
        db_batch_add(b, "DELETE FROM checkpoints WHERE sandbox_id = ?", "s", s->id);
}

static int load_json(const char *text, json_t **ret) {
        json_t *j = NULL;
        if (!text)
                return 0;
        int r = json_parse(text, strlen(text), LIMIT_JSON_BODY, &j, NULL);
        if (r < 0)
                return r;
        json_decref(*ret);
        *ret = j;
        return 0;
}

static int load_fields(struct sandbox *s, struct db_row *row) {
        int state = state_from_name(db_row_str(row, 2));
        if (state < 0 || str_copy(s->id, sizeof s->id, db_row_str(row, 0)) < 0 ||
            str_copy(s->name, sizeof s->name, db_row_str(row, 1)) < 0 ||
            str_copy(s->reason, sizeof s->reason, db_row_str(row, 3)) < 0 ||
            str_copy(s->template_ref, sizeof s->template_ref, db_row_str(row, 4)) < 0 ||
            str_copy(s->digest, sizeof s->digest, db_row_str(row, 5)) < 0 ||
            str_copy(s->token, sizeof s->token, db_row_str(row, 9)) < 0 ||
            str_copy(s->owner, sizeof s->owner, db_row_str(row, 10)) < 0 ||
            str_copy(s->image, sizeof s->image, db_row_str(row, 17)) < 0 ||
            str_copy(s->head, sizeof s->head, db_row_str(row, 19)) < 0 ||
            str_copy(s->forked_from, sizeof s->forked_from, db_row_str(row, 20)) < 0 ||
            sandbox_rules_load(db_row_str(row, 18), &s->rules) < 0)
                return -EBADMSG;
        s->state = (enum sandbox_state) state;
        s->memory_mb = (uint32_t) db_row_int(row, 6);
        s->cpus = (uint32_t) db_row_int(row, 7);
        s->disk_bytes = (uint64_t) db_row_int(row, 8);
        s->created_ms = db_row_int(row, 14);
        s->started_ms = db_row_int(row, 15);
        s->expires_ms = db_row_int(row, 16);
        if (load_json(db_row_str(row, 11), &s->metadata) < 0 || load_json(db_row_str(row, 12), &s->env) < 0 ||
            load_json(db_row_str(row, 13), &s->ext) < 0)
                return -EBADMSG;
        return 0;
}

static int load_row(void *arg, struct db_row *row, struct error *err) {
        struct app *app = arg;
        struct sandbox *s = sandbox_alloc(app);
        if (!s)
                return error_set(err, -ENOMEM, "out of memory");
        int r = load_fields(s, row);
        if (r >= 0)
                r = sandbox_insert(app, s);
        struct tmpl *t = r >= 0 ? template_find(app, s->digest) : NULL;
        if (t)
                r = sandbox_set_template(app, s, t);
        sandbox_unref(s);
        return r < 0 ? error_errno(err, r, "state.db: a sandbox's row is damaged") : 0;
}

int sandboxes_load(struct app *app, struct sandboxes **ret, struct error *err) {
        struct sandboxes *all = calloc(1, sizeof *all);
        if (all) {
                all->by_id = map_new();
                all->by_name = map_new();
        }
        if (!all || !all->by_id || !all->by_name) {
                sandboxes_free(all);
                return error_set(err, -ENOMEM, "out of memory");
        }
        *ret = all;
        return db_query(db_conn_of(app->db), load_row, app, err,
                        "SELECT id, name, state, reason, template_ref, digest, memory_mb, cpus, disk_bytes, token, owner,"
                        " metadata, env, ext, created_ms, started_ms, expires_ms, image, rules, head,"
                        " forked_from FROM sandboxes ORDER BY created_ms, id",
                        "");
}

void sandboxes_abandon(struct app *app) {
        struct sandboxes *all = app->sandboxes;
        while (all && all->oldest) {
                struct sandbox *s = all->oldest;
                sandbox_unwatch(s);
                egress_stop(s);
                if (s->create)
                        create_abandon(s->create);
                if (s->life)
                        life_abandon(s->life);
                sandbox_take_out(app, s);
        }
}

void sandboxes_free(struct sandboxes *all) {
        if (!all)
                return;
        map_free(all->by_id);
        map_free(all->by_name);
        free(all);
}

/* ---- JSON ---------------------------------------------------------------------------------- */

static json_t *time_json(int64_t ms) {
        char text[RFC3339_SIZE];
        if (!ms)
                return json_null();
        clock_rfc3339(ms, text);
        return json_string(text);
}

static json_t *timing_json(const struct sandbox_timing *t) {
        return json_pack("{s:I, s:I, s:I, s:I, s:I, s:I, s:b}", "total_us", (json_int_t) t->total_us, "place_us",
                         (json_int_t) t->place_us, "spawn_us", (json_int_t) t->spawn_us, "load_us",
                         (json_int_t) t->load_us, "link_us", (json_int_t) t->link_us, "identify_us",
                         (json_int_t) t->identify_us, "warm", t->warm);
}

json_t *sandbox_to_json(const struct sandbox *s, bool full) {
        json_t *j = json_pack("{s:s, s:s?, s:s, s:s?, s:s, s:I, s:I, s:I, s:O, s:o, s:o, s:o}", "id", s->id, "name",
                              s->name[0] ? s->name : NULL, "state", sandbox_state_name(s->state), "template",
                              s->template_ref[0] ? s->template_ref : NULL, "digest", s->digest, "memory_mb",
                              (json_int_t) s->memory_mb, "cpus", (json_int_t) s->cpus, "disk_mb",
                              (json_int_t) (s->disk_bytes >> 20), "metadata", s->metadata, "created_at",
                              time_json(s->created_ms), "started_at", time_json(s->started_ms), "expires_at",
                              time_json(s->expires_ms));
        if (j)
                sandbox_rules_show(&s->rules, j);
        if (j && s->forked_from[0])
                (void) json_object_set_new(j, "forked_from", json_string(s->forked_from));
        if (j && s->state == SANDBOX_FAILED)
                (void) json_object_set_new(j, "reason", json_string(s->reason));
        if (j && s->state == SANDBOX_RUNNING && s->stands)
                (void) json_object_set_new(j, "reason", json_string("it stands still: the host has no room for what it writes to its disk"));
        if (j && full) {
                (void) json_object_set(j, "env", s->env);
                (void) json_object_set_new(j, "egress", egress_to_json(s));
                if (s->timing.total_us)
                        (void) json_object_set_new(j, "timing", timing_json(&s->timing));
        }
        return j;
}

static const char *template_id_of(const struct sandbox *s) {
        const char *given = json_string_value(json_object_get(s->ext, "templateID"));
        return given ? given : s->template_ref[0] ? s->template_ref : s->digest;
}

char *sandbox_identity(struct app *app, const struct sandbox *s) {
        struct template_defaults d = template_defaults(template_find(app, s->digest));
        _cleanup_json_ json_t *env = json_object();
        const char *key;
        json_t *value;
        json_object_foreach ((json_t *) (uintptr_t) d.env, key, value)
                if (json_is_string(value))
                        (void) json_object_set(env, key, value);
        if (json_object_update(env, s->env) < 0 || bindings_add_env(egress_bindings(s), env) < 0)
                return NULL;
        _cleanup_json_ json_t *j =
                json_pack("{s:s, s:s, s:s, s:O, s:s, s:s, s:s, s:s*}", "sandboxId", s->id, "templateId", template_id_of(s),
                          "hostname", s->name[0] ? s->name : s->id, "env", env, "accessToken", s->token, "defaultUser",
                          d.user, "defaultWorkdir", d.workdir, "caCertificate", egress_ca(s));
        return j ? json_to_str(j) : NULL;
}
