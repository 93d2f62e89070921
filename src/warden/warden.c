/* SPDX-License-Identifier: Apache-2.0 */
#include "warden.h"

/*
 * boot     VM runs -> link up = RUNNING -> IDENTIFY and use as usual, or SNAPSHOT: quiesce the agent,
 *          leave it, freeze and write the VM -> EXITED
 * restore  VM loaded -> run -> link up = RUNNING -> IDENTIFY
 * adopt    as restore; the agent is asked whether it has its identity already
 *
 * Before a snapshot the agent is told to quiesce, which ends all processes and makes it forget the
 * identity it was given for warming up: what goes into a template belongs to nobody.
 *
 * A kernel that hangs while booting (which happens under TCG on a busy host, see qemu_args.c) is
 * started over a few times before that is an error.
 */

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/fd.h"
#include "base/id.h"
#include "base/json.h"
#include "base/limits.h"
#include "base/log.h"
#include "base/str.h"
#include "control.h"
#include "ctl.h"
#include "data.h"
#include "guest.h"
#include "warden_internal.h"

#define HELLO_MS 3000         /* restored or adopted: the agent is there already */
#define GUEST_DOWN_LINES 5 /* in ten seconds: a guest can lose its link as often as it likes */
#define INIT_TIMEOUT_MS 60000
#define QUIESCE_TIMEOUT_MS 120000
#define STATS_TIMEOUT_MS 30000
#define STOP_GRACE_MS 10000   /* beyond what the agent was given: sync and power off */
#define ENTROPY_BYTES 64
#define CONSOLE_TEXT 240      /* of the console in the reason of a failed boot */

static const unsigned boot_attempts_ms[] = { 45000, 60000, 90000 };

const char *warden_state_name(enum warden_state s) {
        static const char *const names[] = {
                [WARDEN_STARTING] = "starting",
                [WARDEN_RUNNING] = "running",
                [WARDEN_PAUSED] = "paused",
                [WARDEN_FAILED] = "failed",
                [WARDEN_EXITED] = "exited",
        };
        return names[s];
}

bool warden_ended(const struct warden *w) {
        return w->state == WARDEN_FAILED || w->state == WARDEN_EXITED;
}

struct link *warden_link(const struct warden *w) {
        return guest_link(w->guest);
}

void warden_set_state(struct warden *w, enum warden_state state, const char *reason) {
        if (w->state == state || warden_ended(w))
                return;
        w->state = state;
        snprintf(w->reason, sizeof(w->reason), "%s", reason);
        log_info("sandbox %s: %s%s%s", w->id, warden_state_name(state), *reason ? ": " : "", reason);
        ctl_event(w->ctl, state, reason);
}

/* ---- the VM -------------------------------------------------------------------------------- */

static void finish_identify(struct warden *w, int err, const struct error *e) {
        warden_ready_cb cb = STEAL(w->identify.cb);
        json_decref(STEAL(w->identify.json));
        if (!cb)
                return;
        struct warden_times t = { 0 };
        w->vmm->ops->times(w->vmm, &t.spawn_us, &t.load_us);
        t.link_us = w->up_us > w->run_us ? w->up_us - w->run_us : 0;
        t.identify_us = clock_mono_us() - w->identify.sent_us;
        cb(w->identify.arg, err, e, &t);
}

static void finish_snapshot(struct warden *w, int err, const struct error *e) {
        warden_done cb = STEAL(w->snapshot.cb);
        if (cb)
                cb(w->snapshot.arg, err, e);
}

static void cancel_calls(struct warden *w) {
        control_cancel(w->identify.call);
        control_cancel(w->snapshot.call);
        control_cancel(w->stop.call);
        control_cancel(w->hold.call);
        control_cancel(w->stats_call);
        for (size_t i = 0; i < ARRAY_SIZE(w->warm_calls); i++)
                control_cancel(w->warm_calls[i]);
}

/* The VM has ended, for whatever reason: the one place where all that depends on it is let go. */
static void ended(struct warden *w, enum warden_state state, const char *reason) {
        if (warden_ended(w))
                return;
        uv_timer_stop(&w->timer);
        room_ended(w);
        warden_set_state(w, state, reason);
        struct error e = ERROR_INIT;
        error_set(&e, -ESHUTDOWN, "the VM has ended: %s", w->reason);
        cancel_calls(w);
        finish_identify(w, e.code, &e);
        finish_snapshot(w, e.code, &e);
        hold_ended(w, &e);
        warden_done cb = STEAL(w->stop.cb);
        if (cb)
                cb(w->stop.arg, 0, NULL);
        guest_disconnect(w->guest);
        data_end(w->data, w->reason);
}

/* What of the console says most in little room: from the panic on, or the end. */
static const char *console_text(struct warden *w) {
        const char *words = w->vmm->ops->last_words(w->vmm), *panic = strstr(words, "Kernel panic");
        size_t n = strlen(words);
        return panic ? panic : words + (n > CONSOLE_TEXT ? n - CONSOLE_TEXT : 0);
}

static void on_vmm_end(void *arg, enum vmm_end how, const char *reason) {
        struct warden *w = arg;
        if (w->state == WARDEN_STARTING && w->mode == WARDEN_BOOT) {
                char text[ERROR_MSG_MAX];
                snprintf(text, sizeof(text), "%.200s while booting; console: %.*s", reason, CONSOLE_TEXT,
                         console_text(w));
                return ended(w, WARDEN_FAILED, text);
        }
        ended(w, how == VMM_EXITED ? WARDEN_EXITED : WARDEN_FAILED, reason);
}

static void on_boot_timeout(uv_timer_t *t);

static void arm_boot_timer(struct warden *w) {
        uv_timer_start(&w->timer, on_boot_timeout, boot_attempts_ms[w->boot_attempt], 0);
}

static void on_reset(void *arg, int err, const struct error *e) {
        struct warden *w = arg;
        if (err < 0)
                ended(w, WARDEN_FAILED, e->msg);
}

static void on_boot_timeout(uv_timer_t *t) {
        struct warden *w = t->data;
        if (++w->boot_attempt < ARRAY_SIZE(boot_attempts_ms) && (w->vmm->caps & VMM_CAP_RESET)) {
                log_warn("sandbox %s: the guest has not come up in %u s; starting it over", w->id,
                         boot_attempts_ms[w->boot_attempt - 1] / 1000);
                arm_boot_timer(w);
                return w->vmm->ops->reset(w->vmm, on_reset, w);
        }
        char text[ERROR_MSG_MAX];
        snprintf(text, sizeof(text), "the guest did not come up in %zu attempts; console: %.*s", w->boot_attempt,
                 CONSOLE_TEXT, console_text(w));
        w->vmm->ops->stop(w->vmm);
        ended(w, WARDEN_FAILED, text);
}

static void on_vmm_loaded(void *arg) {
        struct warden *w = arg;
        /* It was stopped on purpose, or on its way up: whoever asks for it knows. */
        if (w->mode == WARDEN_ADOPT)
                return warden_set_state(w, WARDEN_PAUSED, "");
        w->run_us = clock_mono_us();
        guest_connect(w->guest, HELLO_MS);
        w->vmm->ops->run(w->vmm);
}

static void on_vmm_running(void *arg) {
        struct warden *w = arg;
        if (w->mode == WARDEN_BOOT)
                arm_boot_timer(w);
        if (w->run_us)
                return;
        w->run_us = clock_mono_us();
        guest_connect(w->guest, w->mode == WARDEN_BOOT ? 0 : HELLO_MS);
}

static void on_vmm_port_closed(void *arg) {
        struct warden *w = arg;
        guest_port_closed(w->guest);
}

static void on_vmm_no_room(void *arg) {
        room_missing(arg);
}

static const struct vmm_handler vmm_handler = {
        .on_loaded = on_vmm_loaded,
        .on_running = on_vmm_running,
        .on_end = on_vmm_end,
        .on_port_closed = on_vmm_port_closed,
        .on_no_room = on_vmm_no_room,
};

/* ---- the agent ----------------------------------------------------------------------------- */

static char *identify_body(void *arg) {
        struct warden *w = arg;
        uint8_t entropy[ENTROPY_BYTES];
        char text[4 * ENTROPY_BYTES], now[24];
        if (random_bytes(entropy, sizeof(entropy)) < 0)
                return NULL;
        base64_encode(entropy, sizeof(entropy), text);
        snprintf(now, sizeof(now), "%lld", (long long) clock_real_ns());
        json_object_set_new(w->identify.json, "entropy", json_string(text));
        json_object_set_new(w->identify.json, "timeNs", json_string(now));
        if (w->disk_bytes)
                json_object_set_new(w->identify.json, "diskBytes", json_integer((json_int_t) w->disk_bytes));
        explicit_bzero(entropy, sizeof(entropy));
        explicit_bzero(text, sizeof(text));
        return json_dumps(w->identify.json, JSON_COMPACT);
}

static void on_identified(void *arg, int err, const struct error *e, const json_t *answer) {
        struct warden *w = arg;
        (void) answer;
        w->identify.call = NULL;
        if (err == 0)
                w->identified = true;
        if (w->freeing || warden_ended(w))
                return; /* ended() says what is to be said */
        if (err == -ECONNRESET && !guest_up(w->guest))
                return; /* the session was lost; the next one brings it up again */
        finish_identify(w, err, e);
}

static void send_identity(struct warden *w) {
        if (!w->identify.cb || w->identify.call || !guest_up(w->guest))
                return;
        const struct control_request r = {
                .method = "POST",
                .path = "/control/init",
                .body = identify_body,
                .timeout_ms = INIT_TIMEOUT_MS,
                .cb = on_identified,
                .arg = w,
        };
        struct error e = ERROR_INIT;
        if (!w->identify.sent_us)
                w->identify.sent_us = clock_mono_us();
        if (control_call(w->loop, warden_link(w), &r, &w->identify.call, &e) < 0)
                finish_identify(w, e.code, &e);
}

static void on_warmed(void *arg, int err, const struct error *e, const json_t *answer) {
        struct control_call **slot = arg;
        (void) err;
        (void) e;
        (void) answer;
        *slot = NULL;
}

/* A VM that waits to be given to somebody uses the time: what it is asked here goes the way that its
 * identity and the first command will, and is translated by then. */
static void warm_up(struct warden *w) {
        static const char agent_api[] = "127.0.0.1:49983";
        _Static_assert(AGENT_PORT == 49983, "authority of the agent's API");
        const struct control_request asked[ARRAY_SIZE(w->warm_calls)] = {
                { .method = "GET", .path = "/control/stats" },
                { .method = "GET", .path = "/health", .authority = agent_api },
        };
        for (size_t i = 0; i < ARRAY_SIZE(asked); i++) {
                struct control_request r = asked[i];
                r.timeout_ms = STATS_TIMEOUT_MS;
                r.cb = on_warmed;
                r.arg = &w->warm_calls[i];
                if (!w->warm_calls[i])
                        (void) control_call(w->loop, warden_link(w), &r, &w->warm_calls[i], NULL);
        }
}

static void is_up(struct warden *w) {
        if (w->hold.kind != HOLD_NONE)
                return hold_guest_up(w);
        if (w->state == WARDEN_PAUSED)
                return;
        warden_set_state(w, WARDEN_RUNNING, "");
        if (hold_owes(w))
                return;
        if (w->identify.cb)
                send_identity(w);
        else if (w->mode == WARDEN_RESTORE && !w->identified)
                warm_up(w);
        data_link_up(w->data);
}

static void on_stats(void *arg, int err, const struct error *e, const json_t *answer) {
        struct warden *w = arg;
        (void) e;
        w->stats_call = NULL;
        if (w->freeing || warden_ended(w))
                return;
        if (err == 0 && json_is_true(json_object_get(answer, "identified")))
                w->identified = true;
        is_up(w);
}

static void on_guest_up(void *arg) {
        struct warden *w = arg;
        if (!w->up_us)
                w->up_us = clock_mono_us();
        if (w->mode == WARDEN_BOOT && w->state == WARDEN_STARTING)
                uv_timer_stop(&w->timer);
        if (w->mode == WARDEN_ADOPT && w->state == WARDEN_STARTING) {
                const struct control_request r = {
                        .method = "GET",
                        .path = "/control/stats",
                        .timeout_ms = STATS_TIMEOUT_MS,
                        .cb = on_stats,
                        .arg = w,
                };
                if (control_call(w->loop, warden_link(w), &r, &w->stats_call, NULL) >= 0)
                        return;
        }
        is_up(w);
}

static void on_guest_down(void *arg, const char *why) {
        static struct log_limit limit;
        struct warden *w = arg;
        unsigned dropped = 0;
        if (warden_ended(w) || !log_limit_pass(&limit, GUEST_DOWN_LINES, &dropped))
                return;
        log_warn("sandbox %s: the link to the agent was lost: %s", w->id, why);
        if (dropped)
                log_warn("sandbox %s: and it was %u times before that", w->id, dropped);
}

static void on_snapshotted(void *arg, int err, const struct error *e);

static void on_guest_left(void *arg, bool agreed) {
        struct warden *w = arg;
        if (!agreed)
                log_info("sandbox %s: its agent has not let go of the host; the port was closed", w->id);
        if (w->snapshot.cb)
                w->vmm->ops->snapshot(w->vmm, on_snapshotted, w);
        else
                hold_guest_left(w);
}

static const struct guest_handler guest_handler = { .on_up = on_guest_up, .on_down = on_guest_down, .on_left = on_guest_left };

/* ---- what others ask for ------------------------------------------------------------------- */

void warden_identify(struct warden *w, const void *json, size_t n, warden_ready_cb cb, void *arg) {
        struct error e = ERROR_INIT;
        struct warden_times none = { 0 };
        json_t *o = NULL;
        if (warden_ended(w))
                error_set(&e, -ESHUTDOWN, "the VM has ended: %s", w->reason);
        else if (w->identified)
                error_set(&e, -EALREADY, "the VM has its identity already");
        else
                (void) warden_busy(w, &e);
        if (e.code == 0 && json_parse(json, n, LIMIT_IDENTITY_JSON, &o, &e) >= 0 && !json_is_object(o)) {
                json_decref(o);
                error_set(&e, -EINVAL, "an identity is a JSON object");
        }
        if (e.code < 0)
                return cb(arg, e.code, &e, &none);
        w->identify.cb = cb;
        w->identify.arg = arg;
        w->identify.json = o;
        w->identify.sent_us = 0;
        if (w->state == WARDEN_PAUSED) { /* adopted between being loaded and being run */
                w->state = WARDEN_STARTING;
                w->mode = WARDEN_RESTORE;
                return on_vmm_loaded(w);
        }
        send_identity(w);
}

int warden_busy(const struct warden *w, struct error *err) {
        const char *what = w->identify.cb      ? "given its identity"
                           : w->snapshot.cb    ? "snapshotted"
                           : w->stop.cb        ? "stopped"
                           : w->hold.kind > 0  ? "paused, resumed, saved or parked"
                                               : NULL;
        return what ? error_set(err, -EBUSY, "the VM is being %s", what) : 0;
}

static void on_snapshotted(void *arg, int err, const struct error *e) {
        struct warden *w = arg;
        warden_done cb = STEAL(w->snapshot.cb);
        if (err == 0)
                ended(w, WARDEN_EXITED, "snapshotted");
        if (cb)
                cb(w->snapshot.arg, err, e);
}

static void on_quiesced(void *arg, int err, const struct error *e, const json_t *answer) {
        struct warden *w = arg;
        (void) answer;
        w->snapshot.call = NULL;
        if (err < 0)
                return finish_snapshot(w, err, e);
        w->identified = false;
        guest_leave(w->guest, true); /* or it wakes up in the middle of a session */
}

void warden_snapshot(struct warden *w, warden_done cb, void *arg) {
        struct error e = ERROR_INIT;
        if (w->mode != WARDEN_BOOT || !(w->vmm->caps & VMM_CAP_SNAPSHOT))
                error_set(&e, -ENOTSUP, "only a VM that was booted for it can be snapshotted");
        else if (warden_ended(w))
                error_set(&e, -ESHUTDOWN, "the VM has ended: %s", w->reason);
        else
                (void) warden_busy(w, &e);
        const struct control_request r = {
                .method = "POST",
                .path = "/control/quiesce",
                .timeout_ms = QUIESCE_TIMEOUT_MS,
                .cb = on_quiesced,
                .arg = w,
        };
        if (e.code == 0)
                control_call(w->loop, warden_link(w), &r, &w->snapshot.call, &e);
        if (e.code < 0)
                return cb(arg, e.code, &e);
        w->snapshot.cb = cb;
        w->snapshot.arg = arg;
}

static void finish_stop(struct warden *w, int err, const struct error *e) {
        warden_done cb = STEAL(w->stop.cb);
        uv_timer_stop(&w->timer);
        if (cb)
                cb(w->stop.arg, err, e);
}

static void on_stop_timeout(uv_timer_t *t) {
        struct error e = ERROR_INIT;
        error_set(&e, -ETIMEDOUT, "the guest did not power off in time");
        finish_stop(t->data, e.code, &e);
}

static char *stop_body(void *arg) {
        struct warden *w = arg;
        char *text = NULL;
        return asprintf(&text, "{\"timeoutMs\":%u}", w->stop_ms) < 0 ? NULL : text;
}

static void on_stop_answered(void *arg, int err, const struct error *e, const json_t *answer) {
        struct warden *w = arg;
        (void) answer;
        w->stop.call = NULL;
        /* An agent that powers off may take its answer with it: then the VM's end is the answer. */
        if (err < 0 && err != -ECONNRESET && err != -ECANCELED)
                finish_stop(w, err, e);
}

void warden_stop(struct warden *w, unsigned timeout_ms, warden_done cb, void *arg) {
        struct error e = ERROR_INIT;
        if (warden_ended(w))
                return cb(arg, 0, NULL);
        (void) warden_busy(w, &e);
        w->stop_ms = timeout_ms;
        const struct control_request r = {
                .method = "POST",
                .path = "/control/stop",
                .body = stop_body,
                .timeout_ms = timeout_ms + STOP_GRACE_MS,
                .cb = on_stop_answered,
                .arg = w,
        };
        if (e.code == 0)
                control_call(w->loop, warden_link(w), &r, &w->stop.call, &e);
        if (e.code < 0)
                return cb(arg, e.code, &e);
        w->stop.cb = cb;
        w->stop.arg = arg;
        uv_timer_start(&w->timer, on_stop_timeout, timeout_ms + STOP_GRACE_MS, 0);
}

void warden_query(struct warden *w, struct warden_info *ret) {
        *ret = (struct warden_info){
                .state = w->state,
                .reason = w->reason,
                .identified = w->identified,
                .link_up = guest_answers(w->guest),
        };
        guest_counters(w->guest, &ret->bytes_in, &ret->bytes_out);
}

/* ---- life ---------------------------------------------------------------------------------- */

static int start_vm(struct warden *w, struct error *err) {
        switch (w->mode) {
        case WARDEN_BOOT:
                return w->vmm->ops->boot(w->vmm, err);
        case WARDEN_RESTORE:
                return w->vmm->ops->restore(w->vmm, err);
        case WARDEN_ADOPT:
        default:
                return w->vmm->ops->adopt(w->vmm, err);
        }
}

static int make_parts(struct warden *w, struct warden_config *cfg, struct error *err) {
        int r = vmm_new(w->loop, &cfg->vmm, &vmm_handler, w, &w->vmm, err);
        if (r >= 0)
                r = guest_new(w->loop, w->vmm, &guest_handler, w, &w->guest, err);
        if (r >= 0)
                r = ctl_new(w->loop, fd_steal(&cfg->ctl), w, &w->ctl, err);
        if (r >= 0)
                r = data_new(w->loop, fd_steal(&cfg->data), w, &w->data, err);
        return r;
}

int warden_new(uv_loop_t *loop, struct warden_config *cfg, struct warden **ret, struct error *err) {
        struct warden *w = calloc(1, sizeof(*w));
        int r = w ? 0 : error_set(err, -ENOMEM, "out of memory");
        if (r >= 0) {
                w->loop = loop;
                w->mode = cfg->mode;
                w->disk_bytes = cfg->vmm.disk_bytes;
                w->hold.fd = -EBADF;
                snprintf(w->id, sizeof(w->id), "%s", cfg->id);
                uv_timer_init(loop, &w->timer);
                w->timer.data = w;
                room_init(w);
                r = make_parts(w, cfg, err);
        }
        vmm_config_close(&cfg->vmm);
        cfg->ctl = fd_close(cfg->ctl);
        cfg->data = fd_close(cfg->data);
        if (r < 0) {
                warden_free(w);
                return r;
        }
        struct error e = ERROR_INIT;
        if (start_vm(w, &e) < 0)
                ended(w, WARDEN_FAILED, e.msg);
        *ret = w;
        return 0;
}

static void on_timer_closed(uv_handle_t *h) {
        free(h->data);
}

static void on_room_timer_closed(uv_handle_t *h) {
        struct warden *w = h->data;
        uv_close((uv_handle_t *) &w->timer, on_timer_closed);
}

void warden_free(struct warden *w) {
        if (!w)
                return;
        w->freeing = true;
        cancel_calls(w);
        struct error e = ERROR_INIT;
        error_set(&e, -ECANCELED, "the warden ends");
        if (w->vmm)
                finish_identify(w, e.code, &e);
        if (w->vmm)
                hold_ended(w, &e);
        data_free(w->data);
        ctl_free(w->ctl);
        guest_free(w->guest);
        vmm_free(w->vmm);
        uv_close((uv_handle_t *) &w->room.timer, on_room_timer_closed);
}
