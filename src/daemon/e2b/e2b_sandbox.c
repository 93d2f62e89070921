/* SPDX-License-Identifier: Apache-2.0 */

/*
 * E2B routes that make, find, keep and end sandboxes. These clients know two states, running and
 * paused, which is suspended here (and what one that is paused or stopped is told as): one that is being made is not told of before it runs, one that failed or is being
 * taken apart does not exist for them. Calls are held open until what they ask for is done.
 */
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/json.h"
#include "base/str.h"
#include "e2b_internal.h"
#include "proxy/e2b_query.h"
#include "store/op.h"

#define CREATE_WAIT_MS (15 * 60 * 1000) /* a first use may have to boot and snapshot a variant */
#define DELETE_WAIT_MS 10000
#define TIMEOUT_DEFAULT_V1 15
#define TIMEOUT_DEFAULT_V2 300
#define REFRESH_MAX_S 3600

#define CHANGE_WAIT_MS (5 * 60 * 1000)

#define RUNNING_BIT SANDBOX_BIT(SANDBOX_RUNNING)
#define PAUSED_BITS (SANDBOX_BIT(SANDBOX_PAUSED) | SANDBOX_BIT(SANDBOX_SUSPENDED) | SANDBOX_BIT(SANDBOX_STOPPED))
/* On the way between these two. */
#define CHANGING_BITS                                                                                               \
        (SANDBOX_BIT(SANDBOX_PAUSING) | SANDBOX_BIT(SANDBOX_RESUMING) | SANDBOX_BIT(SANDBOX_SUSPENDING) |             \
         SANDBOX_BIT(SANDBOX_RESTORING) | SANDBOX_BIT(SANDBOX_STOPPING) | SANDBOX_BIT(SANDBOX_STARTING))

void e2b_no_sandbox(struct api_req *r, const char *id) {
        api_error_status(r, 404, "Sandbox \"%.64s\" doesn't exist or you don't have access to it", id);
}

static bool exists(const struct sandbox *s) {
        return s && s->started_ms && (SANDBOX_BIT(s->state) & (RUNNING_BIT | PAUSED_BITS | CHANGING_BITS));
}

struct sandbox *e2b_sandbox(struct api_req *r) {
        struct sandbox *s = sandbox_find(r->app, r->params[0]);

        if (exists(s))
                return s;
        e2b_no_sandbox(r, r->params[0]);
        return NULL;
}

/* A number of seconds; clients may send fractions, which are rounded up. */
static int read_seconds(struct api_req *r, const char *key, uint64_t by_default, uint64_t max, uint64_t *ret) {
        const json_t *v = r->body ? json_object_get(r->body, key) : NULL;

        if (!v || json_is_null(v)) {
                *ret = by_default;
                return 0;
        }
        double s = json_is_number(v) ? ceil(json_number_value(v)) : 0;
        if (!(s >= 1 && s <= (double) max)) {
                api_error_status(r, 400, "%s must be a number of seconds between 1 and %llu", key,
                                 (unsigned long long) max);
                return -EINVAL;
        }
        *ret = (uint64_t) s;
        return 0;
}

static uint64_t timeout_max(const struct app *app) {
        return app->conf.ttl_max_s ? app->conf.ttl_max_s : LIMIT_TTL_MAX_S;
}

int e2b_read_timeout(struct api_req *r, uint64_t by_default, uint64_t *ret) {
        uint64_t max = timeout_max(r->app);

        return read_seconds(r, "timeout", by_default < max ? by_default : max, max, ret);
}

/* --- a call that waits: first for its rows to be durable, then for its operation -------------- */

struct e2b_wait *e2b_wait_new(struct api_req *r, uint64_t timeout_ms, void (*done)(struct e2b_wait *w, struct op *o)) {
        struct e2b_wait *w = calloc(1, sizeof(*w));

        if (!w) {
                api_error(r, API_INTERNAL, "no memory");
                return NULL;
        }
        w->r = api_req_ref(r);
        w->timeout_ms = timeout_ms;
        w->done = done;
        return w;
}

void e2b_wait_free(struct e2b_wait *w) {
        api_req_unref(w->r);
        sandbox_unref(w->s);
        free(w);
}

static void on_op_end(void *arg, struct op *o) {
        struct e2b_wait *w = arg;

        w->done(w, o);
        e2b_wait_free(w);
}

void e2b_wait_durable(void *arg, int err, const struct error *e) {
        struct e2b_wait *w = arg;

        if (err < 0) {
                api_error_err(w->r, api_code_from_errno(err), e);
                return e2b_wait_free(w);
        }
        w->op_wait = op_wait_start(w->r->app, w->op, w->timeout_ms, on_op_end, w);
        if (!w->op_wait) {
                api_error(w->r, API_INTERNAL, "no memory");
                e2b_wait_free(w);
        }
}

/* --- create ----------------------------------------------------------------------------------- */

/* The client never learns the id of a sandbox that did not start, so it is not kept for it. */
static void create_failed(struct e2b_wait *w, const struct op *o) {
        struct error err = ERROR_INIT;
        struct op *del;

        api_error(w->r, o->code, "%s", o->message);
        if (w->s->state == SANDBOX_FAILED)
                (void) sandbox_delete(w->r->app, w->s, "it did not start", "", NULL, NULL, NULL, &del, &err);
}

static void create_done(struct e2b_wait *w, struct op *o) {
        if (o && o->state == OP_FAILED)
                create_failed(w, o);
        else if (!o || o->state == OP_RUNNING)
                api_error(w->r, API_GUEST_TIMEOUT, "the sandbox did not start in time");
        else
                api_reply(w->r, 201, e2b_sandbox_json(w->r->app, w->s));
}

static int read_create(struct api_req *r, uint64_t timeout_default, struct sandbox_params *p) {
        struct error err = ERROR_INIT;
        json_t *env = NULL, *metadata = NULL;
        uint64_t ttl;

        if (!r->body) {
                api_error(r, API_BAD_REQUEST, "the body must be a JSON object with templateID");
                return -EINVAL;
        }
        if (json_read_str(r->body, "templateID", true, TEMPLATE_REF_SIZE, &p->template, &err) < 0 ||
            json_read_obj(r->body, "metadata", false, &metadata, &err) < 0 ||
            json_read_obj(r->body, "envVars", false, &env, &err) < 0) {
                api_error_err(r, API_INVALID_ARGUMENT, &err);
                return -EINVAL;
        }
        if (e2b_read_timeout(r, timeout_default, &ttl) < 0)
                return -EINVAL;
        p->env = env;
        p->metadata = metadata;
        p->ttl_s = (int64_t) ttl;
        p->owner = r->owner;
        return 0;
}

/* An id of one is nothing else; its name may be a template's too, which goes before. */
static struct sandbox *find_snapshot(struct app *app, const char *template) {
        char ref[TEMPLATE_REF_SIZE];
        struct tmpl *t;

        return template_resolve(app, template, &t, ref, NULL) >= 0 ? NULL : e2b_snapshot(app, template);
}

static void create(struct api_req *r, uint64_t timeout_default) {
        _cleanup_json_ json_t *ext = NULL, *policy = NULL;
        struct sandbox_params p = { .rules = SANDBOX_RULES_DEFAULT };
        struct error err = ERROR_INIT;
        enum api_code code = API_INTERNAL;
        struct sandbox *s;
        struct op *op;

        if (read_create(r, timeout_default, &p) < 0 || e2b_read_rules(r, &p.rules) < 0 || e2b_read_ext(r, &ext) < 0)
                return;
        if (e2b_policy(ext, &policy) < 0) {
                api_error(r, API_INTERNAL, "no memory");
                return;
        }
        p.ext = ext;
        p.policy = policy;
        struct sandbox *snapshot = find_snapshot(r->app, p.template);
        if (snapshot)
                return e2b_snapshot_create(r, snapshot, &p);
        struct e2b_wait *w = e2b_wait_new(r, CREATE_WAIT_MS, create_done);
        if (!w)
                return;
        if (sandbox_create(r->app, &p, e2b_wait_durable, w, &s, &op, &code, &err) < 0) {
                api_error_err(r, code, &err);
                return e2b_wait_free(w);
        }
        w->s = sandbox_ref(s);
        w->op = op;
}

static void create_v1(struct api_req *r) {
        create(r, TIMEOUT_DEFAULT_V1);
}

static void create_v2(struct api_req *r) {
        create(r, TIMEOUT_DEFAULT_V2);
}

/* --- lists ------------------------------------------------------------------------------------ */

struct listing {
        struct app *app;
        json_t *items;
};

static void list_one(void *arg, struct sandbox *s) {
        struct listing *l = arg;

        (void) json_array_append_new(l->items, e2b_sandbox_listed_json(l->app, s));
}

static int query_metadata(struct api_req *r, json_t **ret) {
        _cleanup_free_ char *text = NULL;
        struct error err = ERROR_INIT;
        int n = api_query_str(r, "metadata", LIMIT_HTTP_HEAD, &text);

        if (n <= 0)
                return n;
        n = e2b_parse_metadata(text, ret, &err);
        if (n < 0)
                api_error_err(r, API_INVALID_ARGUMENT, &err);
        return n;
}

/* The parameters that only the second version has. ref keeps what the filter points to. */
static int query_v2(struct api_req *r, struct sandbox_filter *f, char ref[TEMPLATE_REF_SIZE],
                    char digest[DIGEST_LEN + 1], unsigned *ret_states) {
        _cleanup_free_ char *states = NULL, *after = NULL, *template = NULL, *order = NULL;
        struct error err = ERROR_INIT;

        if (api_query_str(r, "state", 64, &states) < 0 || api_query_str(r, "startedAfter", 64, &after) < 0 ||
            api_query_str(r, "template", TEMPLATE_REF_SIZE, &template) < 0 || api_query_str(r, "order", 16, &order) < 0)
                return -EINVAL;
        if (states && e2b_parse_states(states, ret_states, &err) < 0)
                goto invalid;
        if (after && clock_parse_rfc3339(after, &f->started_after_ms) < 0) {
                error_set(&err, -EINVAL, "startedAfter: \"%s\" is not an RFC 3339 time", after);
                goto invalid;
        }
        if (order && !str_eq(order, "asc") && !str_eq(order, "desc")) {
                error_set(&err, -EINVAL, "order: \"%s\" is not one of asc, desc", order);
                goto invalid;
        }
        f->oldest_first = str_eq(order, "asc");
        if (template && digest_valid(template)) {
                memcpy(digest, template, DIGEST_LEN + 1);
                f->digest = digest;
        } else if (template) {
                if (template_ref_parse(template, ref, &err) < 0)
                        goto invalid;
                f->template_ref = ref;
        }
        return 0;
invalid:
        api_error_err(r, API_INVALID_ARGUMENT, &err);
        return -EINVAL;
}

static void list_v2(struct api_req *r) {
        _cleanup_json_ json_t *metadata = NULL;
        _cleanup_free_ char *cursor = NULL;
        struct sandbox_filter f = { .states = RUNNING_BIT };
        char ref[TEMPLATE_REF_SIZE], digest[DIGEST_LEN + 1], next[SANDBOX_CURSOR_SIZE] = "", total[24];
        unsigned states = E2B_STATE_RUNNING | E2B_STATE_PAUSED;
        struct error err = ERROR_INIT;
        uint64_t limit = E2B_PAGE_MAX;

        if (query_metadata(r, &metadata) < 0 || query_v2(r, &f, ref, digest, &states) < 0 ||
            api_query_u64(r, "limit", 1, E2B_PAGE_MAX, &limit) < 0 ||
            api_query_str(r, "nextToken", SANDBOX_CURSOR_SIZE - 1, &cursor) < 0)
                return;
        f.metadata = metadata;
        if (!f.started_after_ms)
                f.started_after_ms = 1; /* not those that never ran: copies that are being made */

        struct listing l = { .app = r->app, .items = json_array() };
        f.states = (states & E2B_STATE_RUNNING ? RUNNING_BIT : 0) |
                   (states & E2B_STATE_PAUSED ? PAUSED_BITS | CHANGING_BITS : 0);
        if (sandbox_list(r->app, &f, cursor ? cursor : "", (size_t) limit, list_one, &l, next, &err) < 0) {
                json_decref(l.items);
                return api_error(r, API_INVALID_ARGUMENT, "nextToken: %s", err.msg);
        }
        (void) snprintf(total, sizeof(total), "%zu", sandbox_count(r->app, RUNNING_BIT));
        struct http_header h[2] = { { "X-Total-Running", total }, { "X-Next-Token", next } };
        api_reply_h(r, 200, h, next[0] ? 2 : 1, l.items);
}

static void list_v1(struct api_req *r) {
        _cleanup_json_ json_t *metadata = NULL;
        struct sandbox_filter f = { .states = RUNNING_BIT };
        char next[SANDBOX_CURSOR_SIZE];

        if (query_metadata(r, &metadata) < 0)
                return;
        f.metadata = metadata;
        struct listing l = { .app = r->app, .items = json_array() };
        (void) sandbox_list(r->app, &f, "", SIZE_MAX, list_one, &l, next, NULL);
        api_reply(r, 200, l.items);
}

/* --- one sandbox ------------------------------------------------------------------------------ */

static void get_one(struct api_req *r) {
        struct sandbox *s = e2b_sandbox(r);

        if (s)
                api_reply(r, 200, e2b_sandbox_detail_json(r->app, s));
}

/* The deletion is durable and the sandbox out of reach whether or not its operation has ended. */
static void delete_done(struct e2b_wait *w, struct op *o) {
        if (o && o->state == OP_FAILED)
                api_error(w->r, o->code, "%s", o->message);
        else
                api_reply_empty(w->r, 204);
}

static void delete_one(struct api_req *r) {
        struct sandbox *s = sandbox_find(r->app, r->params[0]);
        struct error err = ERROR_INIT;

        if (!s || s->state == SANDBOX_DELETING || s->state == SANDBOX_DELETED)
                return e2b_no_sandbox(r, r->params[0]);
        struct e2b_wait *w = e2b_wait_new(r, DELETE_WAIT_MS, delete_done);
        if (!w)
                return;
        int n = sandbox_delete(r->app, s, "killed by a client", r->owner, NULL, e2b_wait_durable, w, &w->op, &err);
        if (n < 0) {
                api_error_err(r, api_code_from_errno(n), &err);
                e2b_wait_free(w);
        }
}

/* --- time limit ------------------------------------------------------------------------------- */

static void ttl_durable(struct api_req *r, int err, const struct error *e, void (*reply)(struct api_req *r)) {
        if (err < 0)
                api_error_err(r, api_code_from_errno(err), e);
        else
                reply(r);
        api_req_unref(r);
}

static void reply_204(struct api_req *r) {
        api_reply_empty(r, 204);
}

static void reply_sandbox(struct api_req *r) {
        struct sandbox *s = e2b_sandbox(r);

        if (s)
                api_reply(r, 200, e2b_sandbox_json(r->app, s));
}

static void on_ttl_204(void *arg, int err, const struct error *e) {
        ttl_durable(arg, err, e, reply_204);
}

static void on_ttl_sandbox(void *arg, int err, const struct error *e) {
        ttl_durable(arg, err, e, reply_sandbox);
}

static void set_ttl(struct api_req *r, struct sandbox *s, uint64_t ttl, sandbox_durable_cb cb) {
        struct error err = ERROR_INIT;

        int n = sandbox_set_ttl(r->app, s, ttl, cb, api_req_ref(r), &err);
        if (n < 0) {
                api_error_err(r, n == -ERANGE ? API_INVALID_ARGUMENT : api_code_from_errno(n), &err);
                api_req_unref(r);
        }
}

static bool extends(const struct sandbox *s, uint64_t ttl) {
        return s->expires_ms != 0 && clock_real_ms() + (int64_t) ttl * 1000 > s->expires_ms;
}

static void post_timeout(struct api_req *r) {
        struct sandbox *s = e2b_sandbox(r);
        uint64_t ttl = 0;

        if (!s || e2b_read_timeout(r, 0, &ttl) < 0)
                return;
        if (ttl == 0)
                return api_error_status(r, 400, "timeout is missing");
        set_ttl(r, s, ttl, on_ttl_204);
}

static void post_refreshes(struct api_req *r) {
        struct sandbox *s = e2b_sandbox(r);
        uint64_t ttl;

        if (!s || read_seconds(r, "duration", TIMEOUT_DEFAULT_V1, REFRESH_MAX_S, &ttl) < 0)
                return;
        if (extends(s, ttl))
                set_ttl(r, s, ttl, on_ttl_204);
        else
                api_reply_empty(r, 204);
}

/* --- pausing ---------------------------------------------------------------------------------- */

static void changed(struct e2b_wait *w, const struct op *o, void (*reply)(struct api_req *r)) {
        if (o && o->state == OP_FAILED)
                api_error(w->r, o->code, "%s", o->message);
        else if (!o || o->state == OP_RUNNING)
                api_error(w->r, API_GUEST_TIMEOUT, "this takes longer than expected");
        else
                reply(w->r);
}

static void pause_done(struct e2b_wait *w, struct op *o) {
        changed(w, o, reply_204);
}

static void reply_resumed(struct api_req *r) {
        struct sandbox *s = e2b_sandbox(r);

        if (s)
                api_reply(r, 201, e2b_sandbox_json(r->app, s));
}

static void resume_done(struct e2b_wait *w, struct op *o) {
        changed(w, o, reply_resumed);
}

static void change(struct api_req *r, struct sandbox *s, enum sandbox_verb verb, void (*done)(struct e2b_wait *, struct op *)) {
        struct error err = ERROR_INIT;
        struct e2b_wait *w = e2b_wait_new(r, CHANGE_WAIT_MS, done);

        if (!w)
                return;
        int n = sandbox_change(r->app, s, verb, r->owner, NULL, e2b_wait_durable, w, &w->op, &err);
        if (n < 0) {
                if (n == -EBUSY)
                        api_error_status(r, 409, "Sandbox \"%s\": %s", s->id, err.msg);
                else
                        api_error_err(r, n == -EAGAIN ? API_TOO_MANY : api_code_from_errno(n), &err);
                e2b_wait_free(w);
        }
}

/* What this API calls pausing is suspending here; without the memory it is stopping. */
static void post_pause(struct api_req *r) {
        struct sandbox *s = e2b_sandbox(r);
        struct error err = ERROR_INIT;
        bool memory = true;

        if (!s)
                return;
        if (r->body && json_read_bool(r->body, "memory", false, &memory, &err) < 0)
                return api_error_err(r, API_INVALID_ARGUMENT, &err);
        if (s->state != SANDBOX_RUNNING)
                return api_error_status(r, 409, "Sandbox \"%s\" is already paused", s->id);
        s->expires_ms = 0; /* these clients' time limit is of running; it is given anew when it runs again */
        change(r, s, memory ? SANDBOX_SUSPEND : SANDBOX_STOP, pause_done);
}

/* The new end is set with the wish: should the restore fail, the sandbox is kept for so long. */
static void wake(struct api_req *r, struct sandbox *s, uint64_t ttl) {
        struct error err = ERROR_INIT;

        int n = sandbox_set_ttl(r->app, s, ttl, NULL, NULL, &err);
        if (n < 0)
                return api_error_err(r, n == -ERANGE ? API_INVALID_ARGUMENT : api_code_from_errno(n), &err);
        change(r, s, SANDBOX_WAKE, resume_done);
}

/* On a running sandbox connecting only ever moves the end further away. */
static void connect_to(struct api_req *r, uint64_t timeout_default) {
        struct sandbox *s = e2b_sandbox(r);
        uint64_t ttl;

        if (!s || e2b_read_timeout(r, timeout_default, &ttl) < 0)
                return;
        if (s->state != SANDBOX_RUNNING)
                wake(r, s, ttl);
        else if (extends(s, ttl))
                set_ttl(r, s, ttl, on_ttl_sandbox);
        else
                reply_sandbox(r);
}

static void connect_v1(struct api_req *r) {
        connect_to(r, TIMEOUT_DEFAULT_V1);
}

static void connect_v2(struct api_req *r) {
        connect_to(r, TIMEOUT_DEFAULT_V2);
}

static void resume(struct api_req *r) {
        struct sandbox *s = e2b_sandbox(r);
        uint64_t ttl;

        if (!s || e2b_read_timeout(r, TIMEOUT_DEFAULT_V1, &ttl) < 0)
                return;
        if (s->state == SANDBOX_RUNNING)
                api_error_status(r, 409, "Sandbox \"%s\" is already running", s->id);
        else
                wake(r, s, ttl);
}

#define E API_FLAG_E2B
const struct api_route e2b_sandbox_routes[] = {
        { "POST", "/v2/sandboxes", create_v2, API_BODY_JSON, E | API_FLAG_SETTLED },
        { "POST", "/sandboxes", create_v1, API_BODY_JSON, E | API_FLAG_SETTLED },
        { "GET", "/v2/sandboxes", list_v2, API_BODY_NONE, E | API_FLAG_SETTLED },
        { "GET", "/sandboxes", list_v1, API_BODY_NONE, E | API_FLAG_SETTLED },
        { "GET", "/sandboxes/{id}", get_one, API_BODY_NONE, E | API_FLAG_SETTLED },
        { "DELETE", "/sandboxes/{id}", delete_one, API_BODY_NONE, E },
        { "POST", "/sandboxes/{id}/timeout", post_timeout, API_BODY_JSON, E },
        { "POST", "/sandboxes/{id}/refreshes", post_refreshes, API_BODY_JSON, E },
        { "POST", "/v2/sandboxes/{id}/connect", connect_v2, API_BODY_JSON, E | API_FLAG_SETTLED },
        { "POST", "/sandboxes/{id}/connect", connect_v1, API_BODY_JSON, E | API_FLAG_SETTLED },
        { "POST", "/sandboxes/{id}/pause", post_pause, API_BODY_JSON, E | API_FLAG_SETTLED },
        { "POST", "/sandboxes/{id}/resume", resume, API_BODY_JSON, E | API_FLAG_SETTLED },
};
const size_t e2b_sandbox_routes_n = ARRAY_SIZE(e2b_sandbox_routes);
