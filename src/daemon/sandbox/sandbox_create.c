/* SPDX-License-Identifier: Apache-2.0 */

/*
 * The flow of a create:
 *
 *   VARIANT   wait for the size variant to be there (made at its first use)
 *   PLACE     cspace-rootd gives it namespace, disk, warden
 *   IDENTIFY  the warden restores, gives the VM its identity, and says that the agent is ready
 *
 * One taken from the warm pool starts at IDENTIFY. After a restart of cspaced a CREATING sandbox that
 * has a placement goes on with QUERY: its warden knows whether it got its identity, and is asked
 * again while it still gives the one that the cspaced before had sent. If that fails, the
 * placement is removed and the flow starts over, once.
 *
 * A VM that is to go on from the image of a process, and does not, is placed once more, from the devices' state beside that image: what
 * is damaged in such an image shows in no other way (its size and host are looked at before). When that does it, the
 * image of the process is removed, and a variant made anew.
 *
 * RESTORING and STARTING are the same from PLACE on, with an image in the place of the template: when that fails the
 * sandbox is what it was before (life_fall_back()), for nothing of the image was changed. A copy of a fork has no
 * operation of its own; what becomes of it is told to the fork.
 *
 * A flow ends in three ways: ready, failed, or cancelled by a delete. A request to cspace-rootd that
 * is out is always waited for, so that a REMOVE never overtakes a PLACE.
 */

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "app.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/str.h"
#include "checkpoint.h"
#include "create.h"
#include "egress/egress.h"
#include "fork.h"
#include "peers/patience.h"
#include "peers/rootd.h"
#include "peers/warden.h"
#include "sandbox_flow.h"
#include "store/op.h"
#include "template/variant.h"
#include "timer.h"

#define PLACE_TIMEOUT_MS 60000
#define IDENTIFY_TIMEOUT_MS 90000
#define THAW_TIMEOUT_MS 30000 /* where there is another way, should the process hang */
#define BOOT_TIMEOUT_MS 200000 /* STARTING: a kernel that hangs is started over */
#define QUERY_TIMEOUT_MS 10000
#define CONNECT_LOOK_MS 50
#define QUERY_GAP_MS 50

enum stage { STAGE_VARIANT, STAGE_PLACE, STAGE_IDENTIFY, STAGE_QUERY, STAGE_REMOVE };

struct create {
        struct app *app;
        struct sandbox *s; /* a reference */
        char op_id[ID_SIZE];
        char image[ID_SIZE]; /* at the end: what is not needed any more */
        struct image_hold hold; /* of that */
        enum stage stage;
        uint64_t t0_us;
        struct timer *timer; /* until cspace-rootd is there */
        struct patience rootd, wardens;
        uint64_t query_until_ms; /* monotonic */
        struct variant_wait *variant;
        struct warden *warden;
        bool asked;      /* cspace-rootd owes an answer */
        bool started_over;
        bool unclear;    /* what a cspace-rootd that has ended left is not removed yet */
        bool thawed;     /* placed from the image of a process */
        bool snapshot;   /* not from that any more */
        bool resumed;    /* after a restart of cspaced */
        bool doomed;     /* fail when the answer is there */
        enum api_code doom_code;
        char doom[ERROR_MSG_MAX];
        bool canceled;
        void (*on_canceled)(void *arg);
        void *cancel_arg;
};

static void step_variant(struct create *c);
static void step_place(struct create *c);
static void query(struct create *c);
static void start_over(struct create *c);

/* ---- ends ---------------------------------------------------------------------------------- */

static void create_free(struct create *c) {
        timer_cancel(c->timer);
        variant_wait_cancel(c->variant);
        struct warden *w = c->warden;
        c->warden = NULL;
        warden_free(w);
        c->s->create = NULL;
        sandbox_unref(c->s);
        free(c);
}

/* Not made, but restored or started. */
static bool waking(const struct sandbox *s) {
        return s->state == SANDBOX_RESTORING || s->state == SANDBOX_STARTING;
}

static void end_canceled(struct create *c) {
        struct db_batch *b = db_batch_new();
        struct op *o = op_find(c->app, c->op_id);
        if (o) {
                op_fail(c->app, o, b, API_CANCELED, "the sandbox was deleted meanwhile");
                (void) db_batch_submit(c->app->db, b, NULL, NULL);
        } else {
                db_batch_free(b);
        }
        void (*done)(void *) = c->on_canceled;
        void *arg = c->cancel_arg;
        create_free(c);
        done(arg);
}

static bool has_another_way(struct create *c, const char *why) {
        if (!c->thawed || c->snapshot)
                return false;
        sandbox_log(c->app, c->s, "warn", "restore", "the image of its process did not go on (%s): once more, from its snapshot", why);
        c->snapshot = true;
        c->doomed = false;
        egress_stop(c->s);
        start_over(c);
        return true;
}

/* How it came to run says what the image of its process is worth. `image`: what it was restored from, "" the variant. */
static void judge_process(struct app *app, const struct sandbox *s, const char *image) {
        if (image[0])
                (void) removal_start(app, REMOVAL_PROCESS, image, NULL, NULL);
        else
                variant_damaged(app, s->digest, s->memory_mb, s->cpus);
}

static void end_failed(struct create *c, enum api_code code, const char *why) {
        struct app *app = c->app;
        if (c->asked) {
                c->doomed = true;
                c->doom_code = code;
                (void) snprintf(c->doom, sizeof c->doom, "%s", why);
                return;
        }
        if (c->canceled) {
                end_canceled(c);
                return;
        }
        if (app->stopping) { /* the next cspaced goes on with it */
                create_free(c);
                return;
        }
        if (has_another_way(c, why))
                return;
        struct sandbox *s = sandbox_ref(c->s);
        struct op *o = op_find(app, c->op_id);
        if (s->fork) { /* it never ran: there is nothing to go back to */
                create_free(c);
                egress_stop(s);
                app->counters.creates_failed++;
                sandbox_log(app, s, "error", "failed", "%s", why);
                fork_member_failed(app, s, code, why);
                sandbox_unref(s);
                return;
        }
        if (waking(s)) {
                char op_id[ID_SIZE];
                memcpy(op_id, c->op_id, sizeof op_id);
                create_free(c);
                egress_stop(s);
                life_fall_back(app, s, op_id, code, why);
                sandbox_unref(s);
                return;
        }
        create_free(c);
        app->counters.creates_failed++;
        sandbox_fail(app, s, why);
        struct db_batch *b = db_batch_new();
        op_fail(app, o, b, code, why);
        (void) db_batch_submit(app->db, b, NULL, NULL);
        sandbox_unref(s);
}

/* The image has served once the row says that the sandbox runs; its memory stays mapped without a name. */
static void on_woken(void *arg, int err, const struct error *e) {
        struct create *c = arg;
        image_unhold(c->app, &c->hold);
        if (err < 0)
                log_error("sandbox %s: that it runs could not be stored: %s", c->s->id, e->msg);
        else
                image_release(c->app, c->image);
        sandbox_unref(c->s);
        free(c);
}

static void is_running(struct create *c, struct op *o) {
        struct app *app = c->app;
        struct sandbox *s = c->s;
        bool first = s->started_ms == 0;
        struct db_batch *b = db_batch_new();
        if (first) {
                s->started_ms = clock_real_ms();
                app->counters.creates++;
                app->counters.creates_warm += s->timing.warm;
                app->counters.create_us += s->timing.total_us;
        }
        else if (s->rules.on_expiry != SANDBOX_END_DELETE && s->rules.ttl_s && s->expires_ms <= clock_real_ms())
                s->expires_ms = clock_real_ms() + (int64_t) s->rules.ttl_s * 1000; /* its time begins again */
        s->active_ms = clock_real_ms();
        rolling_woken(s);
        s->publish_wake = 0;
        memcpy(c->image, s->image, sizeof c->image);
        image_hold(app, &c->hold, c->image);
        if (c->snapshot)
                judge_process(app, s, c->image);
        s->image[0] = s->reason[0] = 0;
        /* Not waited for: should this row be lost in a crash, the next cspaced finds the
         * sandbox CREATING and its warden identified, and makes the same of it. */
        sandbox_row_update(s, b);
        op_succeed(app, o, b, NULL);
        s->create = NULL;
        if (db_batch_submit(app->db, b, on_woken, c) < 0)
                on_woken(c, -ENOMEM, &(struct error){ .msg = "out of memory" });
        sandbox_log(app, s, "info", "running", "ready after %.1f ms%s", (double) s->timing.total_us / 1000,
                    s->timing.warm ? " (warm)" : "");
}

static void end_ready(struct create *c) {
        struct app *app = c->app;
        struct sandbox *s = sandbox_ref(c->s);
        struct op *o = op_find(app, c->op_id);
        struct warden *w = STEAL(c->warden);
        s->timing.total_us = clock_mono_us() - c->t0_us;
        timer_cancel(STEAL(c->timer));
        if (sandbox_move(app, s, SANDBOX_RUNNING) >= 0) {
                is_running(c, o);
                sandbox_watch(app, s, STEAL(w));
                expiry_changed(app);
                fork_member_made(app, s);
        } else {
                create_free(c);
        }
        warden_free(w);
        sandbox_unref(s);
}

/* Whether the flow was ended while an answer was awaited. */
static bool ended_meanwhile(struct create *c) {
        c->asked = false;
        if (c->canceled) {
                end_canceled(c);
                return true;
        }
        if (c->doomed) {
                end_failed(c, c->doom_code, c->doom);
                return true;
        }
        return false;
}

/* ---- identify ------------------------------------------------------------------------------ */

static void on_warden_event(void *arg, const struct ipc_warden_event *e) {
        if (strcmp(e->state, "failed") == 0 || strcmp(e->state, "exited") == 0)
                end_failed(arg, API_CREATE_FAILED, e->reason[0] ? e->reason : "the VM ended while it was being restored");
}

/* It was ended from outside, and says nothing of what the VM comes from: once more, in the same way. */
static void warden_lost(struct create *c, const char *why) {
        if (c->canceled || c->app->stopping || !patience_lasts(&c->wardens, -ECONNRESET, clock_mono_ms())) {
                end_failed(c, API_CREATE_FAILED, why);
                return;
        }
        sandbox_log(c->app, c->s, "warn", "restore", "%s: once more", why);
        egress_stop(c->s);
        start_over(c);
}

static void on_warden_close(void *arg, int err) {
        (void) err;
        warden_lost(arg, "the warden ended while the VM was being restored");
}

static const struct warden_handler warden_handler = { .on_event = on_warden_event, .on_close = on_warden_close };

static void on_identified(void *arg, int err, const struct error *e, struct ipc_packet *p) {
        struct create *c = arg;
        struct ipc_ready m;
        if (err == -ECANCELED || err == -ECONNRESET)
                return; /* given up, or on_close comes next */
        if (c->resumed && (err == -EALREADY || err == -EBUSY) && clock_mono_ms() < c->query_until_ms) {
                query(c);
                return;
        }
        if (err < 0) {
                end_failed(c, err == -ETIMEDOUT ? API_GUEST_TIMEOUT : API_CREATE_FAILED, e->msg);
                return;
        }
        if (ipc_ready_decode(p->body, p->body_n, &m) < 0) {
                end_failed(c, API_CREATE_FAILED, "the warden's answer cannot be read");
                return;
        }
        struct sandbox_timing *t = &c->s->timing;
        t->spawn_us = m.spawn_us;
        t->load_us = m.load_us;
        t->link_us = m.link_us;
        t->identify_us = m.identify_us;
        end_ready(c);
}

static void identify(struct create *c) {
        struct error e = ERROR_INIT;
        c->stage = STAGE_IDENTIFY;
        egress_start(c->app, c->s); /* beside it: nothing gets through before it has its policy */
        struct op *o = op_find(c->app, c->op_id);
        if (o)
                op_progress(o, "restoring", 80, -1);
        _cleanup_free_ char *json = sandbox_identity(c->app, c->s);
        size_t cap = json ? strlen(json) + 64 : 0, n;
        _cleanup_free_ uint8_t *body = json ? malloc(cap) : NULL;
        struct ipc_identify m = { .json = json, .json_n = json ? strlen(json) : 0 };
        int r = body ? ipc_identify_encode(&m, body, cap, &n) : -ENOMEM;
        if (r < 0)
                (void) error_errno(&e, r, "could not make the identity");
        else
                r = warden_call(c->warden, IPC_IDENTIFY, body, n,
                                c->s->state == SANDBOX_STARTING ? BOOT_TIMEOUT_MS : c->thawed ? THAW_TIMEOUT_MS : IDENTIFY_TIMEOUT_MS,
                                on_identified, c, &e);
        if (json)
                explicit_bzero(json, strlen(json));
        if (body)
                explicit_bzero(body, cap);
        if (r == -ENOTCONN)
                warden_lost(c, e.msg);
        else if (r < 0)
                end_failed(c, API_CREATE_FAILED, e.msg);
}

static void connect_and_identify(struct create *c) {
        struct error e = ERROR_INIT;
        if (warden_connect(c->app, c->s->id, &warden_handler, c, &c->warden, &e) < 0)
                warden_lost(c, e.msg);
        else
                identify(c);
}

static enum api_code code_of(int err) {
        return err == -ENOSPC ? API_STORAGE_FULL : err == -ECONNRESET || err == -ENOTCONN ? API_UNAVAILABLE : API_CREATE_FAILED;
}

/* ---- place --------------------------------------------------------------------------------- */

/* It has ended during what it was asked for. True: another one is waited for, and asked. What was placed by the first is
 * half made, or whole and known to nobody. */
static bool rootd_lost(struct create *c, int err) {
        if (err == -ENOTCONN && rootd_connected(c->app->rootd))
                err = -ECONNRESET; /* its end is not read yet */
        if (c->app->stopping || !patience_lasts(&c->rootd, err, clock_mono_ms()))
                return false;
        c->unclear = true;
        step_variant(c);
        return true;
}

static void on_placed(void *arg, int err, const struct error *e, struct ipc_packet *p) {
        struct create *c = arg;
        struct ipc_placed m;
        bool read = err >= 0 && ipc_placed_decode(p->body, p->body_n, &m) >= 0;
        c->thawed = read && m.thawed; /* also of one that has ended by now */
        if (ended_meanwhile(c))
                return;
        if (err == -ENOENT && !c->started_over && !waking(c->s)) {
                c->started_over = true;
                variant_forget(c->app, c->s->digest, c->s->memory_mb, c->s->cpus);
                step_variant(c);
                return;
        }
        if (rootd_lost(c, err))
                return;
        if (err == -EPIPE && patience_lasts(&c->wardens, -ECONNRESET, clock_mono_ms())) {
                start_over(c);
                return;
        }
        if (err < 0) {
                end_failed(c, code_of(err), err == -ECONNRESET ? "cspace-rootd ended again and again while the VM was placed" : e->msg);
                return;
        }
        if (!read) {
                end_failed(c, API_CREATE_FAILED, "cspace-rootd's answer cannot be read");
                return;
        }
        c->s->timing.place_us = m.place_us;
        connect_and_identify(c);
}

static void step_place(struct create *c) {
        struct error e = ERROR_INIT;
        c->stage = STAGE_PLACE;
        struct op *o = op_find(c->app, c->op_id);
        if (o)
                op_progress(o, "placing", 60, -1);
        const struct sandbox *s = c->s;
        int r = place_call(c->app, s->id, s->state == SANDBOX_STARTING ? "start" : "restore", s->digest, s->memory_mb,
                           s->cpus, waking(s) ? 0 : s->disk_bytes, waking(s) ? s->image : "", c->snapshot,
                           PLACE_TIMEOUT_MS, on_placed, c, &e);
        if (r < 0 && rootd_connected(c->app->rootd) && rootd_lost(c, r)) /* else it was waited for */
                return;
        if (r < 0) {
                end_failed(c, api_code_from_errno(r), e.msg);
                return;
        }
        c->asked = true;
}

int place_call(struct app *app, const char *id, const char *mode, const char *digest, uint32_t memory_mb,
               uint32_t cpus, uint64_t disk_bytes, const char *image, bool snapshot, unsigned timeout_ms, ipc_reply_cb cb,
               void *arg, struct error *err) {
        struct ipc_place m = { .memory_mb = memory_mb, .cpus = cpus, .disk_bytes = disk_bytes, .snapshot = snapshot };
        uint8_t body[sizeof m + 64];
        size_t n;
        if (str_copy(m.id, sizeof m.id, id) < 0 || str_copy(m.mode, sizeof m.mode, mode) < 0 ||
            str_copy(m.digest, sizeof m.digest, digest) < 0 || str_copy(m.image, sizeof m.image, image) < 0 ||
            str_copy(m.engine, sizeof m.engine, rootd_engine(app->rootd)) < 0)
                return error_set(err, -EINVAL, "a name is too long");
        int r = ipc_place_encode(&m, body, sizeof body, &n);
        if (r < 0)
                return error_errno(err, r, "could not make the request");
        return rootd_call(app->rootd, IPC_PLACE, body, n, NULL, 0, timeout_ms, cb, arg, err);
}

/* ---- variant ------------------------------------------------------------------------------- */

static void on_variant_progress(void *arg, const char *step, int percent, int eta_s) {
        struct create *c = arg;
        struct op *o = op_find(c->app, c->op_id);
        char text[OP_STEP_MAX];
        (void) snprintf(text, sizeof text, "preparing variant: %s", step);
        if (o)
                op_progress(o, text, percent * 6 / 10, eta_s);
}

static void on_variant(void *arg, int err, const struct error *e) {
        struct create *c = arg;
        c->variant = NULL;
        if (err < 0 && rootd_lost(c, err))
                return;
        if (err < 0)
                end_failed(c, code_of(err), e->msg);
        else
                step_place(c);
}

static const struct variant_waiter variant_waiter = { .on_progress = on_variant_progress, .on_done = on_variant };

static void look_again(void *arg) {
        struct create *c = arg;
        c->timer = NULL;
        step_variant(c);
}

static void step_variant(struct create *c) {
        struct error e = ERROR_INIT;
        c->stage = STAGE_VARIANT;
        if (rootd_connected(c->app->rootd))
                patience_answered(&c->rootd);
        else if (patience_lasts(&c->rootd, -ENOTCONN, clock_mono_ms())) {
                c->timer = timer_start(c->app->loop, CONNECT_LOOK_MS, look_again, c);
                if (c->timer)
                        return;
        }
        struct sandbox *s = c->s;
        if (c->unclear && rootd_connected(c->app->rootd)) {
                c->unclear = false;
                start_over(c);
                return;
        }
        if (waking(s)) {
                step_place(c);
                return;
        }
        if (!s->tmpl) {
                end_failed(c, API_TEMPLATE_NOT_FOUND, "its template is not there any more");
                return;
        }
        int r = variant_ensure(c->app, s->tmpl, s->memory_mb, s->cpus, &variant_waiter, c, &c->variant, &e);
        if (r < 0 && rootd_connected(c->app->rootd) && rootd_lost(c, r)) /* else it was waited for */
                return;
        if (r < 0)
                end_failed(c, api_code_from_errno(r), e.msg);
        else if (r == 1)
                step_place(c);
}

/* ---- resume after a restart ---------------------------------------------------------------- */

static void on_cleared(void *arg) {
        struct create *c = arg;
        if (!ended_meanwhile(c))
                step_variant(c);
}

static void start_over(struct create *c) {
        struct warden *w = STEAL(c->warden);
        warden_free(w);
        c->started_over = true;
        c->s->timing.warm = false;
        c->stage = STAGE_REMOVE;
        if (removal_start(c->app, REMOVAL_PLACEMENT, c->s->id, on_cleared, c) < 0)
                end_failed(c, API_INTERNAL, "out of memory");
        else
                c->asked = true;
}

static void on_queried(void *arg, int err, const struct error *e, struct ipc_packet *p) {
        (void) e;
        struct create *c = arg;
        struct ipc_warden_state m;
        if (err == -ECANCELED)
                return;
        if (err < 0 || ipc_warden_state_decode(p->body, p->body_n, &m) < 0 || strcmp(m.state, "failed") == 0 ||
            strcmp(m.state, "exited") == 0)
                start_over(c);
        else if (m.identified)
                end_ready(c);
        else
                identify(c);
}

static void ask_again(void *arg) {
        struct create *c = arg;
        c->timer = NULL;
        c->stage = STAGE_QUERY;
        if (warden_call(c->warden, IPC_QUERY, NULL, 0, QUERY_TIMEOUT_MS, on_queried, c, NULL) < 0)
                start_over(c);
}

/* The identity of the cspaced before is on its way, or has just come. */
static void query(struct create *c) {
        c->timer = timer_start(c->app->loop, QUERY_GAP_MS, ask_again, c);
        if (!c->timer)
                end_failed(c, API_INTERNAL, "out of memory");
}

static void on_resumed_event(void *arg, const struct ipc_warden_event *e) {
        struct create *c = arg;
        if (c->stage != STAGE_QUERY) /* else the answer will say the same */
                on_warden_event(arg, e);
}

static void on_resumed_close(void *arg, int err) {
        struct create *c = arg;
        if (c->stage != STAGE_QUERY) /* else on_queried has started over */
                on_warden_close(arg, err);
}

static const struct warden_handler resumed_handler = { .on_event = on_resumed_event, .on_close = on_resumed_close };

static void step_query(struct create *c) {
        c->stage = STAGE_QUERY;
        c->resumed = true;
        c->query_until_ms = clock_mono_ms() + IDENTIFY_TIMEOUT_MS;
        if (warden_connect(c->app, c->s->id, &resumed_handler, c, &c->warden, NULL) < 0)
                start_over(c);
        else
                ask_again(c);
}

/* ---- entry --------------------------------------------------------------------------------- */

static struct create *create_new(struct app *app, struct sandbox *s, const char *op_id) {
        struct create *c = calloc(1, sizeof *c);
        if (!c)
                return NULL;
        c->app = app;
        c->s = sandbox_ref(s);
        c->t0_us = clock_mono_us();
        (void) str_copy(c->op_id, sizeof c->op_id, op_id);
        s->create = c;
        return c;
}

int create_start(struct app *app, struct sandbox *s, const char *op_id, uint64_t t0_us, struct warden *warden) {
        struct create *c = create_new(app, s, op_id);
        if (!c)
                return -ENOMEM;
        c->t0_us = t0_us;
        if (warden) {
                s->timing.warm = true;
                c->warden = warden;
                warden_set_handler(warden, &warden_handler, c);
                identify(c);
        } else {
                step_variant(c);
        }
        return 0;
}

int create_resume(struct app *app, struct sandbox *s, bool placed) {
        struct op *o = waking(s) ? life_op_of(app, s) : op_find_for(app, OP_CREATE, s->id);
        struct create *c = create_new(app, s, o ? o->id : "");
        if (!c)
                return -ENOMEM;
        c->thawed = placed && s->state != SANDBOX_STARTING; /* it may be */
        if (placed)
                step_query(c);
        else
                step_variant(c);
        return 0;
}

void create_cancel(struct create *c, void (*done)(void *arg), void *arg) {
        c->canceled = true;
        c->on_canceled = done;
        c->cancel_arg = arg;
        if (!c->asked)
                end_canceled(c);
}

void create_abandon(struct create *c) {
        create_free(c);
}

void create_vm_ended(struct create *c, const char *reason) {
        if (c->stage == STAGE_QUERY || c->stage == STAGE_REMOVE)
                return; /* being replaced */
        end_failed(c, API_CREATE_FAILED, reason);
}
