/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Time to live, idleness, and automatic checkpoints (sandbox_rolling.c). One timer, set to the earliest of what comes; at least once a minute while there is
 * any, so that a wall clock that was set does not hold anything up for long. Set back, what is counted from a moment that is now to come is
 * counted anew; a time to live ends when it was said to.
 *
 * Idle is a sandbox that nobody has made a request to for idle_s, and to which no stream is open. Requests note
 * themselves (sandbox_touch()) when they begin and end; one that is open when the time is over counts as a
 * new beginning. What runs in the sandbox does not count: a job nobody waits for is what a time to live is for.
 */

#include <errno.h>
#include <stdlib.h>

#include "api/attach.h"
#include "app.h"
#include "base/clock.h"
#include "base/log.h"
#include "proxy/proxy.h"
#include "sandbox_flow.h"
#include "store/op.h"
#include "timer.h"

#define LOOK_AGAIN_MS 60000
#define BUSY_AGAIN_MS 1000   /* it is on the way between two states */
#define FAILED_AGAIN_MS 60000 /* what was to be done with it did not work */

struct expiry {
        struct app *app;
        struct timer *timer;
        int64_t armed_for_ms; /* wall clock; 0: not armed */
};

static void look(void *arg);

static void arm(struct expiry *e, int64_t first_ms) {
        timer_cancel(e->timer);
        e->timer = NULL;
        e->armed_for_ms = 0;
        if (!first_ms || e->app->stopping)
                return;
        int64_t in = first_ms - clock_real_ms();
        in = in < 0 ? 0 : in > LOOK_AGAIN_MS ? LOOK_AGAIN_MS : in;
        e->timer = timer_start(e->app->loop, (uint64_t) in, look, e);
        e->armed_for_ms = first_ms;
}

static bool has_vm(const struct sandbox *s) {
        return s->state == SANDBOX_RUNNING || s->state == SANDBOX_PAUSED;
}

/* When its time to live or the time without use is over; 0 never. */
static int64_t end_ms(const struct sandbox *s) {
        int64_t due = 0;
        if (s->del || s->state == SANDBOX_POOLED || s->state == SANDBOX_SNAPSHOT || s->state == SANDBOX_DELETED)
                return 0; /* a snapshot has its sandbox's time for what is made of it */
        bool rests = s->state == SANDBOX_SUSPENDED || s->state == SANDBOX_STOPPED || s->state == SANDBOX_FAILED;
        if (s->expires_ms && !(rests && s->rules.on_expiry != SANDBOX_END_DELETE && s->started_ms))
                due = s->expires_ms;
        if (s->rules.idle_s && s->state == SANDBOX_RUNNING) {
                int64_t idle = s->active_ms + (int64_t) s->rules.idle_s * 1000;
                due = due && due < idle ? due : idle;
        }
        return due && due < s->retry_ms ? s->retry_ms : due;
}

/* When it has to be looked at; 0 never. */
static int64_t due_ms(struct sandbox *s) {
        int64_t end = end_ms(s), roll = rolling_due_ms(s);
        return !end || (roll && roll < end) ? roll : end;
}

static int64_t first_of(struct app *app) {
        int64_t first = 0;
        for (struct sandbox *s = sandbox_oldest(app); s; s = s->next) {
                int64_t due = due_ms(s);
                if (due && (!first || due < first))
                        first = due;
        }
        return first;
}

static void act(struct app *app, struct sandbox *s, enum sandbox_end end, const char *why) {
        static const enum sandbox_verb verbs[] = {
                [SANDBOX_END_PAUSE] = SANDBOX_PAUSE,
                [SANDBOX_END_SUSPEND] = SANDBOX_SUSPEND,
                [SANDBOX_END_STOP] = SANDBOX_STOP,
        };
        struct error err = ERROR_INIT;
        struct op *o;
        int64_t now = clock_real_ms();
        if (end == SANDBOX_END_DELETE) {
                if (sandbox_delete(app, s, why, "", NULL, NULL, NULL, &o, &err) < 0) {
                        log_error("sandbox %s could not be deleted: %s", s->id, err.msg);
                        s->retry_ms = now + BUSY_AGAIN_MS;
                }
                return;
        }
        if (!has_vm(s)) {
                s->retry_ms = now + BUSY_AGAIN_MS;
                return;
        }
        s->retry_ms = now + FAILED_AGAIN_MS;
        sandbox_log(app, s, "info", "rule", "%s", why);
        if (sandbox_change(app, s, verbs[end], "", NULL, NULL, NULL, &o, &err) < 0)
                log_error("sandbox %s: %s, but: %s", s->id, why, err.msg);
}

static void look_at(struct app *app, struct sandbox *s, int64_t now) {
        if (s->expires_ms && s->expires_ms <= now) {
                act(app, s, s->rules.on_expiry, "its time to live is over");
        } else if (proxy_busy(app->proxy, s->id) || attach_busy(app, s->id)) {
                s->active_ms = now;
        } else {
                act(app, s, s->rules.on_idle, "nobody has used it for as long as its rules say");
        }
}

/* Moments that have not come yet are of a clock that was set back since. */
static void set_back(struct sandbox *s, int64_t now) {
        if (s->active_ms > now)
                s->active_ms = now;
        if (s->rolled_ms > now)
                s->rolled_ms = now;
        if (s->retry_ms > now + FAILED_AGAIN_MS)
                s->retry_ms = now + FAILED_AGAIN_MS;
}

static void look(void *arg) {
        struct expiry *e = arg;
        e->timer = NULL;
        int64_t now = clock_real_ms();
        struct sandbox *next;
        for (struct sandbox *s = sandbox_oldest(e->app); s; s = next) {
                next = s->next;
                set_back(s, now);
                int64_t end = end_ms(s), roll = rolling_due_ms(s);
                if (roll && roll <= now)
                        rolling_take(e->app, s);
                if (end && end <= now)
                        look_at(e->app, s, now);
        }
        arm(e, first_of(e->app));
}

void expiry_changed(struct app *app) {
        struct expiry *e = app->expiry;
        if (!e)
                return;
        int64_t first = first_of(app);
        if (first != e->armed_for_ms)
                arm(e, first);
}

void sandbox_touch(struct sandbox *s) {
        s->active_ms = clock_real_ms(); /* the timer finds out by itself that it came too early */
}

static void on_traffic_end(void *arg, const char *id) {
        struct sandbox *s = sandbox_find(arg, id);
        if (s)
                sandbox_touch(s);
}

int expiry_new(struct app *app, struct expiry **ret, struct error *err) {
        struct expiry *e = calloc(1, sizeof *e);
        if (!e)
                return error_set(err, -ENOMEM, "out of memory");
        e->app = app;
        proxy_on_end(app->proxy, on_traffic_end, app);
        *ret = e;
        return 0;
}

void expiry_free(struct expiry *e) {
        if (!e)
                return;
        proxy_on_end(e->app->proxy, NULL, NULL);
        timer_cancel(e->timer);
        e->app->expiry = NULL;
        free(e);
}
