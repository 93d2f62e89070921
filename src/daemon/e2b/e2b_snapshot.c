/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Forks and snapshots as E2B clients know them. A fork is a fork (fork.h), but that these clients are told of each
 * copy; a snapshot is a copy that is kept and does not run, and from which any number is made, also when the sandbox is gone.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "base/str.h"
#include "e2b_internal.h"
#include "egress/policies.h"
#include "sandbox/fork.h"
#include "sandbox/sandbox_flow.h"
#include "store/op.h"

#define FORK_WAIT_MS (15 * 60 * 1000)
#define FORK_TIMEOUT_S 300
#define SNAPSHOT_NAME "snapshotName" /* of ext */
#define NAME_DEFAULT_TAG ":default"

/* ---- finding --------------------------------------------------------------------------------- */

static const char *name_of(const struct sandbox *s) {
        return json_string_value(json_object_get(s->ext, SNAPSHOT_NAME));
}

static bool is_snapshot(const struct sandbox *s) {
        return s && s->state == SANDBOX_SNAPSHOT && !s->fork; /* not before its rows are durable */
}

/* By id, or the newest of that name, which may have its tag. */
struct sandbox *e2b_snapshot(struct app *app, const char *id_or_name) {
        struct sandbox *s = sandbox_find_all(app, id_or_name), *found = NULL;
        char name[SANDBOX_NAME_MAX + sizeof NAME_DEFAULT_TAG];

        if (is_snapshot(s))
                return s;
        if (str_copy(name, sizeof name, id_or_name) < 0)
                return NULL;
        if (str_has_suffix(name, NAME_DEFAULT_TAG))
                name[strlen(name) - strlen(NAME_DEFAULT_TAG)] = '\0';
        for (s = sandbox_oldest(app); s; s = s->next)
                if (is_snapshot(s) && str_eq(name_of(s), name))
                        found = s;
        return found;
}

static json_t *snapshot_json(const struct sandbox *s) {
        json_t *names = json_array();

        if (name_of(s))
                (void) json_array_append_new(names, json_string(name_of(s)));
        return json_pack("{s:s, s:o}", "snapshotID", s->id, "names", names);
}

/* ---- POST /sandboxes/{id}/fork --------------------------------------------------------------- */

static bool failed(struct e2b_wait *w, const struct op *o) {
        if (o && o->state == OP_FAILED)
                api_error(w->r, o->code, "%s", o->message ? o->message : "unknown error");
        else if (!o || o->state == OP_RUNNING)
                api_error(w->r, API_GUEST_TIMEOUT, "this takes longer than expected");
        else
                return false;
        return true;
}

static void fork_done(struct e2b_wait *w, struct op *o) {
        json_t *id, *all;
        size_t i;

        if (failed(w, o))
                return;
        all = json_array();
        json_array_foreach(json_object_get(o->result, "sandboxes"), i, id) {
                const struct sandbox *s = sandbox_find(w->r->app, json_string_value(id));
                json_t *one = s ? json_pack("{s:o}", "sandbox", e2b_sandbox_json(w->r->app, s))
                                : json_pack("{s:{s:i, s:s}}", "error", "code", 404, "message", "the sandbox is gone already");
                (void) json_array_append_new(all, one);
        }
        api_reply(w->r, 201, all);
}

static void start(struct api_req *r, struct sandbox *of, struct fork_params *p, void (*done)(struct e2b_wait *w, struct op *o)) {
        struct error err = ERROR_INIT;
        enum api_code code = API_INTERNAL;
        struct e2b_wait *w = e2b_wait_new(r, FORK_WAIT_MS, done);

        if (!w)
                return;
        p->copy.owner = r->owner;
        if (sandbox_fork(r->app, of, p, e2b_wait_durable, w, &w->op, &code, &err) < 0) {
                api_error_err(r, code, &err);
                e2b_wait_free(w);
        }
}

static void post_fork(struct api_req *r) {
        struct sandbox *s = e2b_sandbox(r);
        struct fork_params p = { .n = 1 };
        struct error err = ERROR_INIT;
        uint64_t n = 1, ttl;

        if (!s || e2b_read_timeout(r, FORK_TIMEOUT_S, &ttl) < 0)
                return;
        if (r->body && json_read_u64(r->body, "count", false, 1, FORK_MAX, &n, &err) < 0)
                return api_error_err(r, API_INVALID_ARGUMENT, &err);
        p.n = (unsigned) n;
        p.copy.ttl_s = (int64_t) ttl;
        start(r, s, &p, fork_done);
}

/* ---- snapshots ------------------------------------------------------------------------------- */

static void snapshot_done(struct e2b_wait *w, struct op *o) {
        if (failed(w, o))
                return;
        const struct sandbox *s = sandbox_find_all(w->r->app, json_string_value(json_object_get(o->result, "snapshot")));
        if (s)
                api_reply(w->r, 201, snapshot_json(s));
        else
                api_error(w->r, API_INTERNAL, "the snapshot is gone already");
}

static void post_snapshot(struct api_req *r) {
        struct sandbox *s = e2b_sandbox(r);
        struct sandbox_rules rules = SANDBOX_RULES_DEFAULT;
        struct fork_params p = { .n = 1, .snapshot = true, .copy.rules = &rules, .copy.own_ext = true };
        struct error err = ERROR_INIT;
        const char *name = NULL;

        if (!s)
                return;
        if (r->body && json_read_str(r->body, "name", false, SANDBOX_NAME_MAX, &name, &err) < 0)
                return api_error_err(r, API_INVALID_ARGUMENT, &err);
        if (name && !sandbox_name_valid(name))
                return api_error_status(r, 400, "name: \"%.80s\" is not 1 to %d of a-z 0-9 . _ -, starting with a letter or digit, and not"
                                        " in the form of an id", name, SANDBOX_NAME_MAX);
        _cleanup_json_ json_t *ext = name ? json_pack("{s:s}", SNAPSHOT_NAME, name) : json_object();
        p.copy.ext = ext;
        p.copy.ttl_s = -1;
        start(r, s, &p, snapshot_done);
}

static void list(struct api_req *r) {
        _cleanup_free_ char *of = NULL, *name = NULL, *after = NULL;
        uint64_t limit = E2B_PAGE_MAX;
        char next[ID_SIZE] = "";
        size_t n = 0;

        if (api_query_str(r, "sandboxID", ID_LEN, &of) < 0 || api_query_str(r, "name", SANDBOX_NAME_MAX, &name) < 0 ||
            api_query_u64(r, "limit", 1, E2B_PAGE_MAX, &limit) < 0 || api_query_str(r, "nextToken", ID_LEN, &after) < 0)
                return;
        const struct sandbox *s = after ? sandbox_find_all(r->app, after) : NULL;
        if (after && !s)
                return api_error_status(r, 400, "nextToken: it is not one that a list gave, or what it stands for was deleted");
        json_t *all = json_array();
        const struct sandbox *last = NULL;
        for (s = s ? s->next : sandbox_oldest(r->app); s; s = s->next) {
                if (!is_snapshot(s) || (of && !str_eq(s->forked_from, of)) || (name && !str_eq(name_of(s), name)))
                        continue;
                if (n == limit) {
                        memcpy(next, last->id, sizeof next);
                        break;
                }
                (void) json_array_append_new(all, snapshot_json(s));
                last = s;
                n++;
        }
        const struct http_header h = { "X-Next-Token", next };
        api_reply_h(r, 200, &h, next[0] ? 1 : 0, all);
}

static void delete_done(struct e2b_wait *w, struct op *o) {
        if (!failed(w, o))
                api_reply_empty(w->r, 204);
}

void e2b_snapshot_delete(struct api_req *r, struct sandbox *s) {
        struct error err = ERROR_INIT;
        struct e2b_wait *w = e2b_wait_new(r, FORK_WAIT_MS, delete_done);

        if (!w)
                return;
        int n = sandbox_delete(r->app, s, "deleted by a client", r->owner, NULL, e2b_wait_durable, w, &w->op, &err);
        if (n < 0) {
                api_error_err(r, api_code_from_errno(n), &err);
                e2b_wait_free(w);
        }
}

/* ---- a sandbox from one ---------------------------------------------------------------------- */

static void create_done(struct e2b_wait *w, struct op *o) {
        if (failed(w, o))
                return;
        const json_t *id = json_array_get(json_object_get(o->result, "sandboxes"), 0);
        const struct sandbox *s = sandbox_find(w->r->app, json_string_value(id));
        if (s)
                api_reply(w->r, 201, e2b_sandbox_json(w->r->app, s));
        else
                api_error(w->r, API_CANCELED, "the sandbox is gone already");
}

void e2b_snapshot_create(struct api_req *r, struct sandbox *snapshot, const struct sandbox_params *p) {
        _cleanup_json_ json_t *none = json_object();
        const json_t *policy = p->policy ? p->policy : policy_of_template(r->app, snapshot->template_ref, snapshot->digest);
        struct fork_params f = {
                .n = 1,
                .copy = { .own_policy = true, .policy = policy, .env = p->env, .metadata = p->metadata ? p->metadata : none,
                          .own_ext = true, .ext = p->ext, .rules = &p->rules, .ttl_s = p->ttl_s },
        };
        start(r, snapshot, &f, create_done);
}

#define E API_FLAG_E2B
const struct api_route e2b_snapshot_routes[] = {
        { "POST", "/sandboxes/{id}/fork", post_fork, API_BODY_JSON, E | API_FLAG_SETTLED },
        { "POST", "/sandboxes/{id}/snapshots", post_snapshot, API_BODY_JSON, E | API_FLAG_SETTLED },
        { "GET", "/snapshots", list, API_BODY_NONE, E },
};
const size_t e2b_snapshot_routes_n = ARRAY_SIZE(e2b_snapshot_routes);
