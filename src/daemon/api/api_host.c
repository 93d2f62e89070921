/* SPDX-License-Identifier: Apache-2.0 */

/* What the daemon says of itself and of the host. */

#include <stdlib.h>
#include <string.h>

#include "api_wait.h"
#include "app.h"
#include "audit/audit_store.h"
#include "base/buf.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "egress/egress.h"
#include "openapi.h"
#include "peers/rootd.h"
#include "sandbox/sandbox_flow.h"
#include "sandbox/warm.h"
#include "store/db.h"
#include "store/key.h"
#include "store/op.h"
#include "template/template.h"

#define METRICS_MAX (64 * 1024)

static void health(struct api_req *r) {
        api_reply_empty(r, 204);
}

static void openapi(struct api_req *r) {
        api_reply_raw(r, 200, "application/yaml", openapi_yaml, openapi_yaml_n);
}

static void version(struct api_req *r) {
        api_reply(r, 200, json_pack("{s:s, s:s}", "version", CSPACE_VERSION, "api", "v1"));
}

static size_t count(struct app *app, enum sandbox_state st) {
        return sandbox_count(app, 1u << st);
}

static void host(struct api_req *r) {
        struct app *app = r->app;
        const struct ipc_host_info *h = rootd_host(app->rootd);
        char started[RFC3339_SIZE];
        clock_rfc3339(app->started_ms, started);
        json_t *counts = json_object();
        for (enum sandbox_state st = SANDBOX_CREATING; st <= SANDBOX_DELETING; st++)
                (void) json_object_set_new(counts, sandbox_state_name(st), json_integer((json_int_t) count(app, st)));
        (void) json_object_set_new(counts, "max", json_integer(app->conf.max_sandboxes));
        json_t *j = json_pack("{s:s, s:s, s:s, s:s, s:s, s:b, s:I, s:s?, s:s, s:o, s:o, s:{s:I, s:I, s:I, s:I}}", "rootd",
                              rootd_connected(app->rootd) ? "connected" : "unreachable", "engine", h->engine,
                              "engine_reason", h->engine_reason, "cgroup", h->cgroup, "data_fs", h->data_fs, "reflink",
                              h->reflink != 0, "namespaces_ready", (json_int_t) h->pool_ready, "domain",
                              app->conf.domain[0] ? app->conf.domain : NULL, "started_at", started, "sandboxes", counts,
                              "warm", warm_to_json(app), "defaults", "memory_mb", (json_int_t) app->conf.memory_mb, "cpus",
                              (json_int_t) app->conf.cpus, "ttl_s", (json_int_t) app->conf.ttl_s, "ttl_max_s",
                              (json_int_t) app->conf.ttl_max_s);
        api_reply(r, 200, j);
}

static void metric(struct buf *b, const char *name, const char *type, const char *help) {
        (void) buf_printf(b, "# HELP %s %s\n# TYPE %s %s\n", name, help, name, type);
}

static void metrics_sandboxes(struct app *app, struct buf *b) {
        metric(b, "cspace_sandboxes", "gauge", "Sandboxes by state.");
        for (enum sandbox_state st = SANDBOX_CREATING; st <= SANDBOX_DELETING; st++)
                (void) buf_printf(b, "cspace_sandboxes{state=\"%s\"} %zu\n", sandbox_state_name(st), count(app, st));
        const struct app_counters *c = &app->counters;
        metric(b, "cspace_creates_total", "counter", "Ended creates by result.");
        (void) buf_printf(b, "cspace_creates_total{result=\"succeeded\"} %llu\n", (unsigned long long) c->creates);
        (void) buf_printf(b, "cspace_creates_total{result=\"failed\"} %llu\n", (unsigned long long) c->creates_failed);
        metric(b, "cspace_creates_warm_total", "counter", "Creates served from the warm pool.");
        (void) buf_printf(b, "cspace_creates_warm_total %llu\n", (unsigned long long) c->creates_warm);
        metric(b, "cspace_create_seconds", "summary", "Request to ready, of creates that succeeded.");
        (void) buf_printf(b, "cspace_create_seconds_sum %.6f\n", (double) c->create_us / 1e6);
        (void) buf_printf(b, "cspace_create_seconds_count %llu\n", (unsigned long long) c->creates);
        metric(b, "cspace_deletes_total", "counter", "Sandboxes deleted.");
        (void) buf_printf(b, "cspace_deletes_total %llu\n", (unsigned long long) c->deletes);
        metric(b, "cspace_lost_total", "counter", "Running sandboxes that failed.");
        (void) buf_printf(b, "cspace_lost_total %llu\n", (unsigned long long) c->lost);
}

static void metrics_egress(struct app *app, struct buf *b) {
        struct audit_stats st;
        size_t gateways[N_EGRESS_STATES] = { 0 };
        audit_store_stats(app, &st);
        for (const struct sandbox *s = sandbox_oldest(app); s; s = s->next)
                if (s->egress)
                        gateways[egress_state(s)]++;
        metric(b, "cspace_gateways", "gauge", "Gateways of sandboxes by state.");
        for (enum egress_state e = EGRESS_IDLE; e < N_EGRESS_STATES; e++)
                (void) buf_printf(b, "cspace_gateways{state=\"%s\"} %zu\n", egress_state_name(e), gateways[e]);
        metric(b, "cspace_egress_total", "counter", "What sandboxes asked for, by kind and verdict.");
        for (enum audit_kind k = AUDIT_DNS; k < N_AUDIT_KINDS; k++)
                for (int v = 0; v < 2; v++)
                        (void) buf_printf(b, "cspace_egress_total{kind=\"%s\",verdict=\"%s\"} %llu\n", audit_kind_name(k), v ? "allow" : "deny",
                                          (unsigned long long) st.tally.verdicts[k][v]);
        metric(b, "cspace_egress_denied_total", "counter", "What was denied, by reason.");
        for (enum policy_reason i = 0; i < N_POLICY_REASONS; i++)
                (void) buf_printf(b, "cspace_egress_denied_total{reason=\"%s\"} %llu\n", policy_reason_name(i),
                                  (unsigned long long) st.tally.denied[i]);
        metric(b, "cspace_egress_bytes_total", "counter", "Bytes of connections that have ended, from (out) and to (in) sandboxes.");
        (void) buf_printf(b, "cspace_egress_bytes_total{direction=\"out\"} %llu\n", (unsigned long long) st.tally.bytes_out);
        (void) buf_printf(b, "cspace_egress_bytes_total{direction=\"in\"} %llu\n", (unsigned long long) st.tally.bytes_in);
        metric(b, "cspace_audit_records_total", "counter", "Records by what became of them.");
        (void) buf_printf(b, "cspace_audit_records_total{result=\"stored\"} %llu\n", (unsigned long long) st.records);
        (void) buf_printf(b, "cspace_audit_records_total{result=\"refused\"} %llu\n", (unsigned long long) st.bad);
        (void) buf_printf(b, "cspace_audit_records_total{result=\"lost\"} %llu\n", (unsigned long long) st.lost);
        metric(b, "cspace_audit_bytes", "gauge", "Bytes of records on disk.");
        (void) buf_printf(b, "cspace_audit_bytes %llu\n", (unsigned long long) st.bytes);
        metric(b, "cspace_tokens_total", "counter", "Tokens of credentials that were asked for, by result.");
        (void) buf_printf(b, "cspace_tokens_total{result=\"succeeded\"} %llu\n", (unsigned long long) app->counters.tokens);
        (void) buf_printf(b, "cspace_tokens_total{result=\"failed\"} %llu\n", (unsigned long long) app->counters.tokens_failed);
}

static void metrics(struct api_req *r) {
        struct app *app = r->app;
        _cleanup_buf_ struct buf b = BUF_INIT(METRICS_MAX);
        struct db_stats db;
        unsigned ops[OP_STATE_MAX_] = { 0 };
        struct tmpl *all[TEMPLATE_MAX];
        metrics_sandboxes(app, &b);
        metrics_egress(app, &b);
        for (const struct op *o = op_newest(app); o; o = o->prev)
                ops[o->state]++;
        metric(&b, "cspace_operations", "gauge", "Operations that are kept, by state.");
        for (enum op_state st = OP_RUNNING; st < OP_STATE_MAX_; st++)
                (void) buf_printf(&b, "cspace_operations{state=\"%s\"} %u\n", op_state_name(st), ops[st]);
        metric(&b, "cspace_templates", "gauge", "Templates.");
        (void) buf_printf(&b, "cspace_templates %zu\n", templates_all(app, all, ARRAY_SIZE(all)));
        metric(&b, "cspace_keys", "gauge", "API keys.");
        (void) buf_printf(&b, "cspace_keys %zu\n", keys_count(app->keys));
        db_stats(app->db, &db);
        metric(&b, "cspace_db_jobs_total", "counter", "Database jobs run.");
        (void) buf_printf(&b, "cspace_db_jobs_total %llu\n", (unsigned long long) db.jobs);
        metric(&b, "cspace_db_commits_total", "counter", "Database transactions.");
        (void) buf_printf(&b, "cspace_db_commits_total %llu\n", (unsigned long long) db.commits);
        metric(&b, "cspace_db_failures_total", "counter", "Database jobs that failed.");
        (void) buf_printf(&b, "cspace_db_failures_total %llu\n", (unsigned long long) db.failures);
        metric(&b, "cspace_rootd_connected", "gauge", "Whether cspace-rootd is reachable.");
        (void) buf_printf(&b, "cspace_rootd_connected %d\n", rootd_connected(app->rootd));
        metric(&b, "cspace_start_time_seconds", "gauge", "When cspaced started, Unix time.");
        (void) buf_printf(&b, "cspace_start_time_seconds %.3f\n", (double) app->started_ms / 1e3);
        api_reply_raw(r, 200, "text/plain; version=0.0.4", buf_data(&b), b.len);
}

const struct api_route host_routes[] = {
        { "GET", "/health", health, API_BODY_NONE, API_FLAG_PUBLIC },
        { "GET", "/health/", health, API_BODY_NONE, API_FLAG_PUBLIC },
        { "GET", "/openapi.yaml", openapi, API_BODY_NONE, API_FLAG_PUBLIC },
        { "GET", "/metrics", metrics, API_BODY_NONE, 0 },
        { "GET", "/v1/version", version, API_BODY_NONE, API_FLAG_PUBLIC },
        { "GET", "/v1/host", host, API_BODY_NONE, 0 },
};
const size_t host_routes_n = ARRAY_SIZE(host_routes);
