/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Theory of operation
 *
 * A running sandbox's agent is asked for its metrics now and then, and the answer is added to the
 * sandbox's series. An answer costs an emulated guest 30 ms and more, so an interval of seconds for
 * everyone would by itself use up what an idle sandbox may cost: sandboxes whose metrics somebody
 * reads are sampled every SAMPLE_MS, the others every IDLE_MS, and a reader who finds the last
 * sample old is given a new one.
 *
 * The figures are the guest's own word: nothing in the daemon depends on them, they are only passed
 * on.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/json.h"
#include "base/str.h"
#include "e2b_internal.h"
#include "map.h"
#include "proxy/e2b_series.h"
#include "proxy/proxy.h"

#define TICK_MS 1000
#define SAMPLE_MS 5000
#define IDLE_MS 120000
#define WANTED_MS 60000 /* so long after a request somebody is taken to be reading */
#define SAMPLE_TIMEOUT_MS 10000
#define IDS_MAX 100

/* A request that waits for a new sample. */
struct waiter {
        struct waiter *next;
        struct api_req *r;
        int64_t start_s, end_s;
};

struct sampled {
        struct e2b_metrics *all;
        char id[ID_SIZE];
        struct e2b_series series;
        uint64_t due;    /* loop time of the next sample */
        uint64_t wanted; /* loop time until which it is sampled often */
        uint64_t last;   /* loop time of the last sample, kept in the series or not; 0: none yet */
        struct proxy_call *call;
        struct waiter *waiters;
};

struct e2b_metrics {
        struct app *app;
        struct map *by_id;
        uv_timer_t tick;
};

/* --- sampled sandboxes ------------------------------------------------------------------------- */

static void answer_waiters(struct sampled *s) {
        struct waiter *w = STEAL(s->waiters);

        while (w) {
                struct waiter *next = w->next;
                api_reply(w->r, 200, e2b_series_json(&s->series, w->start_s, w->end_s));
                api_req_unref(w->r);
                free(w);
                w = next;
        }
}

static void sampled_free(struct sampled *s) {
        proxy_call_cancel(s->call);
        answer_waiters(s);
        map_remove(s->all->by_id, s->id);
        e2b_series_done(&s->series);
        free(s);
}

static struct sampled *sampled_get(struct e2b_metrics *m, const char *id) {
        struct sampled *s = map_get(m->by_id, id);

        if (s)
                return s;
        s = calloc(1, sizeof(*s));
        if (!s)
                return NULL;
        s->all = m;
        s->due = uv_now(m->app->loop) + IDLE_MS; /* most are gone by then, and cost nothing */
        if (str_copy(s->id, sizeof(s->id), id) < 0 || map_put(m->by_id, s->id, s) < 0) {
                free(s);
                return NULL;
        }
        return s;
}

/* --- sampling ---------------------------------------------------------------------------------- */

static void on_sample(void *arg, int err, const struct error *e, int status, const char *body, size_t n) {
        struct sampled *s = arg;
        struct e2b_sample sample;

        (void) e;
        s->call = NULL;
        if (err == 0 && status == 200 && e2b_sample_parse(body, n, clock_real_ms(), &sample) == 0) {
                s->last = uv_now(s->all->app->loop);
                (void) e2b_series_add(&s->series, &sample);
        }
        answer_waiters(s);
}

static void sample_now(struct sampled *s, const struct sandbox *sb) {
        uv_loop_t *loop = s->all->app->loop;
        struct proxy_request rq = {
                .id = sb->id,
                .method = "GET",
                .target = "/metrics",
                .access_token = sb->token,
                .max_answer = E2B_SAMPLE_BODY_MAX,
                .timeout_ms = SAMPLE_TIMEOUT_MS,
        };

        s->due = uv_now(loop) + (uv_now(loop) < s->wanted ? SAMPLE_MS : IDLE_MS);
        if (!s->call)
                (void) proxy_call(s->all->app->proxy, &rq, on_sample, s, &s->call, NULL);
}

static void visit(void *arg, struct sandbox *sb) {
        struct e2b_metrics *m = arg;
        struct sampled *s = sampled_get(m, sb->id);

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
        for (struct sampled *s; (s = map_next(m->by_id, &pos));)
                if (!runs(m->app, s->id))
                        sampled_free(s);
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
                sampled_free(map_next(m->by_id, &pos));
        map_free(m->by_id);
        uv_close((uv_handle_t *) &m->tick, on_closed);
}

/* --- routes ------------------------------------------------------------------------------------ */

/* Somebody reads: sample often from now on. */
static void want(struct sampled *s) {
        uint64_t now = uv_now(s->all->app->loop);

        s->wanted = now + WANTED_MS;
        if (s->due > now + SAMPLE_MS)
                s->due = now + SAMPLE_MS;
}

static bool is_fresh(const struct sampled *s) {
        return s->last && uv_now(s->all->app->loop) - s->last < SAMPLE_MS;
}

/* Takes a sample now and answers when it is there. */
static int wait_for_sample(struct sampled *s, const struct sandbox *sb, struct api_req *r, int64_t start_s,
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

        if (api_query_u64(r, "start", 0, UINT32_MAX, &start) < 0 || api_query_u64(r, "end", 0, UINT32_MAX, &end) < 0)
                return;
        if (start > end)
                return api_error(r, API_INVALID_ARGUMENT, "start is later than end");
        struct sandbox *sb = e2b_sandbox(r);
        if (!sb)
                return;
        struct sampled *s = sampled_get(r->app->e2b->metrics, sb->id);
        if (!s)
                return api_error(r, API_INTERNAL, "no memory");
        want(s);
        bool past = (int64_t) end * 1000 < clock_real_ms() - SAMPLE_MS;
        if (!past && !is_fresh(s) && wait_for_sample(s, sb, r, (int64_t) start, (int64_t) end) == 0)
                return;
        api_reply(r, 200, e2b_series_json(&s->series, (int64_t) start, (int64_t) end));
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
                struct sampled *s = runs(r->app, id) ? map_get(m->by_id, id) : NULL;
                if (!s)
                        continue;
                want(s);
                if (s->series.n > 0)
                        (void) json_object_set_new(found, id,
                                                   e2b_sample_json(&s->series.samples[s->series.n - 1]));
        }
        api_reply(r, 200, json_pack("{s:o}", "sandboxes", found));
}
