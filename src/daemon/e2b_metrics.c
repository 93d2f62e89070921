/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Theory of operation
 *
 * Every SAMPLE_MS each running sandbox's agent is asked for its metrics and the answer is added to
 * the sandbox's series. A series is bounded and still covers the whole life of its sandbox: when it
 * is full, every second sample is dropped and from then on only every second one is kept, so old
 * sandboxes have a coarser series rather than a cut-off one.
 *
 * The figures are the guest's own word. They are checked for being numbers within sane limits and
 * are otherwise only passed on; nothing in the daemon depends on them.
 */
#include <errno.h>
#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/json.h"
#include "base/str.h"
#include "e2b_internal.h"
#include "map.h"
#include "proxy.h"

#define TICK_MS 1000
#define SAMPLE_MS 5000
#define SAMPLE_TIMEOUT_MS 10000
#define ANSWER_MAX 4096
#define SERIES_MAX 1024
#define BYTES_MAX ((double) (1ULL << 60))
#define IDS_MAX 100

struct sample {
        int64_t unix_ms;
        double cpu_pct;
        uint32_t cpus;
        int64_t mem_used, mem_total, mem_cache, disk_used, disk_total;
};

/* A request that came before there was a first sample. */
struct waiter {
        struct waiter *next;
        struct api_req *r;
        int64_t start_s, end_s;
};

struct series {
        struct e2b_metrics *all;
        char id[ID_SIZE];
        struct sample *samples; /* oldest first */
        size_t n, cap;
        unsigned keep_every, skipped; /* thinning out */
        uint64_t due;                 /* loop time of the next sample */
        struct proxy_call *call;
        struct waiter *waiters;
};

struct e2b_metrics {
        struct app *app;
        struct map *by_id;
        uv_timer_t tick;
};

static json_t *sample_json(const struct sample *s) {
        return json_pack("{s:o, s:I, s:i, s:f, s:I, s:I, s:I, s:I, s:I}", "timestamp", e2b_time(s->unix_ms),
                         "timestampUnix", (json_int_t) (s->unix_ms / 1000), "cpuCount", (int) s->cpus, "cpuUsedPct",
                         s->cpu_pct, "memUsed", (json_int_t) s->mem_used, "memTotal", (json_int_t) s->mem_total,
                         "memCache", (json_int_t) s->mem_cache, "diskUsed", (json_int_t) s->disk_used, "diskTotal",
                         (json_int_t) s->disk_total);
}

static json_t *series_json(const struct series *s, int64_t start_s, int64_t end_s) {
        json_t *list = json_array();

        for (size_t i = 0; s && i < s->n; i++) {
                int64_t at = s->samples[i].unix_ms / 1000;
                if (at >= start_s && at <= end_s)
                        (void) json_array_append_new(list, sample_json(&s->samples[i]));
        }
        return list;
}

/* --- a series --------------------------------------------------------------------------------- */

static void thin_out(struct series *s) {
        size_t kept = 0;

        for (size_t i = 0; i < s->n; i += 2)
                s->samples[kept++] = s->samples[i];
        s->n = kept;
        s->keep_every *= 2;
}

static int series_add(struct series *s, const struct sample *sample) {
        if (++s->skipped < s->keep_every && s->n > 0)
                return 0;
        s->skipped = 0;
        if (s->n == SERIES_MAX)
                thin_out(s);
        if (s->n == s->cap) {
                size_t cap = s->cap ? 2 * s->cap : 16;
                struct sample *more = reallocarray(s->samples, cap, sizeof(*more));
                if (!more)
                        return -ENOMEM;
                s->samples = more;
                s->cap = cap;
        }
        s->samples[s->n++] = *sample;
        return 0;
}

static void answer_waiters(struct series *s) {
        struct waiter *w = STEAL(s->waiters);

        while (w) {
                struct waiter *next = w->next;
                api_reply(w->r, 200, series_json(s, w->start_s, w->end_s));
                api_req_unref(w->r);
                free(w);
                w = next;
        }
}

static void series_free(struct series *s) {
        proxy_call_cancel(s->call);
        answer_waiters(s);
        map_remove(s->all->by_id, s->id);
        free(s->samples);
        free(s);
}

static struct series *series_get(struct e2b_metrics *m, const char *id) {
        struct series *s = map_get(m->by_id, id);

        if (s)
                return s;
        s = calloc(1, sizeof(*s));
        if (!s)
                return NULL;
        s->all = m;
        s->keep_every = 1;
        if (str_copy(s->id, sizeof(s->id), id) < 0 || map_put(m->by_id, s->id, s) < 0) {
                free(s);
                return NULL;
        }
        return s;
}

/* --- sampling --------------------------------------------------------------------------------- */

static int read_number(const json_t *obj, const char *key, double max, double *ret) {
        const json_t *v = json_object_get(obj, key);
        double d = json_is_number(v) ? json_number_value(v) : -1;

        if (!(d >= 0))
                return -EINVAL;
        *ret = d < max ? d : max;
        return 0;
}

static int read_bytes(const json_t *obj, const char *key, int64_t *ret) {
        double d;

        if (read_number(obj, key, BYTES_MAX, &d) < 0)
                return -EINVAL;
        *ret = (int64_t) d;
        return 0;
}

static int read_sample(const char *body, size_t n, struct sample *ret) {
        _cleanup_json_ json_t *j = NULL;
        struct sample s = { .unix_ms = clock_real_ms() };
        double cpus;

        if (json_parse(body, n, ANSWER_MAX, &j, NULL) < 0 || read_number(j, "cpu_count", LIMIT_CPUS_MAX, &cpus) < 0)
                return -EINVAL;
        s.cpus = (uint32_t) cpus;
        if (read_number(j, "cpu_used_pct", 100 * cpus, &s.cpu_pct) < 0 ||
            read_bytes(j, "mem_used", &s.mem_used) < 0 || read_bytes(j, "mem_total", &s.mem_total) < 0 ||
            read_bytes(j, "disk_used", &s.disk_used) < 0 || read_bytes(j, "disk_total", &s.disk_total) < 0)
                return -EINVAL;
        (void) read_bytes(j, "mem_cache", &s.mem_cache);
        *ret = s;
        return 0;
}

static void on_sample(void *arg, int err, const struct error *e, int status, const char *body, size_t n) {
        struct series *s = arg;
        struct sample sample;

        (void) e;
        s->call = NULL;
        if (err == 0 && status == 200 && read_sample(body, n, &sample) == 0)
                (void) series_add(s, &sample);
        answer_waiters(s);
}

static void sample_now(struct series *s, const struct sandbox *sb) {
        uv_loop_t *loop = s->all->app->loop;
        struct proxy_request rq = {
                .id = sb->id,
                .method = "GET",
                .target = "/metrics",
                .access_token = sb->token,
                .max_answer = ANSWER_MAX,
                .timeout_ms = SAMPLE_TIMEOUT_MS,
        };

        s->due = uv_now(loop) + SAMPLE_MS;
        if (!s->call)
                (void) proxy_call(s->all->app->proxy, &rq, on_sample, s, &s->call, NULL);
}

static void visit(void *arg, struct sandbox *sb) {
        struct e2b_metrics *m = arg;
        struct series *s = series_get(m, sb->id);

        if (s && uv_now(m->app->loop) >= s->due)
                sample_now(s, sb);
}

static bool runs(struct app *app, const char *id) {
        const struct sandbox *sb = sandbox_find(app, id);

        return sb && sb->state == SANDBOX_RUNNING;
}

static void on_tick(uv_timer_t *t) {
        struct e2b_metrics *m = t->data;
        struct sandbox_filter f = { .states = 1u << SANDBOX_RUNNING };
        char next[SANDBOX_CURSOR_SIZE];
        size_t pos = 0;

        (void) sandbox_list(m->app, &f, "", SIZE_MAX, visit, m, next, NULL);
        for (struct series *s; (s = map_next(m->by_id, &pos));)
                if (!runs(m->app, s->id))
                        series_free(s);
}

static void on_closed(uv_handle_t *h) {
        free(h->data);
}

int e2b_metrics_new(struct app *app, struct e2b_metrics **ret, struct error *err) {
        struct e2b_metrics *m = calloc(1, sizeof(*m));

        if (m)
                m->by_id = map_new();
        if (!m || !m->by_id) {
                free(m);
                return error_set(err, -ENOMEM, "no memory for metrics");
        }
        m->app = app;
        uv_timer_init(app->loop, &m->tick);
        m->tick.data = m;
        uv_timer_start(&m->tick, on_tick, TICK_MS, TICK_MS);
        uv_unref((uv_handle_t *) &m->tick);
        *ret = m;
        return 0;
}

void e2b_metrics_free(struct e2b_metrics *m) {
        if (!m)
                return;
        for (size_t pos = 0; map_count(m->by_id) > 0; pos = 0)
                series_free(map_next(m->by_id, &pos));
        map_free(m->by_id);
        uv_close((uv_handle_t *) &m->tick, on_closed);
}

/* --- routes ------------------------------------------------------------------------------------ */

/* Before the first sample of a fresh sandbox: takes it now and answers with it. */
static int wait_for_first(struct series *s, const struct sandbox *sb, struct api_req *r, int64_t start_s,
                          int64_t end_s) {
        struct waiter *w = calloc(1, sizeof(*w));

        if (!w)
                return -ENOMEM;
        sample_now(s, sb);
        if (!s->call) {
                free(w);
                return -EAGAIN;
        }
        *w = (struct waiter){ .next = s->waiters, .r = api_req_ref(r), .start_s = start_s, .end_s = end_s };
        s->waiters = w;
        return 0;
}

void e2b_get_metrics(struct api_req *r) {
        uint64_t start = 0, end = UINT32_MAX;
        int n1 = api_query_u64(r, "start", 0, UINT32_MAX, &start);
        int n2 = n1 < 0 ? n1 : api_query_u64(r, "end", 0, UINT32_MAX, &end);

        if (n2 < 0)
                return;
        if (start > end)
                return api_error(r, API_INVALID_ARGUMENT, "start is later than end");
        struct sandbox *sb = e2b_sandbox(r);
        if (!sb)
                return;
        struct series *s = series_get(r->app->e2b->metrics, sb->id);
        if (s && s->n == 0 && n1 == 0 && n2 == 0 && wait_for_first(s, sb, r, 0, UINT32_MAX) == 0)
                return;
        api_reply(r, 200, series_json(s, (int64_t) start, (int64_t) end));
}

void e2b_get_all_metrics(struct api_req *r) {
        _cleanup_free_ char *ids = NULL;
        struct e2b_metrics *m = r->app->e2b->metrics;
        unsigned count = 0;

        int n = api_query_str(r, "sandbox_ids", LIMIT_HTTP_HEAD, &ids);
        if (n < 0)
                return;
        if (n == 0)
                return api_error(r, API_INVALID_ARGUMENT, "sandbox_ids is missing");
        json_t *found = json_object();
        for (char *save, *id = strtok_r(ids, ",", &save); id; id = strtok_r(NULL, ",", &save)) {
                if (++count > IDS_MAX) {
                        json_decref(found);
                        return api_error(r, API_INVALID_ARGUMENT, "sandbox_ids: more than %d", IDS_MAX);
                }
                const struct series *s = runs(r->app, id) ? map_get(m->by_id, id) : NULL;
                if (s && s->n > 0)
                        (void) json_object_set_new(found, id, sample_json(&s->samples[s->n - 1]));
        }
        api_reply(r, 200, json_pack("{s:o}", "sandboxes", found));
}
