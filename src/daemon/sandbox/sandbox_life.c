/* SPDX-License-Identifier: Apache-2.0 */

/*
 * The moves of a sandbox between its states (sandbox.h). A verb is a row of a table: from where, through which
 * state, to where. Row and operation are written first, then come the steps:
 *
 *   pause     WARDEN                                         commands frozen, VM stopped
 *   resume    WARDEN                                         VM runs, clock set, commands go on
 *   suspend   PAUSE -> BEGIN -> SAVE -> COMMIT -> ROW -> REMOVE   see rootd/image.c and warden/hold.c; PAUSE, unless it
 *             is paused, for the guest to have on its disk what it wrote, which is looked at without its memory
 *   stop      QUERY -> [RESUME] -> STOP -> COMMIT -> ROW -> REMOVE; of a suspended one nothing, its memory is not used
 *   restore, start                                           sandbox_create.c; FALL_BACK when that fails
 *   checkpoint  disk: FSFREEZE -> COMMIT -> ROW; full: FSFREEZE -> FSTHAW -> BEGIN -> SAVE -> COMMIT -> AWAKE ->
 *             SEAL -> ROW; without a VM: COMMIT (of the image it has) -> ROW. The sandbox keeps its state
 *   fork      as a full checkpoint of a VM from BEGIN on, without SEAL; ROW are those of the copies, and the operation is theirs from there on (fork.c)
 *   rollback  REMOVE (row and image are written before), then as restore or start
 *   (salvage) COMMIT -> ROW -> REMOVE                        of a FAILED one, without an operation
 *
 * The image has the operation's id, so that nothing else need be noted. Until ROW the image is nothing and the VM
 * is there: a failure is undone (UNDO: the VM goes on), a restart of cspaced begins anew. ROW is the
 * point of no return: image and state in one durable row; only then the VM goes, and a restart has only REMOVE left
 * to do. The other programs may be killed at any point too: a lost warden is connected to again (cspace-rootd
 * starts another one, and all that is asked of it may be asked twice), a lost cspace-rootd is waited for.
 */

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "app.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "base/fd.h"
#include "base/log.h"
#include "base/str.h"
#include "checkpoint.h"
#include "create.h"
#include "egress/egress.h"
#include "fork.h"
#include "life_internal.h"
#include "peers/patience.h"
#include "peers/rootd.h"
#include "peers/warden.h"
#include "proxy/proxy.h"
#include "sandbox_flow.h"
#include "settle.h"
#include "store/op.h"
#include "timer.h"

#define WARDEN_TIMEOUT_MS 90000
#define QUERY_TIMEOUT_MS 10000
#define BEGIN_TIMEOUT_MS 60000
#define COMMIT_TIMEOUT_MS 600000
#define STOP_GRACE_MS 10000      /* what the guest's processes are given */
#define STOP_TIMEOUT_MS 45000    /* beyond that the VM is ended */
#define RETRY_MS 100

static void take_step(void *arg);

/* For the copies alone, which are VMs that go with the host's power: nothing that has to be durable. */
static bool fleeting(const struct life *l) {
        return l->verb == SANDBOX_FORK && l->fork && !fork_keeps(l->fork);
}

/* Of a VM that goes on: it stands still while its image is copied, and no longer. */
static bool in_parts(const struct life *l) {
        return life_copies(l) && l->checkpoint->full && !l->s->image[0] && !fleeting(l);
}

/* ---- life of a flow ------------------------------------------------------------------------------ */

struct life *life_new(struct app *app, struct sandbox *s, enum sandbox_verb verb, const char *op_id) {
        struct life *l = calloc(1, sizeof *l);
        if (!l)
                return NULL;
        *l = (struct life){ .app = app, .s = sandbox_ref(s), .verb = verb, .from = s->state };
        (void) str_copy(l->op_id, sizeof l->op_id, op_id);
        (void) str_copy(l->image, sizeof l->image, op_id);
        s->life = l;
        return l;
}

void life_free(struct life *l) {
        timer_cancel(l->timer);
        struct app *app = l->app;
        struct sandbox *stored = l->verb == SALVAGE ? sandbox_ref(l->s) : NULL;
        struct warden *w = STEAL(l->warden);
        warden_free(w);
        if (l->s->life == l)
                l->s->life = NULL;
        sandbox_unref(l->s);
        free(l->checkpoint);
        fork_drop(l->fork);
        life_image_cb imaged = l->app->stopping ? NULL : l->imaged;
        void *arg = l->imaged_arg;
        const enum api_code code = l->why[0] ? l->code : API_CANCELED;
        char why[ERROR_MSG_MAX];
        (void) snprintf(why, sizeof why, "%s", l->why[0] ? l->why : "the sandbox was deleted meanwhile");
        free(l);
        if (imaged)
                imaged(arg, code, why);
        if (stored)
                settle_stored(app->settle, stored);
        sandbox_unref(stored);
}

/* What is left of an image that nobody will use; of a suspend that is begun anew also by the cspaced before. */
static void drop_image(struct life *l) {
        if (l->step >= STEP_PAUSE && strcmp(l->s->image, l->image) != 0 && !(l->verb == SANDBOX_FORK && !l->fork))
                (void) removal_start(l->app, REMOVAL_IMAGE, l->image, NULL, NULL);
}

void life_end_canceled(struct life *l) {
        struct db_batch *b = db_batch_new();
        op_fail(l->app, op_find(l->app, l->op_id), b, API_CANCELED, "the sandbox was deleted meanwhile");
        (void) db_batch_submit(l->app->db, b, NULL, NULL);
        drop_image(l);
        void (*done)(void *) = l->on_canceled;
        void *arg = l->cancel_arg;
        life_free(l);
        done(arg);
}

static json_t *result_of(const struct life *l) {
        if (l->verb == SANDBOX_CHECKPOINT)
                return json_pack("{s:s, s:I, s:I, s:I, s:I}", "checkpoint", l->image, "private_bytes",
                                 (json_int_t) l->info.private_bytes, "written_bytes", (json_int_t) l->info.written_bytes,
                                 "freeze_us", (json_int_t) l->info.freeze_us, "image_us", (json_int_t) l->info.took_us);
        if (l->verb == SANDBOX_PAUSE || l->verb == SANDBOX_RESUME)
                return json_pack("{s:I, s:o*}", "vm_us", (json_int_t) l->held.vm_us, "synced",
                                 l->verb == SANDBOX_PAUSE ? json_boolean(l->s->synced) : NULL);
        if (l->verb != SANDBOX_SUSPEND && l->verb != SANDBOX_STOP)
                return NULL;
        return json_pack("{s:I, s:I, s:I, s:o*}", "private_bytes", (json_int_t) l->info.private_bytes, "written_bytes",
                         (json_int_t) l->info.written_bytes, "image_us", (json_int_t) l->info.took_us, "synced",
                         l->verb == SANDBOX_SUSPEND ? json_boolean(l->s->synced) : NULL);
}

static void log_end(const struct life *l, const struct op *o) {
        struct sandbox *s = l->s;
        const char *state = sandbox_state_name(s->state);
        char name[CHECKPOINT_CALLED_SIZE];
        if (l->verb == SANDBOX_FORK)
                sandbox_log(l->app, s, "info", state, "fork");
        else if (l->verb == SANDBOX_CHECKPOINT && !o)
                sandbox_log(l->app, s, "info", state, "its disk was copied for a template");
        else if (l->verb == SANDBOX_CHECKPOINT)
                sandbox_log(l->app, s, "info", state, "checkpoint %s", checkpoint_called(s, l->image, name));
        else
                sandbox_log(l->app, s, "info", state, "%s", o ? op_kind_name(o->kind) : "");
}

/* The end, good or bad: state, row and operation in one transaction. */
static void end(struct life *l, enum sandbox_state state, bool good) {
        struct app *app = l->app;
        struct sandbox *s = l->s;
        struct op *o = op_find(app, l->op_id);
        struct db_batch *b = db_batch_new();
        if (s->state != state)
                (void) sandbox_move(app, s, state);
        if (l->verb != SANDBOX_CHECKPOINT)
                s->active_ms = clock_real_ms();
        if (good)
                s->retry_ms = 0;
        sandbox_row_update(s, b);
        if (good && l->verb != SANDBOX_FORK)
                op_succeed(app, o, b, result_of(l));
        else if (!good)
                op_fail(app, o, b, l->code, l->why);
        (void) db_batch_submit(app->db, b, NULL, NULL);
        if (good)
                log_end(l, o);
        else
                sandbox_log(app, s, "warn", "change_failed", "%s", l->why);
        struct warden *w = STEAL(l->warden);
        s->life = NULL;
        if (SANDBOX_BIT(s->state) & SANDBOX_HAS_VM)
                sandbox_watch(app, s, w);
        else
                warden_free(w);
        if (s->state == SANDBOX_RUNNING)
                sandbox_watch_ask(s);
        expiry_changed(app);
        struct sandbox *kept = sandbox_ref(s);
        life_free(l);
        if (kept->state == SANDBOX_SUSPENDED)
                publish_wake(app, kept);
        sandbox_unref(kept);
}

/* The VM is gone before anything of it was saved. */
void life_end_lost(struct life *l, const char *reason) {
        struct app *app = l->app;
        struct sandbox *s = sandbox_ref(l->s);
        struct db_batch *b = db_batch_new();
        char text[ERROR_MSG_MAX];
        (void) snprintf(text, sizeof text, "%s", reason);
        l->code = API_CHANGE_FAILED;
        (void) snprintf(l->why, sizeof l->why, "%s", text);
        op_fail(app, op_find(app, l->op_id), b, API_CHANGE_FAILED, text);
        (void) db_batch_submit(app->db, b, NULL, NULL);
        drop_image(l);
        life_free(l);
        sandbox_fail(app, s, text);
        sandbox_unref(s);
}

static void fail(struct life *l, enum api_code code, const char *why) {
        l->code = code;
        (void) snprintf(l->why, sizeof l->why, "%s", why);
        if (l->verb == SALVAGE) {
                log_error("sandbox %s: its disk could not be kept: %s", l->s->id, why);
                life_free(l); /* the placement stays, and the next reconciliation tries again */
                return;
        }
        if (l->verb == SANDBOX_STOP || l->lost) { /* the VM is down already */
                life_end_lost(l, l->why);
                return;
        }
        drop_image(l);
        if (l->verb == SANDBOX_SUSPEND)
                l->s->image[0] = 0;
        l->step = STEP_UNDO;
        l->rootd = l->wardens = (struct patience){ 0 };
        take_step(l);
}

static void later(struct life *l) {
        l->timer = timer_start(l->app->loop, RETRY_MS, take_step, l);
        if (!l->timer)
                fail(l, API_INTERNAL, "out of memory");
}

/* With what the cspaced before had asked for: whether to ask again. */
static bool still_busy(struct life *l, unsigned limit_ms) {
        uint64_t now = clock_mono_ms();
        if (l->busy_ms == 0)
                l->busy_ms = now + limit_ms;
        return now < l->busy_ms;
}

/* Whether the flow was ended while an answer was awaited. */
static bool ended_meanwhile(struct life *l) {
        l->asked = false;
        if (l->canceled) {
                life_end_canceled(l);
                return true;
        }
        if (l->app->stopping) { /* the next cspaced goes on with it */
                life_free(l);
                return true;
        }
        return false;
}

/* ---- the warden's part --------------------------------------------------------------------------- */

/* err as of patience_lasts(). */
static void warden_lost(struct life *l, int err, const char *why) {
        struct warden *w = STEAL(l->warden);
        warden_free(w);
        if (l->step >= STEP_COMMIT && l->step != STEP_UNDO && l->step != STEP_AWAKE)
                return; /* not needed any more */
        if (!patience_lasts(&l->wardens, err, clock_mono_ms())) {
                if (l->verb == SANDBOX_STOP) {
                        l->step = STEP_COMMIT; /* ended without it */
                        take_step(l);
                } else {
                        life_end_lost(l, why);
                }
                return;
        }
        if (l->step == STEP_SAVE)
                l->step = STEP_BEGIN; /* what was written is half of something */
        if (!l->timer && !l->asked)
                later(l);
}

static void on_event(void *arg, const struct ipc_warden_event *e) {
        struct life *l = arg;
        if (strcmp(e->state, "failed") == 0 || strcmp(e->state, "exited") == 0)
                life_vm_ended(l, e->reason[0] ? e->reason : "the VM ended");
}

static void on_close(void *arg, int err) {
        (void) err;
        warden_lost(arg, -ECONNRESET, "the warden ended");
}

static const struct warden_handler handler = { .on_event = on_event, .on_close = on_close };

static void on_answer(void *arg, int err, const struct error *e, struct ipc_packet *p);

static int ask_warden(struct life *l, uint16_t type, const void *body, size_t n, unsigned timeout_ms, struct error *err) {
        int r = 0;
        if (!l->warden)
                r = warden_connect(l->app, l->s->id, &handler, l, &l->warden, err);
        return r < 0 ? r : warden_call(l->warden, type, body, n, timeout_ms, on_answer, l, err);
}

/* A step that is one request without anything in it. */
static void simple(struct life *l, uint16_t type) {
        struct error e = ERROR_INIT;
        if (ask_warden(l, type, NULL, 0, WARDEN_TIMEOUT_MS, &e) < 0)
                warden_lost(l, -ENOTCONN, e.msg);
}

static void step_fsfreeze(struct life *l, bool on) {
        struct error e = ERROR_INIT;
        struct ipc_fsfreeze m = { .on = on };
        uint8_t body[16];
        size_t n;
        if (ipc_fsfreeze_encode(&m, body, sizeof body, &n) < 0 || ask_warden(l, IPC_FSFREEZE, body, n, WARDEN_TIMEOUT_MS, &e) < 0)
                warden_lost(l, -ENOTCONN, e.msg);
}

static void step_warden(struct life *l) {
        struct error e = ERROR_INIT;
        struct ipc_stop m = { .timeout_ms = STOP_GRACE_MS };
        uint8_t body[16];
        size_t n = 0;
        if (l->verb == SANDBOX_PAUSE)
                simple(l, IPC_PAUSE);
        else if (l->verb == SANDBOX_RESUME)
                simple(l, IPC_RESUME);
        else if (ipc_stop_encode(&m, body, sizeof body, &n) < 0 ||
                 ask_warden(l, IPC_STOP, body, n, STOP_TIMEOUT_MS, &e) < 0)
                warden_lost(l, -ENOTCONN, e.msg);
}

static enum api_code code_of(int err) {
        return err == -ENOSPC || err == -EDQUOT ? API_STORAGE_FULL
               : err == -ETIMEDOUT              ? API_GUEST_TIMEOUT
               : err == -ENOTCONN || err == -ECONNRESET ? API_UNAVAILABLE
                                                : API_CHANGE_FAILED;
}

static void on_queried(struct life *l, int err, struct ipc_packet *p) {
        struct ipc_warden_state st;
        bool ok = err >= 0 && ipc_warden_state_decode(p->body, p->body_n, &st) >= 0;
        if (ok && strcmp(st.state, "paused") == 0)
                l->step = STEP_AWAKE; /* a guest that stands still cannot power off */
        else if (ok && strcmp(st.state, "running") == 0)
                l->step = STEP_WARDEN;
        else
                l->step = STEP_COMMIT;
        take_step(l);
}

static void on_checkpoint_answer(struct life *l, int err, const struct error *e) {
        if (l->step == STEP_SAVE && err < 0) {
                fail(l, code_of(err), e->msg);
                return;
        }
        if (err < 0)
                sandbox_log(l->app, l->s, "warn", "checkpoint", "%s: %s",
                            l->step == STEP_FSFREEZE ? "the guest's filesystem was not frozen" : "it does not go on as it should",
                            e->msg);
        if (l->step == STEP_FSTHAW || (l->step == STEP_FSFREEZE && l->checkpoint->full)) {
                /* Frozen it was to have everything written; the memory is kept as of a guest that may write. */
                l->step = l->step == STEP_FSFREEZE && err >= 0 ? STEP_FSTHAW : STEP_BEGIN;
                take_step(l);
                return;
        }
        if (l->step == STEP_FSFREEZE)
                l->checkpoint->consistent = err >= 0;
        l->step = l->step == STEP_AWAKE ? STEP_SEAL : STEP_COMMIT;
        take_step(l);
}

static void on_held(struct life *l, const struct ipc_packet *p) {
        if (ipc_held_decode(p->body, p->body_n, &l->held) < 0) /* of an older warden */
                l->held = (struct ipc_held){ 0 };
        if (l->verb != SANDBOX_RESUME) {
                l->s->synced = l->held.synced;
                if (!l->s->synced && l->held.vm_us > 0)
                        sandbox_log(l->app, l->s, "warn", life_verbs[l->verb].name, "the guest did not write to its disk what it held back: "
                                    "its disk is as after a power cut, the rest is in its memory");
        }
        if (l->verb != SANDBOX_SUSPEND) {
                end(l, life_verbs[l->verb].to, true);
                return;
        }
        l->step = STEP_BEGIN;
        take_step(l);
}

static void on_answer(void *arg, int err, const struct error *e, struct ipc_packet *p) {
        struct life *l = arg;
        if (err == -ECANCELED || err == -ECONNRESET)
                return; /* given up, or on_close comes next */
        if (err == -ESHUTDOWN) {
                life_vm_ended(l, e->msg);
                return;
        }
        patience_answered(&l->wardens);
        if (err == -EBUSY && still_busy(l, PATIENCE_MS)) {
                if (l->step == STEP_SAVE)
                        l->step = STEP_BEGIN;
                later(l);
                return;
        }
        l->busy_ms = 0;
        if (l->step == STEP_UNDO) {
                if (err < 0)
                        log_warn("sandbox %s: it does not go on as it should: %s", l->s->id, e->msg);
                end(l, SANDBOX_RUNNING, false);
        } else if (life_copies(l)) {
                if (l->step == STEP_SAVE)
                        egress_hurry_names(l->s);
                on_checkpoint_answer(l, err, e);
        } else if (l->step == STEP_QUERY) {
                on_queried(l, err, p);
        } else if (l->step == STEP_AWAKE) {
                l->step = STEP_WARDEN;
                take_step(l);
        } else if (l->verb == SANDBOX_STOP) {
                if (err < 0)
                        sandbox_log(l->app, l->s, "warn", "stop", "the guest did not power off: %s", e->msg);
                l->step = STEP_COMMIT;
                take_step(l);
        } else if (err < 0 && l->verb == SANDBOX_RESUME) {
                l->code = code_of(err); /* it runs, but not as it should */
                (void) snprintf(l->why, sizeof l->why, "%s", e->msg);
                end(l, SANDBOX_RUNNING, false);
        } else if (err < 0) {
                fail(l, code_of(err), e->msg);
        } else if (l->step == STEP_SAVE) {
                egress_hurry_names(l->s);
                l->step = STEP_COMMIT;
                take_step(l);
        } else {
                on_held(l, p);
        }
}

/* ---- cspace-rootd's part ------------------------------------------------------------------------- */

/* Of an image that is begun, filled and committed one after another. */
static bool begins(const struct life *l) {
        return l->verb == SANDBOX_SUSPEND || (life_copies(l) && l->checkpoint->full && !l->s->image[0]);
}

static void rootd_failed(struct life *l, int err, const struct error *e) {
        /* -ENOENT: it has ended between two requests, and its start has swept away what was begun. */
        bool swept = err == -ENOENT && begins(l) && l->step != STEP_BEGIN;
        bool again = err == -EBUSY ? still_busy(l, COMMIT_TIMEOUT_MS)
                                   : patience_lasts(&l->rootd, swept ? -ECONNRESET : err, clock_mono_ms());
        if (!again) {
                fail(l, code_of(err), e->msg);
                return;
        }
        if (begins(l))
                l->step = STEP_BEGIN;
        later(l);
}

static void rootd_answered(struct life *l) {
        patience_answered(&l->rootd);
        l->busy_ms = 0;
}

static void on_begun(void *arg, int err, const struct error *e, struct ipc_packet *p) {
        struct life *l = arg;
        struct error own = ERROR_INIT;
        if (ended_meanwhile(l))
                return;
        if (err < 0) {
                rootd_failed(l, err, e);
                return;
        }
        rootd_answered(l);
        if (p->n_fds != 1) {
                fail(l, API_INTERNAL, "cspace-rootd's answer lacks a descriptor");
                return;
        }
        if (l->lost) {
                life_end_lost(l, l->why);
                return;
        }
        proxy_drop(l->app->proxy, l->s->id);
        l->step = STEP_SAVE;
        int r = 0;
        if (!l->warden)
                r = warden_connect(l->app, l->s->id, &handler, l, &l->warden, &own);
        if (r >= 0)
                r = warden_call_fd(l->warden, IPC_SAVE, p->fds[0], WARDEN_TIMEOUT_MS, on_answer, l, &own);
        if (r < 0)
                warden_lost(l, -ENOTCONN, own.msg);
}

static void step_begin(struct life *l) {
        struct error e = ERROR_INIT;
        struct ipc_image_begin m = { 0 };
        uint8_t body[96];
        size_t n;
        (void) str_copy(m.id, sizeof m.id, l->s->id);
        (void) str_copy(m.image, sizeof m.image, l->image);
        int r = ipc_image_begin_encode(&m, body, sizeof body, &n);
        if (r >= 0)
                r = rootd_call(l->app->rootd, IPC_IMAGE_BEGIN, body, n, NULL, 0, BEGIN_TIMEOUT_MS, on_begun, l, &e);
        if (r < 0)
                rootd_failed(l, r, &e);
        else
                l->asked = true;
}

static void on_thawed(void *arg, int err, const struct error *e, struct ipc_packet *p) {
        (void) arg;
        (void) err; /* the agent does it by itself after a while */
        (void) e;
        (void) p;
}

/* The copy of a disk is made, or is not: the guest writes again. */
static void thaw_fs(struct life *l) {
        struct ipc_fsfreeze m = { .on = 0 };
        uint8_t body[16];
        size_t n;
        if (l->verb == SANDBOX_CHECKPOINT && l->from == SANDBOX_RUNNING && !l->checkpoint->full && l->checkpoint->consistent &&
            l->warden && ipc_fsfreeze_encode(&m, body, sizeof body, &n) >= 0)
                (void) warden_call(l->warden, IPC_FSFREEZE, body, n, WARDEN_TIMEOUT_MS, on_thawed, NULL, NULL);
}

static void on_committed(void *arg, int err, const struct error *e, struct ipc_packet *p) {
        struct life *l = arg;
        thaw_fs(l);
        if (ended_meanwhile(l))
                return;
        if (err == -ENOENT && l->verb == SALVAGE) { /* nothing to keep */
                l->image[0] = 0;
                l->step = STEP_REMOVE;
                take_step(l);
                return;
        }
        if (err < 0 || ipc_image_info_decode(p->body, p->body_n, &l->info) < 0) {
                if (l->lost && l->verb == SANDBOX_SUSPEND)
                        life_end_lost(l, l->why);
                else if (err < 0)
                        rootd_failed(l, err, e);
                else
                        fail(l, API_INTERNAL, "cspace-rootd's answer cannot be read");
                return;
        }
        rootd_answered(l);
        bool asleep = life_copies(l) && l->checkpoint->full && l->from == SANDBOX_RUNNING && !l->lost;
        l->step = asleep ? STEP_AWAKE : in_parts(l) ? STEP_SEAL : STEP_ROW;
        take_step(l);
}

static void on_sealed(void *arg, int err, const struct error *e, struct ipc_packet *p) {
        struct life *l = arg;
        (void) p;
        if (ended_meanwhile(l))
                return;
        if (err < 0 && err != -ECONNRESET && err != -ENOTCONN && err != -EBUSY && err != -ENOENT)
                l->checkpoint->full = false; /* the VM goes on already; only the image is left to undo */
        if (err < 0) {
                rootd_failed(l, err, e);
                return;
        }
        rootd_answered(l);
        l->step = STEP_ROW;
        take_step(l);
}

/* What was copied while the VM stood still is made durable. */
static void step_seal(struct life *l) {
        struct error e = ERROR_INIT;
        struct ipc_image_commit m = { .part = 2 };
        uint8_t body[128];
        size_t n;
        if (!in_parts(l)) {
                l->step = STEP_ROW;
                take_step(l);
                return;
        }
        (void) str_copy(m.id, sizeof m.id, l->s->id);
        (void) str_copy(m.image, sizeof m.image, l->image);
        (void) str_copy(m.kind, sizeof m.kind, "full");
        int r = ipc_image_commit_encode(&m, body, sizeof body, &n);
        if (r >= 0)
                r = rootd_call(l->app->rootd, IPC_IMAGE_COMMIT, body, n, NULL, 0, COMMIT_TIMEOUT_MS, on_sealed, l, &e);
        if (r < 0)
                rootd_failed(l, r, &e);
        else
                l->asked = true;
}

static void step_commit(struct life *l) {
        struct error e = ERROR_INIT;
        bool checkpoint = life_copies(l);
        bool full = l->verb == SANDBOX_SUSPEND || (checkpoint && l->checkpoint->full);
        struct ipc_image_commit m = { .halt = !full && !checkpoint, .part = in_parts(l), .fleeting = fleeting(l) };
        if (m.halt)
                egress_stop(l->s); /* its gateway is ended too */
        uint8_t body[128];
        size_t n;
        (void) str_copy(m.id, sizeof m.id, l->s->id);
        (void) str_copy(m.image, sizeof m.image, l->image);
        (void) str_copy(m.kind, sizeof m.kind, full ? "full" : "disk");
        if (checkpoint)
                (void) str_copy(m.from, sizeof m.from, l->s->image);
        int r = ipc_image_commit_encode(&m, body, sizeof body, &n);
        if (r >= 0)
                r = rootd_call(l->app->rootd, IPC_IMAGE_COMMIT, body, n, NULL, 0, COMMIT_TIMEOUT_MS, on_committed, l, &e);
        if (r < 0)
                rootd_failed(l, r, &e);
        else
                l->asked = true;
}

/* ---- rows, removal, the way back ------------------------------------------------------------------ */

/* The checkpoint is there when its row is: not shown to anybody before. */
static void on_checkpoint_row(void *arg, int err, const struct error *e) {
        struct life *l = arg;
        if (ended_meanwhile(l))
                return;
        if (err < 0) {
                l->checkpoint->full = false; /* the VM goes on already; only the image is left to undo */
                fail(l, API_STORAGE_FULL, e->msg);
                return;
        }
        struct app *app = l->app;
        struct sandbox *s = sandbox_ref(l->s);
        bool lost = l->lost;
        bool automatic = l->checkpoint->automatic;
        checkpoint_add(s, STEAL(l->checkpoint));
        end(l, s->state, true);
        if (automatic)
                rolling_taken(app, s);
        if (lost)
                sandbox_vm_ended(app, s->id, "vm");
        sandbox_unref(s);
}

static void image_taken(struct life *l) {
        life_image_cb imaged = STEAL(l->imaged);
        void *arg = l->imaged_arg;
        struct app *app = l->app;
        struct sandbox *s = sandbox_ref(l->s);
        bool lost = l->lost;
        end(l, s->state, true);
        imaged(arg, API_INTERNAL, NULL);
        if (lost)
                sandbox_vm_ended(app, s->id, "vm");
        sandbox_unref(s);
}

static void checkpoint_row(struct life *l) {
        struct db_batch *b = db_batch_new();
        l->checkpoint->written_bytes = l->info.written_bytes;
        checkpoint_row_insert(l->s, l->checkpoint, b);
        int r = db_batch_submit(l->app->db, b, on_checkpoint_row, l);
        if (r < 0)
                fail(l, API_STORAGE_FULL, "the database does not take it");
        else
                l->asked = true;
}

/* Rows of the copies. From here on they need nothing of this sandbox, which may be deleted. */
static void on_fork_row(void *arg, int err, const struct error *e) {
        struct life *l = arg;
        struct fork *f = err < 0 ? NULL : STEAL(l->fork);
        if (f)
                l->op_id[0] = 0; /* the operation is the fork's */
        const struct ipc_image_info info = l->info;
        struct app *app = l->app;
        struct sandbox *s = sandbox_ref(l->s);
        bool lost = l->lost;
        if (ended_meanwhile(l)) {
                if (f && !app->stopping)
                        fork_go(f, &info);
        } else if (err < 0) {
                l->checkpoint->full = false; /* the VM goes on already; only the image is left to undo */
                fail(l, API_STORAGE_FULL, e->msg);
        } else {
                end(l, s->state, true);
                if (lost)
                        sandbox_vm_ended(app, s->id, "vm");
                fork_go(f, &info);
        }
        sandbox_unref(s);
}

static void fork_row(struct life *l) {
        struct error e = ERROR_INIT;
        struct db_batch *b = db_batch_new();
        int r = b ? fork_enter(l->fork, l->op_id, l->image, true, fleeting(l), b, &e) : error_set(&e, -ENOMEM, "out of memory");
        if (r >= 0 && (r = db_batch_submit(l->app->db, STEAL(b), on_fork_row, l)) < 0)
                (void) error_errno(&e, r, "could not store the copies");
        if (r >= 0) {
                l->asked = true;
                return;
        }
        db_batch_free(b);
        l->checkpoint->full = false; /* as above */
        fail(l, r == -EAGAIN ? API_TOO_MANY : r == -EEXIST ? API_NAME_TAKEN : api_code_from_errno(r), e.msg);
}

static void on_row(void *arg, int err, const struct error *e) {
        struct life *l = arg;
        if (ended_meanwhile(l))
                return;
        if (err < 0) {
                l->s->image[0] = 0;
                fail(l, API_STORAGE_FULL, e->msg);
                return;
        }
        l->step = STEP_REMOVE;
        take_step(l);
}

static void step_row(struct life *l) {
        if (l->imaged) {
                image_taken(l);
                return;
        }
        if (l->verb == SANDBOX_CHECKPOINT) {
                checkpoint_row(l);
                return;
        }
        if (l->verb == SANDBOX_FORK) {
                fork_row(l);
                return;
        }
        struct db_batch *b = db_batch_new();
        memcpy(l->s->image, l->image, sizeof l->s->image);
        sandbox_row_update(l->s, b);
        int r = db_batch_submit(l->app->db, b, on_row, l);
        if (r < 0) {
                l->s->image[0] = 0;
                fail(l, API_STORAGE_FULL, "the database does not take it");
        } else {
                l->asked = true;
        }
}

/* What the sandbox was is gone; from here on it is a restore or a start. */
static void go_back(struct life *l) {
        struct app *app = l->app;
        struct sandbox *s = sandbox_ref(l->s);
        const struct checkpoint *c = checkpoint_find(s, s->image);
        char op_id[ID_SIZE];
        memcpy(op_id, l->op_id, sizeof op_id);
        (void) sandbox_move(app, s, c && c->full ? SANDBOX_RESTORING : SANDBOX_STARTING);
        struct db_batch *b = db_batch_new();
        sandbox_row_update(s, b);
        (void) db_batch_submit(app->db, b, NULL, NULL);
        life_free(l);
        if (create_start(app, s, op_id, clock_mono_us(), NULL) < 0)
                life_fall_back(app, s, op_id, API_INTERNAL, "out of memory");
        sandbox_unref(s);
}

static void on_removed(void *arg) {
        struct life *l = arg;
        if (ended_meanwhile(l))
                return;
        if (l->step == STEP_FALL_BACK)
                end(l, l->s->state == SANDBOX_RESTORING ? SANDBOX_SUSPENDED : SANDBOX_STOPPED, false);
        else if (l->verb == SALVAGE)
                life_free(l);
        else if (l->verb == SANDBOX_ROLLBACK)
                go_back(l);
        else
                end(l, life_verbs[l->verb].to, true);
}

static void step_remove(struct life *l) {
        struct warden *w = STEAL(l->warden);
        warden_free(w);
        egress_stop(l->s);
        if (removal_start(l->app, REMOVAL_PLACEMENT, l->s->id, on_removed, l) < 0)
                later(l);
        else
                l->asked = true;
}

/* What was to be suspended or paused goes on; one that was paused stays so. */
static void step_undo(struct life *l) {
        bool untouched = life_copies(l) && (!l->checkpoint->full || l->s->image[0]);
        if (l->from == SANDBOX_PAUSED || untouched)
                end(l, l->from, false);
        else
                simple(l, IPC_RESUME);
}

static void take_step(void *arg) {
        struct life *l = arg;
        l->timer = NULL;
        switch (l->step) {
        case STEP_WARDEN:
                step_warden(l);
                break;
        case STEP_QUERY:
                simple(l, IPC_QUERY);
                break;
        case STEP_AWAKE:
                simple(l, IPC_RESUME);
                break;
        case STEP_FSFREEZE:
                step_fsfreeze(l, true);
                break;
        case STEP_FSTHAW:
                step_fsfreeze(l, false);
                break;
        case STEP_PAUSE:
                simple(l, IPC_PAUSE);
                break;
        case STEP_BEGIN:
                step_begin(l);
                break;
        case STEP_COMMIT:
                step_commit(l);
                break;
        case STEP_SEAL:
                step_seal(l);
                break;
        case STEP_ROW:
                step_row(l);
                break;
        case STEP_REMOVE:
        case STEP_FALL_BACK:
                step_remove(l);
                break;
        case STEP_UNDO:
                step_undo(l);
                break;
        case STEP_SAVE:
        case STEP_ROWS:
                break; /* others go on from there */
        }
}

static void first_checkpoint_step(struct life *l) {
        l->checkpoint->consistent = l->checkpoint->full || l->from == SANDBOX_STOPPED;
        if (l->s->image[0])
                l->step = STEP_COMMIT;
        else if (l->from == SANDBOX_RUNNING && l->verb == SANDBOX_CHECKPOINT)
                l->step = STEP_FSFREEZE; /* of a full one too: its files are read without its memory */
        else
                l->step = l->checkpoint->full ? STEP_BEGIN : STEP_COMMIT;
        take_step(l);
}

void life_first_step(struct life *l) {
        if (l->verb == SANDBOX_ROLLBACK) {
                sandbox_unwatch(l->s);
                proxy_drop(l->app->proxy, l->s->id);
                l->step = STEP_REMOVE;
                take_step(l);
                return;
        }
        if (l->s->image[0] && !life_copies(l)) { /* it has no VM; or that is all that was left to do */
                l->step = STEP_REMOVE;
                take_step(l);
                return;
        }
        l->warden = sandbox_unwatch_keep(l->s);
        if (l->warden)
                warden_set_handler(l->warden, &handler, l);
        if (life_copies(l)) {
                first_checkpoint_step(l);
                return;
        }
        if (l->verb == SANDBOX_SUSPEND)
                l->step = l->from == SANDBOX_PAUSED ? STEP_BEGIN : STEP_PAUSE;
        else if (l->verb == SANDBOX_STOP)
                l->step = STEP_QUERY;
        else
                l->step = STEP_WARDEN;
        if (l->verb == SANDBOX_STOP)
                proxy_drop(l->app->proxy, l->s->id);
        take_step(l);
}

/* ---- entry ----------------------------------------------------------------------------------------- */

int life_image(struct app *app, struct sandbox *s, const char *image, life_image_cb cb, void *arg, struct error *err) {
        static const struct life_verb v = { "be published", OP_PUBLISH, SANDBOX_HAS_VM, SANDBOX_STATE_MAX_, SANDBOX_STATE_MAX_ };
        int r = life_check(app, s, &v, v.name, err);
        if (r < 0)
                return r;
        struct life *l = life_new(app, s, SANDBOX_CHECKPOINT, "");
        if (l)
                l->checkpoint = calloc(1, sizeof *l->checkpoint);
        if (!l || !l->checkpoint) {
                if (l)
                        life_free(l);
                return error_set(err, -ENOMEM, "out of memory");
        }
        (void) str_copy(l->image, sizeof l->image, image);
        l->imaged = cb;
        l->imaged_arg = arg;
        life_first_step(l);
        return 0;
}

struct op *life_op_of(struct app *app, const struct sandbox *s) {
        for (struct op *o = op_newest(app); o; o = o->prev) {
                if (o->state != OP_RUNNING || o->kind < OP_PAUSE || strcmp(o->sandbox_id, s->id) != 0)
                        continue;
                if (o->kind == OP_PUBLISH)
                        continue; /* as a whole it is the template's */
                if (o->kind == OP_FORK && !(s->life && strcmp(s->life->op_id, o->id) == 0))
                        continue; /* it concerns its copies alone */
                return o;
        }
        return NULL;
}

bool life_reached(enum op_kind kind, enum sandbox_state state) {
        for (size_t i = 0; i < SANDBOX_VERB_MAX_; i++)
                if (life_verbs[i].kind == kind && kind != OP_CREATE)
                        return life_verbs[i].to == state;
        return kind == OP_WAKE && state == SANDBOX_RUNNING;
}

int life_resume(struct app *app, struct sandbox *s) {
        struct op *o = life_op_of(app, s);
        enum sandbox_verb verb = 0;
        while (verb < SANDBOX_ROLLBACK && life_verbs[verb].via != s->state)
                verb++;
        struct life *l = life_new(app, s, verb, o ? o->id : "");
        if (!l || (!l->image[0] && id_new(l->image) < 0)) {
                if (l)
                        life_free(l);
                return -ENOMEM;
        }
        l->from = SANDBOX_RUNNING;
        life_first_step(l);
        return 0;
}

void life_salvage(struct app *app, struct sandbox *s) {
        struct life *l = s->life ? NULL : life_new(app, s, SALVAGE, "");
        if (!l || id_new(l->image) < 0) {
                if (l)
                        life_free(l);
                return;
        }
        l->step = STEP_COMMIT;
        take_step(l);
}

void life_fall_back(struct app *app, struct sandbox *s, const char *op_id, enum api_code code, const char *why) {
        struct life *l = life_new(app, s, s->state == SANDBOX_RESTORING ? SANDBOX_RESTORE : SANDBOX_START, op_id);
        if (!l) {
                log_error("sandbox %s: out of memory, it stays %s", s->id, sandbox_state_name(s->state));
                return;
        }
        proxy_drop(app->proxy, s->id);
        l->code = code == API_CREATE_FAILED ? API_CHANGE_FAILED : code;
        (void) snprintf(l->why, sizeof l->why, "%s", why);
        l->step = STEP_FALL_BACK;
        take_step(l);
}

void life_cancel(struct life *l, void (*done)(void *arg), void *arg) {
        l->canceled = true;
        l->on_canceled = done;
        l->cancel_arg = arg;
        if (!l->asked)
                life_end_canceled(l);
}

/* The answers of cspace-rootd and the database find app->stopping; that of a removal does not come any more. */
void life_abandon(struct life *l) {
        if (!l->asked || l->step == STEP_REMOVE || l->step == STEP_FALL_BACK)
                life_free(l);
}

void life_vm_ended(struct life *l, const char *reason) {
        if (l->verb == SANDBOX_STOP || l->verb == SALVAGE || l->verb == SANDBOX_ROLLBACK ||
            (l->step >= STEP_ROW && l->step != STEP_UNDO && !life_copies(l)))
                return; /* as was wanted, or of no matter any more */
        (void) snprintf(l->why, sizeof l->why, "%s", reason);
        if (l->asked)
                l->lost = true;
        else
                life_end_lost(l, reason);
}

bool life_stores(const struct sandbox *s) {
        return s->life && s->life->verb == SALVAGE;
}

bool life_owns_image(const struct sandbox *s, const char *id) {
        return s->life && strcmp(s->life->image, id) == 0;
}
