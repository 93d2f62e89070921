/* SPDX-License-Identifier: Apache-2.0 */

#include "audit_store.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "app.h"
#include "audit_log.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "base/id.h"
#include "base/log.h"
#include "base/str.h"
#include "egress/egress.h"
#include "sandbox/sandbox.h"
#include "timer.h"

#define GROUP_MAX 256
#define BATCH_MAX (1024u * 1024) /* a batch, written anew */

enum job_kind { JOB_APPEND, JOB_RETIRE, JOB_SWEEP };

struct job {
        struct job *next;
        enum job_kind kind;
        char id[ID_SIZE];
        audit_done_cb cb;
        void *arg;
        uint64_t dropped;
        int64_t before_ms;  /* SWEEP */
        char (*ids)[ID_SIZE]; /* SWEEP: sandboxes that exist */
        size_t n_ids;
        struct audit_uses uses;
        int err;
        struct error e;
        size_t n;
        char lines[];
};

struct audit_watch {
        struct audit_store *store;
        char id[ID_SIZE];
        void (*fn)(void *arg, bool ended);
        void *arg;
        bool pending, ended; /* to be told in this turn */
        struct audit_watch *prev, *next;
};

struct audit_store {
        struct app *app;
        struct audit_log *log;
        struct timer *sweep;
        struct audit_watch *watches;
        size_t n_watches;
        uv_async_t async;
        uv_thread_t thread;
        uv_mutex_t lock; /* guards all below */
        uv_cond_t wake;
        struct job *waiting, **waiting_end;
        struct job *finished, **finished_end;
        size_t waiting_bytes;
        bool stop;
        struct audit_stats stats;
};

/* ---- the thread ---------------------------------------------------------------------------- */

static void tally_one(struct audit_tally *t, const struct audit *a) {
        uint64_t n = 1 + a->repeated % INT32_MAX;
        t->verdicts[a->kind][a->allow] += n;
        if (!a->allow)
                t->denied[a->reason] += n;
        if (a->kind == AUDIT_CONNECT) { /* which has those of its requests in it */
                t->bytes_out += a->bytes_out;
                t->bytes_in += a->bytes_in;
        }
}

static void tally_add(struct audit_tally *to, const struct audit_tally *t) {
        for (size_t k = 0; k < N_AUDIT_KINDS; k++)
                for (size_t v = 0; v < 2; v++)
                        to->verdicts[k][v] += t->verdicts[k][v];
        for (size_t i = 0; i < N_POLICY_REASONS; i++)
                to->denied[i] += t->denied[i];
        to->bytes_out += t->bytes_out;
        to->bytes_in += t->bytes_in;
}

static void count_use(struct audit_uses *u, const struct audit *a) {
        size_t i = 0;
        if (!a->allow || !a->binding[0])
                return;
        while (i < u->n && strcmp(u->at[i].binding, a->binding) != 0)
                i++;
        if (i == AUDIT_USES_MAX)
                return;
        memcpy(u->at[i].binding, a->binding, sizeof a->binding);
        u->at[i].n += 1 + a->repeated % INT32_MAX;
        u->n = i == u->n ? i + 1 : u->n;
}

size_t audit_normalise(const char *id, const void *lines, size_t n, struct buf *out, size_t *ret_good, struct audit_uses *uses) {
        const char *at = lines, *end = at + n;
        size_t bad = 0, good = 0;
        while (at < end) {
                const char *stop = memchr(at, '\n', (size_t) (end - at));
                size_t len = (size_t) ((stop ? stop : end) - at);
                struct audit a;
                if (len > 0) {
                        bool fine = len < AUDIT_LINE_MAX && audit_parse(at, len, &a, NULL) == 0;
                        if (fine) {
                                (void) str_copy(a.sandbox, sizeof a.sandbox, id);
                                fine = audit_json(&a, out) == 0;
                        }
                        if (fine) {
                                count_use(uses, &a);
                                tally_one(&uses->tally, &a);
                        }
                        good += fine;
                        bad += !fine;
                }
                at += len + 1;
        }
        *ret_good = good;
        return bad;
}

/* That there is a gap is a line too. */
static void note_lost(const struct job *j, struct buf *out) {
        char time[RFC3339_SIZE];
        if (!j->dropped)
                return;
        clock_rfc3339(clock_real_ms(), time);
        (void) buf_printf(out, "{\"time\":\"%s\",\"kind\":\"lost\",\"sandbox\":\"%s\",\"records\":%llu}\n", time, j->id,
                          (unsigned long long) j->dropped);
}

static void append(struct audit_store *a, struct job *j, struct audit_stats *add) {
        _cleanup_buf_ struct buf out = BUF_INIT(BATCH_MAX);
        size_t good = 0;
        note_lost(j, &out);
        add->bad += audit_normalise(j->id, j->lines, j->n, &out, &good, &j->uses);
        j->err = audit_log_append(a->log, j->id, buf_data(&out), out.len, &j->e);
        add->records += j->err >= 0 ? good : 0;
        add->lost += j->dropped;
        if (j->err >= 0)
                tally_add(&add->tally, &j->uses.tally);
}

static int by_id(const void *a, const void *b) {
        return strcmp(a, b);
}

static bool wanted(void *arg, const char *id) {
        const struct job *j = arg;
        return bsearch(id, j->ids, j->n_ids, sizeof *j->ids, by_id) != NULL;
}

static void run_group(struct audit_store *a, struct job *group, struct audit_stats *add) {
        for (struct job *j = group; j; j = j->next) {
                if (j->kind == JOB_APPEND)
                        append(a, j, add);
                else if (j->kind == JOB_RETIRE)
                        audit_log_retire(a->log, j->id);
                else
                        (void) audit_log_sweep(a->log, j->before_ms, wanted, j);
        }
        for (struct job *j = group; j; j = j->next) {
                struct error e = ERROR_INIT;
                int r = j->kind == JOB_APPEND && j->err >= 0 ? audit_log_sync(a->log, j->id, &e) : 0;
                for (struct job *k = j; r < 0 && k; k = k->next) /* later ones find nothing left to sync */
                        if (k->kind == JOB_APPEND && k->err >= 0 && strcmp(k->id, j->id) == 0) {
                                k->err = r;
                                k->e = e;
                        }
        }
        add->bytes = audit_log_bytes(a->log);
}

static struct job *take_group(struct audit_store *a) {
        struct job *first = a->waiting, **end = &first;
        for (size_t n = 0; n < GROUP_MAX && *end; n++) {
                a->waiting_bytes -= (*end)->n;
                end = &(*end)->next;
        }
        a->waiting = *end;
        *end = NULL;
        if (!a->waiting)
                a->waiting_end = &a->waiting;
        return first;
}

static void thread_main(void *arg) {
        struct audit_store *a = arg;
        uv_mutex_lock(&a->lock);
        for (;;) {
                while (!a->waiting && !a->stop)
                        uv_cond_wait(&a->wake, &a->lock);
                struct job *group = take_group(a);
                if (!group)
                        break;
                struct audit_stats add = { 0 };
                uv_mutex_unlock(&a->lock);
                run_group(a, group, &add);
                uv_mutex_lock(&a->lock);
                a->stats.records += add.records;
                a->stats.bad += add.bad;
                a->stats.lost += add.lost;
                tally_add(&a->stats.tally, &add.tally);
                a->stats.bytes = add.bytes;
                *a->finished_end = group;
                while (*a->finished_end)
                        a->finished_end = &(*a->finished_end)->next;
                (void) uv_async_send(&a->async);
        }
        uv_mutex_unlock(&a->lock);
}

/* ---- jobs ---------------------------------------------------------------------------------- */

static struct job *job_new(enum job_kind kind, const char *id, const void *lines, size_t n) {
        struct job *j = calloc(1, sizeof *j + n);
        if (!j)
                return NULL;
        j->kind = kind;
        j->n = n;
        if (n > 0)
                memcpy(j->lines, lines, n);
        if (str_copy(j->id, sizeof j->id, id) < 0) {
                free(j);
                return NULL;
        }
        return j;
}

static void job_free(struct job *j) {
        free(j->ids);
        free(j);
}

static int submit(struct audit_store *a, struct job *j) {
        if (!j)
                return -ENOMEM;
        uv_mutex_lock(&a->lock);
        bool room = a->waiting_bytes + j->n <= AUDIT_QUEUE_BYTES && !a->stop;
        if (room) {
                *a->waiting_end = j;
                a->waiting_end = &j->next;
                a->waiting_bytes += j->n;
                uv_cond_signal(&a->wake);
        }
        uv_mutex_unlock(&a->lock);
        if (room)
                return 0;
        job_free(j);
        return -ENOBUFS;
}

static void tell_watchers(struct audit_store *a, const struct job *j) {
        if (j->err < 0 || j->kind == JOB_SWEEP)
                return;
        for (struct audit_watch *w = a->watches; w; w = w->next)
                if (strcmp(w->id, j->id) == 0) {
                        w->pending = true;
                        w->ended = w->ended || j->kind == JOB_RETIRE;
                }
        /* fn may end watches, also others. */
        for (struct audit_watch *w = a->watches; w;) {
                if (!w->pending) {
                        w = w->next;
                        continue;
                }
                w->pending = false;
                w->fn(w->arg, w->ended);
                w = a->watches;
        }
}

static void deliver(struct audit_store *a) {
        static struct log_limit limit;
        unsigned dropped;
        uv_mutex_lock(&a->lock);
        struct job *j = a->finished;
        a->finished = NULL;
        a->finished_end = &a->finished;
        uv_mutex_unlock(&a->lock);
        while (j) {
                struct job *next = j->next;
                if (j->err < 0 && log_limit_pass(&limit, 5, &dropped))
                        log_error("audit records of sandbox %s were not stored: %s", j->id, j->e.msg);
                for (size_t i = 0; j->err >= 0 && i < j->uses.n; i++)
                        egress_count_use(a->app, j->id, j->uses.at[i].binding, j->uses.at[i].n);
                if (j->cb)
                        j->cb(j->arg, j->err, j->err < 0 ? &j->e : NULL);
                tell_watchers(a, j);
                job_free(j);
                j = next;
        }
}

static void on_async(uv_async_t *h) {
        deliver(h->data);
}

int audit_store_append(struct app *app, const char *id, const void *lines, size_t n, uint64_t dropped, audit_done_cb cb,
                       void *arg) {
        struct job *j = app->audit ? job_new(JOB_APPEND, id, lines, n) : NULL;
        if (!j)
                return -ENOMEM;
        j->dropped = dropped;
        j->cb = cb;
        j->arg = arg;
        return submit(app->audit, j);
}

void audit_store_retire(struct app *app, const char *id) {
        if (app->audit && submit(app->audit, job_new(JOB_RETIRE, id, NULL, 0)) < 0)
                log_warn("sandbox %s: out of memory, its audit log is kept from its last record on", id);
}

void audit_store_stats(struct app *app, struct audit_stats *ret) {
        *ret = (struct audit_stats){ 0 };
        if (!app->audit)
                return;
        uv_mutex_lock(&app->audit->lock);
        *ret = app->audit->stats;
        uv_mutex_unlock(&app->audit->lock);
}

/* ---- sweep --------------------------------------------------------------------------------- */

struct ids {
        char (*at)[ID_SIZE];
        size_t n, cap;
};

static void add_id(void *arg, struct sandbox *s) {
        struct ids *l = arg;
        if (l->n < l->cap)
                memcpy(l->at[l->n++], s->id, ID_SIZE);
}

static void sweep(void *arg) {
        struct audit_store *a = arg;
        const struct sandbox_filter all = { 0 };
        char next[SANDBOX_CURSOR_SIZE];
        struct ids ids = { .cap = sandbox_count(a->app, 0) };
        a->sweep = timer_start(a->app->loop, AUDIT_SWEEP_MS, sweep, a);
        struct job *j = job_new(JOB_SWEEP, "", NULL, 0);
        ids.at = j ? calloc(ids.cap + 1, sizeof *ids.at) : NULL;
        if (!ids.at || sandbox_list(a->app, &all, "", ids.cap + 1, add_id, &ids, next, NULL) < 0) {
                free(ids.at);
                free(j);
                return;
        }
        qsort(ids.at, ids.n, sizeof *ids.at, by_id);
        j->ids = ids.at;
        j->n_ids = ids.n;
        j->before_ms = clock_real_ms() - (int64_t) a->app->conf.audit_keep_s * 1000;
        (void) submit(a, j);
}

/* ---- reading ------------------------------------------------------------------------------- */

struct read {
        uv_work_t work;
        struct app *app;
        int dirfd;
        char id[ID_SIZE];
        const struct audit_query *query;
        struct audit_place from;
        size_t limit;
        struct audit_page page;
        int err;
        struct error e;
        audit_read_cb cb;
        void *arg;
};

static void do_read(uv_work_t *w) {
        struct read *r = w->data;
        r->err = audit_read(r->dirfd, r->id, r->query, r->from, r->limit, &r->page, &r->e);
}

static void on_read(uv_work_t *w, int status) {
        struct read *r = w->data;
        if (r->app->stopping) /* its asker may look at parts that are gone */
                r->err = error_set(&r->e, -ECANCELED, "cspaced is stopping");
        else if (status < 0 && r->err >= 0)
                r->err = error_errno(&r->e, status, "the audit log could not be read");
        r->cb(r->arg, r->err, &r->e, &r->page);
        buf_done(&r->page.lines);
        free(r);
}

int audit_store_read(struct app *app, const char *id, const struct audit_query *q, struct audit_place from, size_t limit,
                     audit_read_cb cb, void *arg) {
        struct read *r = app->audit ? calloc(1, sizeof *r) : NULL;
        if (!r)
                return -ENOMEM;
        *r = (struct read){ .app = app, .dirfd = audit_log_dirfd(app->audit->log), .query = q, .from = from, .limit = limit,
                            .page = { .lines = BUF_INIT(AUDIT_PAGE_BYTES) }, .cb = cb, .arg = arg };
        r->work.data = r;
        int rc = str_copy(r->id, sizeof r->id, id);
        if (rc >= 0)
                rc = uv_queue_work(app->loop, &r->work, do_read, on_read);
        if (rc < 0)
                free(r);
        return rc;
}

int audit_store_watch(struct app *app, const char *id, void (*fn)(void *arg, bool ended), void *arg, struct audit_watch **ret) {
        struct audit_store *a = app->audit;
        if (!a || a->n_watches >= AUDIT_WATCHERS_MAX)
                return -EAGAIN;
        struct audit_watch *w = calloc(1, sizeof *w);
        if (!w || str_copy(w->id, sizeof w->id, id) < 0) {
                free(w);
                return -ENOMEM;
        }
        w->store = a;
        w->fn = fn;
        w->arg = arg;
        w->next = a->watches;
        if (w->next)
                w->next->prev = w;
        a->watches = w;
        a->n_watches++;
        *ret = w;
        return 0;
}

void audit_store_unwatch(struct audit_watch *w) {
        if (!w)
                return;
        *(w->prev ? &w->prev->next : &w->store->watches) = w->next;
        if (w->next)
                w->next->prev = w->prev;
        w->store->n_watches--;
        free(w);
}

/* ---- start and end ------------------------------------------------------------------------- */

static void on_async_closed(uv_handle_t *h) {
        free(h->data);
}

int audit_store_new(struct app *app, struct audit_store **ret, struct error *err) {
        char path[CONF_STR_MAX + 32];
        struct audit_store *a = calloc(1, sizeof *a);
        int r = a ? conf_data_path(&app->conf, "audit", path, sizeof path) : -ENOMEM;
        if (r < 0) {
                free(a);
                return error_errno(err, r, "could not start the audit log");
        }
        a->app = app;
        a->waiting_end = &a->waiting;
        a->finished_end = &a->finished;
        r = audit_log_open(path, app->conf.audit_sandbox_bytes, app->conf.audit_total_bytes, &a->log, err);
        if (r >= 0)
                r = uv_async_init(app->loop, &a->async, on_async);
        if (r < 0) {
                audit_log_free(a->log);
                free(a);
                return r;
        }
        a->async.data = a;
        (void) uv_mutex_init(&a->lock);
        (void) uv_cond_init(&a->wake);
        r = uv_thread_create(&a->thread, thread_main, a);
        if (r < 0) {
                audit_log_free(a->log);
                uv_close((uv_handle_t *) &a->async, on_async_closed);
                return error_errno(err, r, "could not start the audit log's thread");
        }
        a->stats.bytes = audit_log_bytes(a->log);
        a->sweep = timer_start(app->loop, 0, sweep, a);
        *ret = a;
        return 0;
}

void audit_store_free(struct audit_store *a) {
        if (!a)
                return;
        timer_cancel(a->sweep);
        uv_mutex_lock(&a->lock);
        a->stop = true;
        uv_cond_signal(&a->wake);
        uv_mutex_unlock(&a->lock);
        (void) uv_thread_join(&a->thread);
        deliver(a);
        while (a->watches)
                audit_store_unwatch(a->watches);
        audit_log_free(a->log);
        uv_mutex_destroy(&a->lock);
        uv_cond_destroy(&a->wake);
        uv_close((uv_handle_t *) &a->async, on_async_closed);
}
