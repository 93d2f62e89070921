/* SPDX-License-Identifier: Apache-2.0 */

/* Templates as E2B clients list them: one entry per digest, its names as aliases. */
#include <errno.h>
#include <string.h>

#include "base/json.h"
#include "base/str.h"
#include "e2b_internal.h"
#include "sandbox/sandbox_flow.h"
#include "template/template.h"

static json_t *template_json(struct app *app, const struct tmpl *t) {
        json_t *names = json_array(), *aliases = json_array();
        char alias[TEMPLATE_REF_SIZE];
        int64_t updated = t->created_ms;

        for (const struct tag *tag = tag_next(app, NULL); tag; tag = tag_next(app, tag)) {
                if (tag->tmpl != t || !e2b_alias(tag->ref, alias))
                        continue;
                (void) json_array_append_new(names, json_string(alias));
                (void) json_array_append_new(aliases, json_string(alias));
                if (tag->updated_ms > updated)
                        updated = tag->updated_ms;
        }
        return json_pack("{s:s, s:s, s:s, s:I, s:I, s:I, s:b, s:o, s:o, s:o, s:o, s:n, s:n, s:i, s:i, s:s}",
                         "templateID", t->digest, "buildID", t->digest, "buildStatus", "ready", "cpuCount",
                         (json_int_t) app->conf.cpus, "memoryMB", (json_int_t) app->conf.memory_mb, "diskSizeMB",
                         (json_int_t) (t->disk_bytes >> 20), "public", 1, "aliases", aliases, "names", names,
                         "createdAt", e2b_time(t->created_ms), "updatedAt", e2b_time(updated), "createdBy",
                         "lastSpawnedAt", "spawnCount", (int) t->n_sandboxes, "buildCount", 1, "envdVersion",
                         E2B_ENVD_VERSION);
}

/* Whether an entry before this one in the order of names has the same content. */
static bool listed_before(struct app *app, const struct tag *tag) {
        for (const struct tag *t = tag_next(app, NULL); t != tag; t = tag_next(app, t))
                if (t->tmpl == tag->tmpl)
                        return true;
        return false;
}

static void list(struct api_req *r) {
        json_t *items = json_array();

        for (const struct tag *t = tag_next(r->app, NULL); t; t = tag_next(r->app, t))
                if (!t->tmpl->removing && !listed_before(r->app, t))
                        (void) json_array_append_new(items, template_json(r->app, t->tmpl));
        api_reply(r, 200, items);
}

static struct tmpl *resolve(struct api_req *r) {
        char ref[TEMPLATE_REF_SIZE];
        struct error err = ERROR_INIT;
        struct tmpl *t;

        if (template_resolve(r->app, r->params[0], &t, ref, &err) == 0)
                return t;
        api_error_err(r, API_TEMPLATE_NOT_FOUND, &err);
        return NULL;
}

static void get_alias(struct api_req *r) {
        const struct tmpl *t = resolve(r);

        if (t)
                api_reply(r, 200, json_pack("{s:s, s:b}", "templateID", t->digest, "public", 1));
}

static void get_one(struct api_req *r) {
        const struct tmpl *t = resolve(r);
        json_t *j = t ? template_json(r->app, t) : NULL;

        if (!t)
                return;
        (void) json_object_set_new(
                j, "builds",
                json_pack("[{s:s, s:s, s:o, s:o, s:o, s:I, s:I}]", "buildID", t->digest, "status", "ready", "createdAt",
                          e2b_time(t->created_ms), "updatedAt", e2b_time(t->created_ms), "finishedAt",
                          e2b_time(t->created_ms), "cpuCount", (json_int_t) r->app->conf.cpus, "memoryMB",
                          (json_int_t) r->app->conf.memory_mb));
        api_reply(r, 200, j);
}

static void on_removed(void *arg, int err, const struct error *e) {
        struct api_req *r = arg;

        if (err == -EBUSY)
                api_error_err(r, API_TEMPLATE_IN_USE, e);
        else if (err < 0)
                api_error_err(r, api_code_from_errno(err), e);
        else
                api_reply_empty(r, 204);
        api_req_unref(r);
}

static void delete_one(struct api_req *r) {
        struct sandbox *snapshot = e2b_snapshot(r->app, r->params[0]);
        struct error err = ERROR_INIT;

        if (snapshot && snapshot == sandbox_find_all(r->app, r->params[0])) /* by its id alone */
                return e2b_snapshot_delete(r, snapshot);
        if (!resolve(r))
                return;
        int n = template_remove(r->app, r->params[0], on_removed, api_req_ref(r), &err);
        if (n < 0)
                on_removed(r, n, &err);
}

#define E API_FLAG_E2B
const struct api_route e2b_template_routes[] = {
        { "GET", "/templates/aliases/{alias}", get_alias, API_BODY_NONE, E },
        { "GET", "/templates", list, API_BODY_NONE, E },
        { "GET", "/v2/templates", list, API_BODY_NONE, E },
        { "GET", "/templates/{id}", get_one, API_BODY_NONE, E },
        { "DELETE", "/templates/{id}", delete_one, API_BODY_NONE, E },
};
const size_t e2b_template_routes_n = ARRAY_SIZE(e2b_template_routes);
