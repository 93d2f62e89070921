/* SPDX-License-Identifier: Apache-2.0 */

/* /v1/sandboxes and what is below it, but for commands and files. */

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "api_named.h"
#include "api_wait.h"
#include "app.h"
#include "base/buf.h"
#include "base/cleanup.h"
#include "base/json.h"
#include "base/str.h"
#include "egress/bindings.h"
#include "egress/egress.h"
#include "egress/policies.h"
#include "peers/rootd.h"
#include "policy/binding.h"
#include "proxy/proxy.h"
#include "sandbox/sandbox.h"
#include "store/idem.h"
#include "store/op.h"

#define LIST_DEFAULT 100
#define LIST_MAX 1000
#define LOG_LINES_MAX 1000
#define USAGE_TIMEOUT_MS 5000
#define USAGE_ANSWER_MAX (64 * 1024)

/* ---- create -------------------------------------------------------------------------------- */

static int read_params(struct api_req *r, struct sandbox_params *p, struct error *err) {
        static const char *const keys[] = { "template", "name", "memory_mb", "cpus", "disk_mb",
                                            "env",      "metadata", "ttl_s", "policy", "allow", "bindings", SANDBOX_RULES_KEYS, NULL };
        uint64_t memory = 0, cpus = 0, disk = 0, ttl = UINT64_MAX;
        const json_t *b = r->body;
        if (!b)
                return error_set(err, -EINVAL, "a body with \"template\" is needed");
        int rc = json_only_keys(b, keys, err);
        if (rc >= 0)
                rc = json_read_str(b, "template", true, DIGEST_LEN * 4, &p->template, err);
        if (rc >= 0)
                rc = json_read_str(b, "name", false, SANDBOX_NAME_MAX, &p->name, err);
        if (rc >= 0)
                rc = json_read_u64(b, "memory_mb", false, LIMIT_MEMORY_MIN_MB, LIMIT_MEMORY_MAX_MB, &memory, err);
        if (rc >= 0)
                rc = json_read_u64(b, "cpus", false, 1, LIMIT_CPUS_MAX, &cpus, err);
        if (rc >= 0)
                rc = json_read_u64(b, "disk_mb", false, 1, LIMIT_DISK_MAX_MB, &disk, err);
        if (rc >= 0)
                rc = json_read_u64(b, "ttl_s", false, 0, LIMIT_TTL_MAX_S, &ttl, err);
        if (rc >= 0)
                rc = json_read_str_map(b, "env", LIMIT_ENV_ITEMS, LIMIT_PATH, LIMIT_ENV_VALUE, &p->env, err);
        if (rc >= 0)
                rc = json_read_str_map(b, "metadata", LIMIT_METADATA_ITEMS, LIMIT_METADATA_KEY, LIMIT_METADATA_VALUE,
                                       &p->metadata, err);
        if (rc >= 0)
                rc = sandbox_rules_read(b, &p->rules, err);
        if (rc < 0)
                return rc;
        p->own_checkpoints = json_object_get(b, "checkpoint_every_s") || json_object_get(b, "checkpoint_keep");
        p->memory_mb = (uint32_t) memory;
        p->cpus = (uint32_t) cpus;
        p->disk_bytes = disk << 20;
        p->ttl_s = ttl == UINT64_MAX ? -1 : (int64_t) ttl;
        return 0;
}

/* *ret is NULL without any. */
static int read_bindings(struct api_req *r, json_t **ret, struct error *err) {
        json_t *given = NULL, *one;
        size_t i;
        int rc = json_read_array(r->body, "bindings", false, BINDINGS_MAX, &given, err);
        if (rc < 0 || !given)
                return rc;
        json_t *out = json_array();
        json_array_foreach(given, i, one) {
                json_t *b = NULL;
                rc = binding_make(r->app, one, &b, err);
                if (rc < 0) {
                        json_decref(out);
                        return error_wrap(err, "bindings[%zu]", i);
                }
                (void) json_array_append_new(out, b);
        }
        *ret = out;
        return 0;
}

static void create(struct api_req *r) {
        struct sandbox_params p = { .owner = r->owner, .rules = SANDBOX_RULES_DEFAULT };
        _cleanup_json_ json_t *policy = NULL, *bindings = NULL;
        struct error e = ERROR_INIT;
        struct sandbox *s = NULL;
        struct op *o = NULL;
        enum api_code code = API_INTERNAL;
        uint64_t wait_ms = 0;
        if (api_query_wait(r, &wait_ms) < 0)
                return;
        if (read_params(r, &p, &e) < 0 || policy_from_request(r->body, &policy, &e) < 0 ||
            read_bindings(r, &bindings, &e) < 0) {
                api_error_err(r, API_INVALID_ARGUMENT, &e);
                return;
        }
        if (!api_policy_permitted(r, policy))
                return;
        int idem = idem_begin(r, &o);
        if (idem == 2)
                api_wait_existing(r, o, wait_ms, 201, true);
        if (idem != 0)
                return;
        p.idem = r->idem_scope;
        p.policy = policy;
        p.bindings = bindings;
        struct api_wait *w = api_wait_new(r, wait_ms, 201, true);
        if (!w) {
                api_error(r, API_INTERNAL, "out of memory");
                return;
        }
        if (sandbox_create(r->app, &p, api_wait_durable, w, &s, &o, &code, &e) < 0) {
                api_error_err(r, code, &e);
                api_wait_free(w);
                return;
        }
        api_wait_set(w, o);
}

/* ---- list, get, change, delete ------------------------------------------------------------- */

static int read_states(const char *text, unsigned *ret) {
        unsigned mask = 0;
        while (*text) {
                size_t n = strcspn(text, ",");
                bool found = false;
                for (enum sandbox_state st = SANDBOX_CREATING; st <= SANDBOX_DELETING; st++) {
                        const char *name = sandbox_state_name(st);
                        if (strlen(name) == n && memcmp(name, text, n) == 0) {
                                mask |= 1u << st;
                                found = true;
                        }
                }
                if (!found)
                        return -EINVAL;
                text += n + (text[n] == ',');
        }
        *ret = mask;
        return 0;
}

/* All "metadata.KEY=VALUE" of the query. */
static int read_metadata(struct api_req *r, json_t *out) {
        const char *q = strchr(http_x_head(r->x)->target, '?');
        for (q = q ? q + 1 : ""; *q; q += strcspn(q, "&"), q += *q == '&') {
                size_t n = strcspn(q, "&"), key_n = strcspn(q, "=&");
                if (!str_has_prefix(q, "metadata.") || key_n <= 9)
                        continue;
                _cleanup_buf_ struct buf k = BUF_INIT(LIMIT_METADATA_KEY), v = BUF_INIT(LIMIT_METADATA_VALUE);
                if (http1_percent_decode(q + 9, key_n - 9, true, &k) < 0 ||
                    (key_n < n && http1_percent_decode(q + key_n + 1, n - key_n - 1, true, &v) < 0))
                        return -EINVAL;
                const char *key = buf_str(&k), *value = buf_str(&v);
                if (!key || !value || json_object_set_new(out, key, json_string(value)) < 0)
                        return -EINVAL;
        }
        return 0;
}

static void add_to(void *arg, struct sandbox *s) {
        (void) json_array_append_new(arg, sandbox_to_json(s, false));
}

static void list(struct api_req *r) {
        _cleanup_free_ char *cursor = NULL, *state = NULL, *template = NULL, *order = NULL;
        _cleanup_json_ json_t *metadata = json_object();
        struct sandbox_filter f = { 0 };
        struct error e = ERROR_INIT;
        char next[SANDBOX_CURSOR_SIZE], ref[TEMPLATE_REF_SIZE];
        uint64_t limit = LIST_DEFAULT;
        if (api_query_u64(r, "limit", 1, LIST_MAX, &limit) < 0 || api_query_str(r, "cursor", SANDBOX_CURSOR_SIZE, &cursor) < 0 ||
            api_query_str(r, "state", 256, &state) < 0 || api_query_str(r, "template", TEMPLATE_REF_SIZE, &template) < 0 ||
            api_query_str(r, "order", 16, &order) < 0)
                return;
        if (state && read_states(state, &f.states) < 0) {
                api_error(r, API_INVALID_ARGUMENT, "\"state\" is \"%.80s\"; it must be a comma list of states, such as running, paused, suspended, stopped, failed",
                          state);
                return;
        }
        if (order && !str_eq(order, "newest") && !str_eq(order, "oldest")) {
                api_error(r, API_INVALID_ARGUMENT, "\"order\" must be newest or oldest");
                return;
        }
        if (read_metadata(r, metadata) < 0) {
                api_error(r, API_BAD_REQUEST, "a \"metadata.\" parameter is not properly encoded or too long");
                return;
        }
        if (template && digest_valid(template))
                f.digest = template;
        else if (template && template_ref_parse(template, ref, &e) < 0) {
                api_error_err(r, API_INVALID_ARGUMENT, &e);
                return;
        } else if (template)
                f.template_ref = ref;
        f.metadata = metadata;
        f.oldest_first = str_eq(order, "oldest");
        json_t *a = json_array();
        if (sandbox_list(r->app, &f, cursor, (size_t) limit, add_to, a, next, &e) < 0) {
                json_decref(a);
                api_error_err(r, API_INVALID_ARGUMENT, &e);
                return;
        }
        api_reply(r, 200, json_pack("{s:o, s:s?}", "sandboxes", a, "next_cursor", next[0] ? next : NULL));
}

struct asked {
        struct api_req *r;
        struct sandbox *s;
};

static void on_answers(void *arg, bool known, bool answers) {
        struct asked *q = arg;
        json_t *j = sandbox_to_json(q->s, true);
        if (j && known && q->s->state == SANDBOX_RUNNING)
                (void) json_object_set_new(j, "responding", json_boolean(answers));
        api_reply(q->r, 200, j);
        api_req_unref(q->r);
        sandbox_unref(q->s);
        free(q);
}

static void get(struct api_req *r) {
        struct sandbox *s = api_sandbox(r);
        if (!s)
                return;
        struct asked *q = calloc(1, sizeof *q);
        if (q) {
                *q = (struct asked){ .r = api_req_ref(r), .s = sandbox_ref(s) };
                if (sandbox_answers(s, on_answers, q) >= 0)
                        return;
                api_req_unref(q->r);
                sandbox_unref(q->s);
                free(q);
        }
        api_reply(r, 200, sandbox_to_json(s, true));
}

static void reply_changed(struct api_req *r, const struct sandbox *s) {
        api_reply(r, 200, sandbox_to_json(s, true));
}

static void patch(struct api_req *r) {
        static const char *const keys[] = { "ttl_s", SANDBOX_RULES_KEYS, NULL };
        struct error e = ERROR_INIT;
        uint64_t ttl = UINT64_MAX;
        struct sandbox *s = api_sandbox(r);
        if (!s)
                return;
        struct sandbox_rules rules = s->rules;
        if (!r->body || json_object_size(r->body) == 0 || json_only_keys(r->body, keys, &e) < 0 ||
            json_read_u64(r->body, "ttl_s", false, 0, LIMIT_TTL_MAX_S, &ttl, &e) < 0 ||
            sandbox_rules_read(r->body, &rules, &e) < 0) {
                api_error(r, API_INVALID_ARGUMENT, "%s", e.msg[0] ? e.msg : "a body with \"ttl_s\" or a rule is needed");
                return;
        }
        if (s->state == SANDBOX_DELETING) {
                api_error(r, API_SANDBOX_NOT_RUNNING, "the sandbox is being deleted");
                return;
        }
        struct api_changed *c = api_changed_new(r, s, reply_changed, api_code_from_errno);
        if (!c)
                return;
        int rc = 0;
        if (ttl != UINT64_MAX) /* the row is written once, below */
                rc = sandbox_set_ttl(r->app, s, ttl, NULL, NULL, &e);
        rules.ttl_s = s->rules.ttl_s;
        if (rc >= 0)
                rc = sandbox_set_rules(r->app, s, &rules, api_changed_durable, c);
        if (rc < 0) {
                api_error(r, api_code_from_errno(rc), "%s", e.msg[0] ? e.msg : "could not store the change");
                api_changed_free(c);
        }
}

static void delete(struct api_req *r) {
        struct error e = ERROR_INIT;
        struct op *o = NULL;
        uint64_t wait_ms = 0;
        if (api_query_wait(r, &wait_ms) < 0)
                return;
        struct sandbox *s = sandbox_find_any(r->app, r->params[0]);
        if (!s) { /* deleted before: the same answer again */
                o = id_valid(r->params[0]) ? op_find_for(r->app, OP_DELETE, r->params[0]) : NULL;
                if (o)
                        api_wait_existing(r, o, wait_ms, 200, false);
                else
                        (void) api_sandbox(r);
                return;
        }
        struct api_wait *w = api_wait_new(r, wait_ms, 200, false);
        int rc = w ? sandbox_delete(r->app, s, "deleted by a client", r->owner, NULL, api_wait_durable, w, &o, &e) : -ENOMEM;
        if (rc < 0) {
                api_error(r, api_code_from_errno(rc), "%s", e.msg[0] ? e.msg : "out of memory");
                api_wait_free(w);
                return;
        }
        api_wait_set(w, o);
}

/* ---- changes of state ---------------------------------------------------------------------- */

static void change(struct api_req *r, enum sandbox_verb verb) {
        struct error e = ERROR_INIT;
        struct op *o = NULL;
        uint64_t wait_ms = 0;
        if (api_query_wait(r, &wait_ms) < 0)
                return;
        struct sandbox *s = api_sandbox(r);
        int idem = s ? idem_begin(r, &o) : 1;
        if (idem == 2)
                api_wait_existing(r, o, wait_ms, 200, true);
        if (idem != 0)
                return;
        struct api_wait *w = api_wait_new(r, wait_ms, 200, true);
        int rc = w ? sandbox_change(r->app, s, verb, r->owner, r->idem_scope, api_wait_durable, w, &o, &e) : -ENOMEM;
        if (rc < 0) {
                api_error(r, rc == -EAGAIN ? API_TOO_MANY : api_code_from_errno(rc), "%s", e.msg[0] ? e.msg : "out of memory");
                api_wait_free(w);
                return;
        }
        api_wait_set(w, o);
}

#define CHANGE(name, verb)                     \
        static void name(struct api_req *r) {  \
                change(r, SANDBOX_##verb);     \
        }
CHANGE(pause_it, PAUSE)
CHANGE(resume, RESUME)
CHANGE(suspend, SUSPEND)
CHANGE(restore, RESTORE)
CHANGE(stop, STOP)
CHANGE(start, START)
CHANGE(wake, WAKE)

/* ---- logs ---------------------------------------------------------------------------------- */

static void on_logs(void *arg, int err, json_t *entries) {
        struct api_req *r = arg;
        _cleanup_buf_ struct buf b = BUF_INIT(LOG_LINES_MAX * 2048);
        size_t i;
        json_t *e;
        json_array_foreach(entries, i, e) {
                _cleanup_free_ char *line = json_to_str(e);
                if (!line || buf_puts(&b, line) < 0 || buf_puts(&b, "\n") < 0)
                        err = -ENOMEM;
        }
        if (err < 0)
                api_error(r, api_code_from_errno(err), "the log could not be read");
        else
                api_reply_raw(r, 200, "application/x-ndjson", buf_data(&b), b.len);
        api_req_unref(r);
}

static void logs(struct api_req *r) {
        uint64_t since = 0, limit = LOG_LINES_MAX;
        struct sandbox *s = api_sandbox(r);
        if (!s || api_query_u64(r, "since", 0, INT64_MAX, &since) < 0 ||
            api_query_u64(r, "limit", 1, LOG_LINES_MAX, &limit) < 0)
                return;
        if (sandbox_log_read(r->app, s, (int64_t) since, (size_t) limit, on_logs, api_req_ref(r)) < 0) {
                api_error(r, API_UNAVAILABLE, "the database is busy");
                api_req_unref(r);
        }
}

/* ---- usage --------------------------------------------------------------------------------- */

struct usage {
        struct api_req *r;
        unsigned waiting;
        json_t *host, *guest, *egress;
};

static void usage_part(struct usage *u) {
        if (--u->waiting > 0)
                return;
        api_reply(u->r, 200, json_pack("{s:o, s:o, s:o}", "host", u->host ? u->host : json_null(), "guest",
                                       u->guest ? u->guest : json_null(), "egress", u->egress ? u->egress : json_null()));
        api_req_unref(u->r);
        free(u);
}

static void on_usage(void *arg, int err, const struct error *e, struct ipc_packet *p) {
        (void) e;
        struct usage *u = arg;
        struct ipc_usage_info m;
        if (err >= 0 && ipc_usage_info_decode(p->body, p->body_n, &m) >= 0)
                u->host = json_pack("{s:I, s:I, s:I, s:I}", "cpu_us", (json_int_t) m.cpu_us, "memory_bytes",
                                    (json_int_t) m.memory_bytes, "disk_bytes", (json_int_t) m.disk_bytes, "processes",
                                    (json_int_t) m.processes);
        usage_part(u);
}

static void on_metrics(void *arg, int err, const struct error *e, int status, const char *body, size_t n) {
        (void) e;
        struct usage *u = arg;
        if (err >= 0 && status == 200 && json_parse(body, n, USAGE_ANSWER_MAX, &u->guest, NULL) >= 0 &&
            !json_is_object(u->guest)) {
                json_decref(u->guest);
                u->guest = NULL;
        }
        usage_part(u);
}

static void on_gateway(void *arg, const struct ipc_gw_state *m) {
        struct usage *u = arg;
        if (m)
                u->egress = json_pack("{s:I, s:I, s:I, s:I, s:I, s:I}", "connections", (json_int_t) m->connections, "requests",
                                      (json_int_t) m->requests, "bytes_out", (json_int_t) m->bytes_out, "bytes_in",
                                      (json_int_t) m->bytes_in, "names", (json_int_t) m->names, "records_dropped",
                                      (json_int_t) m->records_dropped);
        usage_part(u);
}

/* Of what runs or stands still in memory, or of the image of one at rest: that has a size, and nothing else. */
static int ask_host(struct app *app, const struct sandbox *s, struct usage *u) {
        struct ipc_image_usage image = { 0 };
        struct ipc_usage live = { 0 };
        uint8_t body[64];
        size_t n = 0;
        memcpy(image.image, s->image, sizeof image.image);
        memcpy(live.id, s->id, sizeof live.id);
        int r = s->image[0] ? ipc_image_usage_encode(&image, body, sizeof body, &n) : ipc_usage_encode(&live, body, sizeof body, &n);
        return r < 0 ? r : rootd_call(app->rootd, s->image[0] ? IPC_IMAGE_USAGE : IPC_USAGE, body, n, NULL, 0, USAGE_TIMEOUT_MS, on_usage, u, NULL);
}

static void usage(struct api_req *r) {
        struct sandbox *s = api_sandbox(r);
        if (!s)
                return;
        struct usage *u = calloc(1, sizeof *u);
        if (!u) {
                api_error(r, API_INTERNAL, "out of memory");
                return;
        }
        *u = (struct usage){ .r = api_req_ref(r), .waiting = 1 };
        if (ask_host(r->app, s, u) >= 0)
                u->waiting++;
        struct proxy_request q = { .id = s->id,
                                   .method = "GET",
                                   .target = "/metrics",
                                   .access_token = s->token,
                                   .max_answer = USAGE_ANSWER_MAX,
                                   .timeout_ms = USAGE_TIMEOUT_MS };
        struct proxy_call *call;
        if (egress_query(s, on_gateway, u) >= 0)
                u->waiting++;
        if (s->state == SANDBOX_RUNNING && proxy_call(r->app->proxy, &q, on_metrics, u, &call, NULL) >= 0)
                u->waiting++;
        usage_part(u);
}

const struct api_route sandbox_routes[] = {
        { "POST", "/v1/sandboxes", create, API_BODY_JSON, API_FLAG_IDEM | API_FLAG_SETTLED },
        { "GET", "/v1/sandboxes", list, API_BODY_NONE, API_FLAG_SETTLED },
        { "GET", "/v1/sandboxes/{id}", get, API_BODY_NONE, API_FLAG_SETTLED },
        { "PATCH", "/v1/sandboxes/{id}", patch, API_BODY_JSON, 0 },
        { "DELETE", "/v1/sandboxes/{id}", delete, API_BODY_NONE, 0 },
        { "POST", "/v1/sandboxes/{id}/pause", pause_it, API_BODY_NONE, API_FLAG_IDEM | API_FLAG_SETTLED },
        { "POST", "/v1/sandboxes/{id}/resume", resume, API_BODY_NONE, API_FLAG_IDEM | API_FLAG_SETTLED },
        { "POST", "/v1/sandboxes/{id}/suspend", suspend, API_BODY_NONE, API_FLAG_IDEM | API_FLAG_SETTLED },
        { "POST", "/v1/sandboxes/{id}/restore", restore, API_BODY_NONE, API_FLAG_IDEM | API_FLAG_SETTLED },
        { "POST", "/v1/sandboxes/{id}/stop", stop, API_BODY_NONE, API_FLAG_IDEM | API_FLAG_SETTLED },
        { "POST", "/v1/sandboxes/{id}/start", start, API_BODY_NONE, API_FLAG_IDEM | API_FLAG_SETTLED },
        { "POST", "/v1/sandboxes/{id}/wake", wake, API_BODY_NONE, API_FLAG_IDEM | API_FLAG_SETTLED },
        { "GET", "/v1/sandboxes/{id}/logs", logs, API_BODY_NONE, 0 },
        { "GET", "/v1/sandboxes/{id}/usage", usage, API_BODY_NONE, 0 },
};
const size_t sandbox_routes_n = ARRAY_SIZE(sandbox_routes);
