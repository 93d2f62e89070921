/* SPDX-License-Identifier: Apache-2.0 */
#include "warden_internal.h"

/*
 * Pausing, resuming and saving a VM.
 *
 *   pause    freeze the commands (agent) -> what they wrote is synced (agent) -> stop the VM    -> PAUSED
 *   save     freeze -> leave the guest -> stop -> devices                             -> PAUSED
 *   park     quiesce (or freeze) -> leave the guest -> stop                           -> PAUSED, without an identity
 *   resume   VM runs -> link up -> set the clock and thaw (agent)                    -> RUNNING
 *
 * The commands are frozen first, because a VM that goes on does so at once, with the clock of when it
 * was stopped. An agent that does not answer is given FREEZE_MS: what the guest makes impossible by
 * itself (its agent cannot get at its cgroups, its kernel hangs) is no reason for not stopping it. One that
 * has answered is then given SYNC_MS to write to its disk what was written in it, since whoever looks at the disk of a VM
 * that stands still, or has lost it, does so without its memory.
 *
 * What is saved must not be in the middle of a session with the host, which therefore leaves the guest before (guest.h). A
 * paused VM goes on for that long; its commands stay frozen. A VM that goes on after a save gets a new session.
 *
 * One that was saved or parked is let go of, so that rootd can make an image of its process.
 *
 * A resume that the agent does not answer leaves the VM running. Its commands are frozen still: they go on when the agent is there.
 *
 * A step that fails on the way down is undone: the VM runs and its commands go on.
 */

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/fd.h"
#include "base/id.h"
#include "base/log.h"
#include "base/str.h"
#include "control.h"
#include "data.h"
#include "guest.h"

#define FREEZE_MS 2000
#define SYNC_MS 5000
#define LINK_MS 20000 /* from running again to a session */
#define THAW_MS 30000
#define QUIESCE_MS 120000
#define HELLO_MS 3000
#define FSFREEZE_MS 10000 /* the guest may have much to write */
#define ENTROPY_BYTES 64

static void finish(struct warden *w, int err, const struct error *e) {
        warden_done cb = STEAL(w->hold.cb);
        w->hold.kind = HOLD_NONE;
        w->hold.waiting = false;
        w->hold.fd = fd_close(w->hold.fd);
        uv_timer_stop(&w->timer);
        if (cb)
                cb(w->hold.arg, err, e);
}

void hold_ended(struct warden *w, const struct error *e) {
        if (w->hold.kind != HOLD_NONE)
                finish(w, e->code, e);
}

/* Whether the callback of something asked earlier comes too late to matter. */
static bool over(const struct warden *w) {
        return w->freeing || warden_ended(w) || w->hold.kind == HOLD_NONE;
}

/* An agent that cannot be asked is one that did not answer. */
static void ask_agent(struct warden *w, const char *path, control_body body, unsigned timeout_ms, control_cb cb) {
        const struct control_request r = {
                .method = "POST", .path = path, .body = body, .timeout_ms = timeout_ms, .cb = cb, .arg = w };
        struct error e = ERROR_INIT;
        if (control_call(w->loop, warden_link(w), &r, &w->hold.call, &e) < 0)
                cb(w, e.code, &e, NULL);
}

/* ---- going on -------------------------------------------------------------------------------- */

static char *thaw_body(void *arg) {
        uint8_t entropy[ENTROPY_BYTES];
        char text[4 * ENTROPY_BYTES], *body = NULL;
        (void) arg;
        if (random_bytes(entropy, sizeof(entropy)) < 0)
                return NULL;
        base64_encode(entropy, sizeof(entropy), text);
        if (asprintf(&body, "{\"timeNs\":\"%lld\",\"entropy\":\"%s\"}", (long long) clock_real_ns(), text) < 0)
                body = NULL;
        explicit_bzero(entropy, sizeof(entropy));
        explicit_bzero(text, sizeof(text));
        return body;
}

static void on_thawed(void *arg, int err, const struct error *e, const json_t *answer) {
        struct warden *w = arg;
        w->hold.call = NULL;
        if (over(w))
                return;
        if (json_is_true(json_object_get(answer, "identified")))
                w->identified = true;
        w->hold.owed = err < 0;
        warden_set_state(w, WARDEN_RUNNING, room_reason(w));
        struct error stands = ERROR_INIT;
        if (err < 0 && *room_reason(w)) {
                error_set(&stands, err, "the VM runs again, but %s", room_reason(w));
                e = &stands;
        }
        finish(w, err, e);
        data_link_up(w->data);
}

static void thaw(struct warden *w) {
        uv_timer_stop(&w->timer);
        w->hold.waiting = false;
        ask_agent(w, "/control/thaw", thaw_body, THAW_MS, on_thawed);
}

static void on_link_late(uv_timer_t *t) {
        struct warden *w = t->data;
        struct error e = ERROR_INIT;
        error_set(&e, -ETIMEDOUT, "the VM runs again, but %s", *room_reason(w) ? room_reason(w) : "its agent does not answer");
        w->hold.owed = true;
        warden_set_state(w, WARDEN_RUNNING, room_reason(w));
        finish(w, e.code, &e);
}

static void on_runs(void *arg, int err, const struct error *e) {
        struct warden *w = arg;
        if (over(w))
                return;
        w->hold.took_us = clock_mono_us() - w->hold.asked_us;
        if (err < 0)
                return finish(w, err, e);
        if (warden_link(w))
                return thaw(w);
        w->hold.waiting = true;
        uv_timer_start(&w->timer, on_link_late, LINK_MS, 0);
        guest_connect(w->guest, HELLO_MS);
}

void hold_guest_up(struct warden *w) {
        if (w->hold.kind == HOLD_RESUME && w->hold.waiting)
                thaw(w);
}

bool hold_owes(struct warden *w) {
        if (!w->hold.owed || warden_busy(w, NULL) < 0)
                return false;
        w->hold.owed = false;
        warden_resume(w, NULL, NULL);
        return true;
}

/* What was begun cannot be done: the sandbox goes on as if nothing had been. */
static void give_up(struct warden *w, const struct error *e) {
        const struct error why = *e;
        finish(w, why.code, &why);
        warden_resume(w, NULL, NULL);
}

/* ---- saving ------------------------------------------------------------------------------------ */

static void let_go(struct warden *w) {
        if (w->vmm->ops->let_go)
                w->vmm->ops->let_go(w->vmm);
}

static void on_saved(void *arg, int err, const struct error *e) {
        struct warden *w = arg;
        if (over(w))
                return;
        if (err < 0)
                return give_up(w, e);
        let_go(w);
        finish(w, 0, NULL);
}

static void on_stopped(void *arg, int err, const struct error *e) {
        struct warden *w = arg;
        if (over(w))
                return;
        if (err < 0)
                return give_up(w, e);
        w->hold.took_us = clock_mono_us() - w->hold.asked_us;
        warden_set_state(w, WARDEN_PAUSED, "");
        if (w->hold.kind == HOLD_SAVE)
                return w->vmm->ops->save(w->vmm, w->hold.fd, on_saved, w);
        if (w->hold.kind == HOLD_PARK)
                let_go(w);
        finish(w, 0, NULL);
}

static void stop(struct warden *w) {
        w->hold.waiting = false;
        uv_timer_stop(&w->timer);
        w->hold.asked_us = clock_mono_us();
        w->vmm->ops->pause(w->vmm, on_stopped, w);
}

void hold_guest_left(struct warden *w) {
        if ((w->hold.kind == HOLD_SAVE || w->hold.kind == HOLD_PARK) && w->hold.waiting)
                stop(w);
}

static void leave(struct warden *w, bool ask) {
        w->hold.waiting = true;
        guest_leave(w->guest, ask);
}

static void on_runs_for_leaving(void *arg, int err, const struct error *e) {
        struct warden *w = arg;
        if (over(w))
                return;
        if (err < 0)
                return finish(w, err, e);
        leave(w, true);
}

/* ---- stopping ---------------------------------------------------------------------------------- */

static void on_synced(void *arg, int err, const struct error *e, const json_t *answer) {
        struct warden *w = arg;
        (void) answer;
        w->hold.call = NULL;
        if (over(w))
                return;
        w->hold.synced = err >= 0;
        if (err < 0)
                log_warn("sandbox %s: what it wrote is not all on its disk: %s", w->id, e->msg);
        stop(w);
}

static void on_frozen(void *arg, int err, const struct error *e, const json_t *answer) {
        struct warden *w = arg;
        (void) answer;
        w->hold.call = NULL;
        if (over(w))
                return;
        if (err < 0)
                log_warn("sandbox %s: its commands could not be frozen: %s", w->id, e->msg);
        if (w->hold.kind == HOLD_PARK)
                w->identified = false;
        if (w->hold.kind != HOLD_PAUSE)
                leave(w, err != -ETIMEDOUT);
        else if (err == -ETIMEDOUT)
                stop(w); /* it had its time */
        else
                ask_agent(w, "/control/fssync", NULL, SYNC_MS, on_synced);
}

static void freeze(struct warden *w) {
        ask_agent(w, "/control/freeze", NULL, FREEZE_MS, on_frozen);
}

static void on_quiesced(void *arg, int err, const struct error *e, const json_t *answer) {
        struct warden *w = arg;
        (void) answer;
        w->hold.call = NULL;
        if (over(w))
                return;
        if (err < 0)
                return finish(w, err, e);
        w->identified = false;
        leave(w, true);
}

static int begin(struct warden *w, enum hold_kind kind, unsigned cap, int fd, warden_done cb, void *arg) {
        struct error e = ERROR_INIT;
        if (warden_ended(w))
                error_set(&e, -ESHUTDOWN, "the VM has ended: %s", w->reason);
        else if (!(w->vmm->caps & cap))
                error_set(&e, -ENOTSUP, "this kind of VM cannot be paused or saved");
        else if (w->state == WARDEN_STARTING)
                error_set(&e, -EBUSY, "the VM is not up yet");
        else
                (void) warden_busy(w, &e);
        if (e.code < 0) {
                (void) fd_close(fd);
                if (cb)
                        cb(arg, e.code, &e);
                return e.code;
        }
        w->hold.kind = kind;
        w->hold.cb = cb;
        w->hold.arg = arg;
        w->hold.fd = fd;
        w->hold.took_us = 0;
        w->hold.synced = false;
        return 0;
}

void warden_pause(struct warden *w, warden_done cb, void *arg) {
        if (begin(w, HOLD_PAUSE, VMM_CAP_PAUSE, -EBADF, cb, arg) < 0)
                return;
        if (w->state == WARDEN_PAUSED)
                finish(w, 0, NULL);
        else
                freeze(w);
}

void warden_resume(struct warden *w, warden_done cb, void *arg) {
        if (begin(w, HOLD_RESUME, VMM_CAP_PAUSE, -EBADF, cb, arg) < 0)
                return;
        /* Also when it runs: the commands may be frozen, if an earlier warden got no further. */
        w->hold.asked_us = clock_mono_us();
        w->vmm->ops->resume(w->vmm, on_runs, w);
}

uint64_t warden_held_us(const struct warden *w) {
        return w->hold.took_us;
}

bool warden_synced(const struct warden *w) {
        return w->hold.synced;
}

void warden_save(struct warden *w, int fd, warden_done cb, void *arg) {
        if (begin(w, HOLD_SAVE, VMM_CAP_SAVE, fd, cb, arg) < 0)
                return;
        if (w->state != WARDEN_PAUSED)
                freeze(w);
        else if (warden_link(w))
                w->vmm->ops->resume(w->vmm, on_runs_for_leaving, w);
        else
                w->vmm->ops->pause(w->vmm, on_stopped, w);
}

/* The one step that a running guest's agent takes. */
static void ask_running(struct warden *w, const char *path, unsigned timeout_ms, control_cb cb) {
        struct error e = ERROR_INIT;
        if (w->state == WARDEN_PAUSED)
                finish(w, error_set(&e, -EBUSY, "the VM is paused"), &e);
        else
                ask_agent(w, path, NULL, timeout_ms, cb);
}

void warden_park(struct warden *w, bool keep, warden_done cb, void *arg) {
        if (begin(w, HOLD_PARK, VMM_CAP_SAVE, -EBADF, cb, arg) < 0)
                return;
        if (keep && w->state != WARDEN_PAUSED)
                freeze(w);
        else
                ask_running(w, "/control/quiesce", QUIESCE_MS, on_quiesced);
}

/* ---- the filesystem ------------------------------------------------------------------------------ */

static void on_fsfrozen(void *arg, int err, const struct error *e, const json_t *answer) {
        struct warden *w = arg;
        (void) answer;
        w->hold.call = NULL;
        if (!over(w))
                finish(w, err, e);
}

void warden_fsfreeze(struct warden *w, bool on, warden_done cb, void *arg) {
        if (begin(w, HOLD_FSFREEZE, VMM_CAP_PAUSE, -EBADF, cb, arg) == 0)
                ask_running(w, on ? "/control/fsfreeze" : "/control/fsthaw", FSFREEZE_MS, on_fsfrozen);
}
