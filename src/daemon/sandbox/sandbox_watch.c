/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Watching a running sandbox. Two sources say that a VM has ended: its warden (event, or the answer
 * to QUERY) and cspace-rootd (EXITED). A lost connection to the warden alone says nothing about the
 * VM, which runs on without it: cspace-rootd starts another warden that adopts it, so cspaced
 * connects again for WATCH_GIVE_UP_MS and asks what is there.
 */

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "app.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/str.h"
#include "egress/egress.h"
#include "peers/warden.h"
#include "proxy/proxy.h"
#include "sandbox_flow.h"
#include "timer.h"
#include "warm.h"

#define WATCH_GIVE_UP_MS 20000
#define WATCH_RETRY_MS 200
#define QUERY_TIMEOUT_MS 10000
#define RESUME_TIMEOUT_MS 60000
#define ANSWERS_TIMEOUT_MS 2000 /* for the warden to say whether its guest answers */
#define SILENT_MS 30000         /* a request that timed out says this long that the guest does not answer */

/* ---- failure ------------------------------------------------------------------------------- */

void sandbox_fail(struct app *app, struct sandbox *s, const char *reason) {
        if (s->state == SANDBOX_POOLED) {
                warm_lost(app, s, reason);
                return;
        }
        bool ran = s->started_ms != 0;
        app->counters.lost += ran;
        if (sandbox_move(app, s, SANDBOX_FAILED) < 0)
                return;
        log_warn("sandbox %s failed: %s", s->id, reason);
        size_t n = strnlen(reason, sizeof s->reason - 1);
        memmove(s->reason, reason, n);
        s->reason[n] = 0;
        str_make_utf8(s->reason);
        proxy_drop(app->proxy, s->id);
        sandbox_unwatch(s);
        int64_t keep = clock_real_ms() + SANDBOX_FAILED_KEEP_MS;
        if (!ran && (!s->expires_ms || s->expires_ms > keep))
                s->expires_ms = keep;
        expiry_changed(app);
        struct db_batch *b = db_batch_new();
        sandbox_row_update(s, b);
        (void) db_batch_submit(app->db, b, NULL, NULL);
        sandbox_log(app, s, "error", "failed", "%s", s->reason);
        if (ran)
                life_salvage(app, s);
        else if (removal_start(app, REMOVAL_PLACEMENT, s->id, NULL, NULL) < 0)
                log_error("sandbox %s: out of memory, what it has on this host stays until it is deleted", s->id);
}

void sandbox_vm_ended(struct app *app, const char *id, const char *what) {
        struct sandbox *s = sandbox_find_all(app, id);
        if (s && strcmp(what, "gateway") == 0)
                egress_gateway_ended(s);
        if (!s || strcmp(what, "vm") != 0)
                return; /* a lost warden shows by its connection */
        if (s->create)
                create_vm_ended(s->create, "the VM ended");
        else if (s->life)
                life_vm_ended(s->life, "the VM ended");
        else if (s->state == SANDBOX_RUNNING || s->state == SANDBOX_PAUSED || s->state == SANDBOX_POOLED)
                sandbox_fail(app, s, "the VM ended");
}

/* ---- connection ---------------------------------------------------------------------------- */

struct watch {
        struct app *app;
        struct sandbox *s;
        struct warden *warden;
        struct timer *timer;
        uint64_t give_up_ms; /* monotonic; 0 while all is well */
        bool querying, resuming;
};

static void connect_again(void *arg);
static void query(void *arg);

/* A move that has begun and has not taken the connection over yet is told, as cspace-rootd's word would tell it. */
static void vm_lost(struct watch *w, const char *reason) {
        if (w->s->life)
                life_vm_ended(w->s->life, reason);
        else
                sandbox_fail(w->app, w->s, reason);
}

static void watch_lost(struct watch *w) {
        warden_free(w->warden);
        w->warden = NULL;
        uint64_t now = clock_mono_ms();
        if (!w->give_up_ms) {
                w->give_up_ms = now + WATCH_GIVE_UP_MS;
                sandbox_log(w->app, w->s, "warn", "warden_lost", "the connection to the warden was lost");
        }
        if (now >= w->give_up_ms) {
                vm_lost(w, "the warden ended");
                return;
        }
        timer_cancel(w->timer);
        w->timer = timer_start(w->app->loop, WATCH_RETRY_MS, connect_again, w);
}

/* A VM that runs for a reason does not: the host has no room for what it writes. */
static void on_standstill(struct watch *w, const char *reason) {
        bool stands = reason[0] != 0;
        if (w->s->stands == stands)
                return;
        w->s->stands = stands;
        sandbox_log(w->app, w->s, "warn", "no_room", "%s", stands ? reason : "the host has room again, and the guest goes on");
}

static void on_resumed(void *arg, int err, const struct error *e, struct ipc_packet *p) {
        (void) p;
        struct watch *w = arg;
        w->resuming = false;
        if (err == -EBUSY && !w->timer) /* that operation's part is not over yet */
                w->timer = timer_start(w->app->loop, WATCH_RETRY_MS, query, w);
        else if (err < 0 && err != -ECANCELED && err != -ECONNRESET)
                log_warn("sandbox %s: its VM was found paused and could not be resumed: %s", w->s->id, e->msg);
}

/* Found paused, and nobody was told that it is, or the row would say so: it was paused for an operation of the cspaced before,
 * which may come about after this one has asked how it is. */
static void resume(struct watch *w) {
        if (!w->resuming && warden_call(w->warden, IPC_RESUME, NULL, 0, RESUME_TIMEOUT_MS, on_resumed, w, NULL) >= 0)
                w->resuming = true;
}

static void on_state(struct watch *w, const char *state, const char *reason) {
        bool to_run = strcmp(state, "paused") == 0 && w->s->state == SANDBOX_RUNNING;
        if (strcmp(state, "running") == 0 || (to_run && reason[0]))
                on_standstill(w, reason);
        if (to_run)
                resume(w);
        if (strcmp(state, "failed") != 0 && strcmp(state, "exited") != 0)
                return;
        vm_lost(w, reason[0] ? reason : "the VM ended");
}

static void on_event(void *arg, const struct ipc_warden_event *e) {
        on_state(arg, e->state, e->reason);
}

static void on_close(void *arg, int err) {
        (void) err;
        watch_lost(arg);
}

static const struct warden_handler handler = { .on_event = on_event, .on_close = on_close };

static void on_query(void *arg, int err, const struct error *e, struct ipc_packet *p) {
        (void) e;
        struct watch *w = arg;
        struct ipc_warden_state st;
        w->querying = false;
        if (err == -ECANCELED || err == -ECONNRESET)
                return; /* given up, or on_close comes next */
        if (err < 0 || ipc_warden_state_decode(p->body, p->body_n, &st) < 0) {
                watch_lost(w);
                return;
        }
        if (w->give_up_ms && (strcmp(st.state, "paused") == 0 || strcmp(st.state, "running") == 0)) {
                w->give_up_ms = 0;
                sandbox_log(w->app, w->s, "info", "warden_back", "connected to the warden again");
        }
        on_state(w, st.state, st.reason);
}

static void query(void *arg) {
        struct watch *w = arg;
        w->timer = NULL;
        if (w->querying)
                return;
        if (warden_call(w->warden, IPC_QUERY, NULL, 0, QUERY_TIMEOUT_MS, on_query, w, NULL) < 0)
                watch_lost(w);
        else
                w->querying = true;
}

static void connect_again(void *arg) {
        struct watch *w = arg;
        w->timer = NULL;
        if (warden_connect(w->app, w->s->id, &handler, w, &w->warden, NULL) < 0)
                watch_lost(w);
        else
                query(w);
}

void sandbox_watch_ask(struct sandbox *s) {
        struct watch *w = s->watch;
        if (w && w->warden && !w->querying && warden_call(w->warden, IPC_QUERY, NULL, 0, QUERY_TIMEOUT_MS, on_query, w, NULL) >= 0)
                w->querying = true;
}

void sandbox_watch(struct app *app, struct sandbox *s, struct warden *warden) {
        if (s->watch) {
                warden_free(warden);
                return;
        }
        egress_start(app, s);
        struct watch *w = calloc(1, sizeof *w);
        if (!w) {
                warden_free(warden);
                log_error("sandbox %s: out of memory, its end will not be seen", s->id);
                return;
        }
        w->app = app;
        w->s = s;
        s->watch = w;
        s->stands = false;
        if (warden) {
                w->warden = warden;
                warden_set_handler(warden, &handler, w);
        } else {
                w->give_up_ms = clock_mono_ms() + WATCH_GIVE_UP_MS;
                w->timer = timer_start(app->loop, 0, connect_again, w);
        }
}

struct warden *sandbox_unwatch_keep(struct sandbox *s) {
        struct watch *w = s->watch;
        if (!w)
                return NULL;
        s->watch = NULL;
        timer_cancel(w->timer);
        if (w->querying || w->resuming) { /* the answer has us as argument */
                warden_free(w->warden);
                w->warden = NULL;
        }
        struct warden *warden = w->warden;
        free(w);
        return warden;
}

void sandbox_unwatch(struct sandbox *s) {
        egress_stop(s);
        warden_free(sandbox_unwatch_keep(s));
}

/* ---- does the guest answer? ---------------------------------------------------------------- */

struct question {
        struct sandbox *s;
        sandbox_answers_cb cb;
        void *arg;
};

static void on_told(void *arg, int err, const struct error *e, struct ipc_packet *p) {
        (void) e;
        struct question *q = arg;
        struct ipc_warden_state st;
        bool known = err >= 0 && ipc_warden_state_decode(p->body, p->body_n, &st) >= 0 && strcmp(st.state, "running") == 0;
        bool silent = q->s->silent_ms && clock_mono_ms() - q->s->silent_ms < SILENT_MS;
        if (q->cb)
                q->cb(q->arg, known || silent, known && st.link_up && !silent);
        sandbox_unref(q->s);
        free(q);
}

int sandbox_answers(struct sandbox *s, sandbox_answers_cb cb, void *arg) {
        if (s->state != SANDBOX_RUNNING || !s->watch || !s->watch->warden)
                return -ENOTCONN;
        struct question *q = calloc(1, sizeof *q);
        if (!q)
                return -ENOMEM;
        *q = (struct question){ .s = sandbox_ref(s), .cb = cb, .arg = arg };
        int r = warden_call(s->watch->warden, IPC_QUERY, NULL, 0, ANSWERS_TIMEOUT_MS, on_told, q, NULL);
        if (r < 0) {
                sandbox_unref(s);
                free(q);
        }
        return r;
}

void sandbox_heard(struct app *app, struct sandbox *s, bool answered) {
        if (!s)
                return;
        s->silent_ms = answered ? 0 : clock_mono_ms();
        if (answered || s->state != SANDBOX_RUNNING)
                return;
        sandbox_log(app, s, "warn", "guest_silent", "the guest does not answer");
        (void) sandbox_answers(s, NULL, NULL); /* makes the warden send a ping: soon it knows for itself */
}
