/* SPDX-License-Identifier: Apache-2.0 */

/*
 * The table of templates. Content lives as long as something holds it: a name, a sandbox, a build or
 * a variant under way. When the last of these goes, the row is marked "removing", cspace-rootd
 * removes the files, and the row goes. Content whose row is there but whose files are not (a crash in
 * between) is removed again, which is fine.
 */

#include "template.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "app.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "base/json.h"
#include "base/limits.h"
#include "base/log.h"
#include "base/str.h"
#include "egress/policies.h"
#include "map.h"
#include "sandbox/removal.h"
#include "sandbox/sandbox_flow.h"
#include "sandbox/warm.h"
#include "template_internal.h"
#include "variant.h"

/* ---- references ---------------------------------------------------------------------------- */

int template_ref_parse(const char *ref, char ret[TEMPLATE_REF_SIZE], struct error *err) {
        const char *colon = strchr(ref, ':');
        size_t name_n = colon ? (size_t) (colon - ref) : strnlen(ref, TEMPLATE_REF_SIZE);
        const char *tag = colon ? colon + 1 : TEMPLATE_TAG_DEFAULT;
        size_t tag_n = strnlen(tag, TEMPLATE_REF_SIZE);
        if (!template_name_valid(ref, name_n) || !template_name_valid(tag, tag_n))
                return error_set(err, -EINVAL,
                                 "\"%.140s\" is not a legal template reference: NAME or NAME:TAG, each 1 to %d of a-z 0-9 . _ -",
                                 ref, TEMPLATE_NAME_MAX);
        (void) snprintf(ret, TEMPLATE_REF_SIZE, "%.*s:%s", (int) name_n, ref, tag);
        return 0;
}

int template_ref_make(const char *name, const char *tag, char ret[TEMPLATE_REF_SIZE], struct error *err) {
        char text[2 * TEMPLATE_REF_SIZE];
        int n = snprintf(text, sizeof text, "%s:%s", name, tag);
        if (n < 0 || (size_t) n >= sizeof text || strchr(name, ':'))
                return error_set(err, -EINVAL, "\"%.80s\" is not a legal template name", name);
        return template_ref_parse(text, ret, err);
}

struct tmpl *template_find(struct app *app, const char *digest) {
        return map_get(app->templates->by_digest, digest);
}

static struct tag_entry *find_tag(struct app *app, const char *ref) {
        for (struct tag_entry *t = app->templates->tags; t; t = t->next)
                if (strcmp(t->tag.ref, ref) == 0)
                        return t;
        return NULL;
}

int template_resolve(struct app *app, const char *ref, struct tmpl **ret, char ret_ref[TEMPLATE_REF_SIZE],
                     struct error *err) {
        char full[TEMPLATE_REF_SIZE];
        if (digest_valid(ref)) {
                struct tmpl *t = template_find(app, ref);
                if (!t)
                        return error_set(err, -ENOENT, "template %s does not exist", ref);
                *ret = t;
                ret_ref[0] = 0;
                return 0;
        }
        int r = template_ref_parse(ref, full, err);
        if (r < 0)
                return r;
        const struct tag_entry *e = find_tag(app, full);
        if (!e)
                return error_set(err, -ENOENT, "template \"%s\" does not exist", full);
        *ret = e->tag.tmpl;
        memcpy(ret_ref, full, sizeof full);
        return 0;
}

size_t templates_all(struct app *app, struct tmpl **ret, size_t max) {
        size_t pos = 0, n = 0;
        struct tmpl *t;
        while (n < max && (t = map_next(app->templates->by_digest, &pos)))
                ret[n++] = t;
        return n;
}

const struct tag *tag_next(struct app *app, const struct tag *after) {
        const struct tag_entry *e = after ? (const struct tag_entry *) (const void *) after : NULL;
        e = e ? e->next : app->templates->tags;
        return e ? &e->tag : NULL;
}

/* ---- table --------------------------------------------------------------------------------- */

static struct tmpl *add(struct templates *all, const char *digest, uint64_t disk_bytes, int64_t created_ms) {
        struct tmpl *t = calloc(1, sizeof *t);
        if (!t || str_copy(t->digest, sizeof t->digest, digest) < 0 || map_put(all->by_digest, t->digest, t) < 0) {
                free(t);
                return NULL;
        }
        t->disk_bytes = disk_bytes;
        t->created_ms = created_ms;
        return t;
}

struct tmpl *template_add(struct app *app, const char *digest, uint64_t disk_bytes, struct db_batch *b) {
        struct tmpl *t = template_find(app, digest);
        if (t || map_count(app->templates->by_digest) >= TEMPLATE_MAX)
                return t;
        t = add(app->templates, digest, disk_bytes, clock_real_ms());
        if (t)
                db_batch_add(b, "INSERT INTO templates (digest, created_ms, disk_bytes) VALUES (?, ?, ?)", "sii", t->digest,
                             t->created_ms, (int64_t) t->disk_bytes);
        return t;
}

static int put_tag(struct templates *all, const char *ref, struct tmpl *t, int64_t updated_ms) {
        struct tag_entry *e = calloc(1, sizeof *e);
        if (!e || str_copy(e->tag.ref, sizeof e->tag.ref, ref) < 0) {
                free(e);
                return -ENOMEM;
        }
        struct tag_entry **at = &all->tags;
        while (*at && strcmp((*at)->tag.ref, ref) < 0)
                at = &(*at)->next;
        e->tag.tmpl = t;
        e->tag.updated_ms = updated_ms;
        e->next = *at;
        *at = e;
        t->n_tags++;
        return 0;
}

int template_set_tag(struct app *app, const char *ref, struct tmpl *t, struct db_batch *b, struct tmpl **ret_old) {
        struct tag_entry *e = find_tag(app, ref);
        int64_t now = clock_real_ms();
        struct tmpl *old = NULL;
        if (e) {
                old = e->tag.tmpl;
                old->n_tags--;
                e->tag.tmpl = t;
                e->tag.updated_ms = now;
                t->n_tags++;
        } else if (put_tag(app->templates, ref, t, now) < 0) {
                return -ENOMEM;
        }
        db_batch_add(b, "INSERT OR REPLACE INTO tags (ref, digest, updated_ms) VALUES (?, ?, ?)", "ssi", ref, t->digest, now);
        *ret_old = old != t ? old : NULL;
        return 0;
}

static void drop_tag(struct app *app, struct tag_entry *e, struct db_batch *b) {
        for (struct tag_entry **at = &app->templates->tags; *at; at = &(*at)->next)
                if (*at == e) {
                        *at = e->next;
                        break;
                }
        db_batch_add(b, "DELETE FROM tags WHERE ref = ?", "s", e->tag.ref);
        (void) policy_set_template(app, e->tag.ref, NULL, b);
        e->tag.tmpl->n_tags--;
        free(e);
}

/* ---- removal of content -------------------------------------------------------------------- */

struct removing {
        struct app *app;
        struct tmpl *t;
        template_remove_cb cb; /* NULL: nobody asked */
        void *arg;
};

static void on_row_gone(void *arg, int err, const struct error *e) {
        struct removing *r = arg;
        if (err < 0)
                log_error("a template is gone, but its row is not: %s", e->msg); /* removed again at the next start */
        if (r->cb)
                r->cb(r->arg, err, e);
        free(r);
}

static void on_files_gone(void *arg) {
        struct removing *r = arg;
        struct tmpl *t = r->t;
        struct db_batch *b = db_batch_new();
        variants_forget_all(r->app, t->digest, b);
        db_batch_add(b, "DELETE FROM templates WHERE digest = ?", "s", t->digest);
        (void) policy_set_template(r->app, t->digest, NULL, b);
        log_info("template %s is removed", t->digest);
        for (struct sandbox *s = sandbox_oldest(r->app); s; s = s->next)
                if (s->tmpl == t) /* of the warm pool, on its way out */
                        s->tmpl = NULL;
        (void) map_remove(r->app->templates->by_digest, t->digest);
        json_decref(t->manifest);
        free(t);
        if (db_batch_submit(r->app->db, b, on_row_gone, r) < 0) {
                if (r->cb) {
                        struct error e = ERROR_INIT;
                        r->cb(r->arg, error_set(&e, -ENOBUFS, "could not store the removal"), &e);
                }
                free(r);
        }
}

static void on_marked(void *arg, int err, const struct error *e) {
        struct removing *r = arg;
        if (r->app->stopping) { /* r->t is gone; the next cspaced finds the mark */
                free(r);
                return;
        }
        if (err >= 0 && removal_start(r->app, REMOVAL_TEMPLATE, r->t->digest, on_files_gone, r) >= 0)
                return;
        r->t->removing = false;
        if (err < 0)
                log_error("template %s could not be removed: %s", r->t->digest, e->msg);
        if (r->cb)
                r->cb(r->arg, err < 0 ? err : -ENOMEM, e);
        free(r);
}

/* b: more that belongs into the same transaction (taken). */
static int remove_content(struct app *app, struct tmpl *t, struct db_batch *b, template_remove_cb cb, void *arg) {
        struct removing *r = calloc(1, sizeof *r);
        if (!r) {
                db_batch_free(b);
                return -ENOMEM;
        }
        *r = (struct removing){ .app = app, .t = t, .cb = cb, .arg = arg };
        t->removing = true;
        db_batch_add(b, "UPDATE templates SET removing = 1 WHERE digest = ?", "s", t->digest);
        int rc = db_batch_submit(app->db, b, on_marked, r);
        if (rc < 0) {
                t->removing = false;
                free(r);
        }
        return rc;
}

void template_unused(struct app *app, struct tmpl *t) {
        if (app->stopping || t->removing || t->n_tags > 0 || t->n_sandboxes > 0 || t->pins > 0)
                return;
        (void) remove_content(app, t, db_batch_new(), NULL, NULL);
}

/* Snapshots are no sandboxes to who lists them, and are told apart. */
static unsigned users_of(struct app *app, const struct tmpl *t, bool snapshots) {
        unsigned n = 0;
        for (const struct sandbox *s = sandbox_oldest(app); s; s = s->next)
                n += s->tmpl == t && s->state != SANDBOX_POOLED && (s->state == SANDBOX_SNAPSHOT) == snapshots;
        return n;
}

int template_remove(struct app *app, const char *ref, template_remove_cb cb, void *arg, struct error *err) {
        struct tmpl *t;
        char full[TEMPLATE_REF_SIZE];
        int r = template_resolve(app, ref, &t, full, err);
        if (r < 0)
                return r;
        bool last = !full[0] || t->n_tags == 1;
        unsigned users = users_of(app, t, false), snapshots = users_of(app, t, true);
        if (t->removing)
                return error_set(err, -EALREADY, "template \"%s\" is being removed", ref);
        if (last && (users > 0 || snapshots > 0 || t->pins > 0))
                return error_set(err, -EBUSY, "template \"%s\" is used by %u sandbox%s, %u snapshot%s and %u build%s", ref, users,
                                 users == 1 ? "" : "es", snapshots, str_s(snapshots), t->pins, str_s(t->pins));
        struct db_batch *b = db_batch_new();
        for (struct tag_entry *e = app->templates->tags, *next; e; e = next) {
                next = e->next;
                if (e->tag.tmpl == t && (!full[0] || strcmp(e->tag.ref, full) == 0))
                        drop_tag(app, e, b);
        }
        warm_check(app);
        r = last ? remove_content(app, t, b, cb, arg) : db_batch_submit(app->db, b, cb, arg);
        return r < 0 ? error_errno(err, r, "could not remove template \"%s\"", ref) : 0;
}

int template_tag(struct app *app, const char *ref, struct tmpl *t, template_remove_cb cb, void *arg,
                 struct error *err) {
        char full[TEMPLATE_REF_SIZE];
        struct tmpl *old = NULL;
        int r = template_ref_parse(ref, full, err);
        if (r < 0)
                return r;
        if (t->removing)
                return error_set(err, -EBUSY, "the template is being removed");
        struct db_batch *b = db_batch_new();
        r = template_set_tag(app, full, t, b, &old);
        if (r < 0) {
                db_batch_free(b);
                return error_set(err, r, "out of memory");
        }
        r = db_batch_submit(app->db, b, cb, arg);
        if (old)
                template_unused(app, old);
        warm_check(app);
        return r < 0 ? error_errno(err, r, "could not store the name") : 0;
}

struct template_defaults template_defaults(const struct tmpl *t) {
        const json_t *config = t ? json_object_get(t->manifest, "config") : NULL;
        const json_t *env = json_object_get(config, "env");
        const char *user = json_string_value(json_object_get(config, "user"));
        const char *workdir = json_string_value(json_object_get(config, "workdir"));
        return (struct template_defaults){ .user = user && *user ? user : "user",
                                           .workdir = workdir && workdir[0] == '/' ? workdir : "",
                                           .env = json_is_object(env) ? env : NULL };
}

bool template_snapshot(const struct tmpl *t, uint32_t *ret_memory_mb, uint32_t *ret_cpus) {
        const json_t *snapshot = t ? json_object_get(t->manifest, "snapshot") : NULL;
        uint64_t memory = 0, cpus = 0;
        if (!json_is_object(snapshot) || json_read_u64(snapshot, "memory_mb", true, 1, LIMIT_MEMORY_MAX_MB, &memory, NULL) < 0 ||
            json_read_u64(snapshot, "cpus", true, 1, LIMIT_CPUS_MAX, &cpus, NULL) < 0)
                return false;
        *ret_memory_mb = (uint32_t) memory;
        *ret_cpus = (uint32_t) cpus;
        return true;
}

void template_rules(const struct tmpl *t, struct sandbox_rules *r) {
        const json_t *given = t ? json_object_get(json_object_get(t->manifest, "config"), "rules") : NULL;
        if (json_is_object(given))
                (void) sandbox_rules_read_checkpoints(given, r, NULL);
}

/* ---- load ---------------------------------------------------------------------------------- */

static int load_template(void *arg, struct db_row *row, struct error *err) {
        struct templates *all = arg;
        struct tmpl *t = add(all, db_row_str(row, 0), (uint64_t) db_row_int(row, 2), db_row_int(row, 1));
        if (!t)
                return error_set(err, -EBADMSG, "state.db: a template's row is damaged");
        const char *manifest = db_row_str(row, 3);
        if (manifest)
                (void) json_parse(manifest, strlen(manifest), LIMIT_JSON_BODY, &t->manifest, NULL);
        return 0;
}

static int load_tag(void *arg, struct db_row *row, struct error *err) {
        struct templates *all = arg;
        struct tmpl *t = map_get(all->by_digest, db_row_str(row, 1));
        if (!t || put_tag(all, db_row_str(row, 0), t, db_row_int(row, 2)) < 0)
                return error_set(err, -EBADMSG, "state.db: the row of a template's name is damaged");
        return 0;
}

int templates_load(struct app *app, struct templates **ret, struct error *err) {
        struct templates *all = calloc(1, sizeof *all);
        if (all)
                all->by_digest = map_new();
        if (!all || !all->by_digest) {
                free(all);
                return error_set(err, -ENOMEM, "out of memory");
        }
        *ret = all;
        struct db_conn *c = db_conn_of(app->db);
        int r = db_query(c, load_template, all, err, "SELECT digest, created_ms, disk_bytes, manifest FROM templates", "");
        if (r >= 0)
                r = db_query(c, load_tag, all, err, "SELECT ref, digest, updated_ms FROM tags", "");
        return r;
}

void templates_free(struct templates *all) {
        if (!all)
                return;
        template_builds_free(all);
        while (all->tags) {
                struct tag_entry *e = all->tags;
                all->tags = e->next;
                free(e);
        }
        size_t pos = 0;
        struct tmpl *t;
        while ((t = map_next(all->by_digest, &pos))) {
                json_decref(t->manifest);
                free(t);
        }
        map_free(all->by_digest);
        free(all);
}

void templates_collect(struct app *app) {
        size_t pos = 0;
        struct tmpl *t;
        while ((t = map_next(app->templates->by_digest, &pos)))
                template_unused(app, t);
}

/* ---- JSON ---------------------------------------------------------------------------------- */

json_t *template_to_json(struct app *app, const struct tmpl *t, bool full) {
        char created[RFC3339_SIZE];
        clock_rfc3339(t->created_ms, created);
        json_t *names = json_array();
        for (const struct tag_entry *e = app->templates->tags; e; e = e->next)
                if (e->tag.tmpl == t)
                        (void) json_array_append_new(names, json_string(e->tag.ref));
        unsigned users = users_of(app, t, false) + users_of(app, t, true);
        json_t *j = json_pack("{s:s, s:o, s:s, s:I, s:I, s:o}", "digest", t->digest, "names", names, "created_at", created,
                              "disk_mb", (json_int_t) (t->disk_bytes >> 20), "sandboxes", (json_int_t) users, "variants",
                              variants_to_json(app, t->digest));
        (void) json_object_set_new(j, "state", json_string(template_building(app, t) ? "building" : "ready"));
        const char *agent = template_agent(app, t);
        if (agent)
                (void) json_object_set_new(j, "agent", json_string(agent));
        json_t *source = json_object_get(t->manifest, "source"), *snapshot = json_object_get(t->manifest, "snapshot");
        if (source)
                (void) json_object_set(j, "source", source);
        if (snapshot)
                (void) json_object_set(j, "snapshot", snapshot);
        if (j && full && t->manifest)
                (void) json_object_set(j, "manifest", t->manifest);
        return j;
}
