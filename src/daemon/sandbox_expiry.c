/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Time to live. One timer, set to the earliest expiry; at least once a minute while there is any, so
 * that a wall clock that was set does not hold anything up for long.
 */

#include <errno.h>
#include <stdlib.h>

#include "app.h"
#include "base/clock.h"
#include "base/log.h"
#include "op.h"
#include "sandbox_flow.h"
#include "timer.h"

#define LOOK_AGAIN_MS 60000

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

static int64_t first_of(struct app *app) {
        int64_t first = 0;
        for (const struct sandbox *s = sandbox_oldest(app); s; s = s->next)
                if (s->expires_ms && !s->del && s->state != SANDBOX_POOLED && (!first || s->expires_ms < first))
                        first = s->expires_ms;
        return first;
}

static void look(void *arg) {
        struct expiry *e = arg;
        e->timer = NULL;
        int64_t now = clock_real_ms();
        struct sandbox *next;
        for (struct sandbox *s = sandbox_oldest(e->app); s; s = next) {
                struct op *o;
                struct error err = ERROR_INIT;
                next = s->next;
                if (!s->expires_ms || s->expires_ms > now || s->del || s->state == SANDBOX_POOLED)
                        continue;
                if (sandbox_delete(e->app, s, "its time to live is over", "", NULL, NULL, NULL, &o, &err) < 0)
                        log_error("sandbox %s could not be deleted at its expiry: %s", s->id, err.msg);
        }
        int64_t first = first_of(e->app);
        /* One that could not be deleted now is tried again in a second. */
        arm(e, first && first <= now ? now + 1000 : first);
}

void expiry_changed(struct app *app) {
        struct expiry *e = app->expiry;
        int64_t first = first_of(app);
        if (first != e->armed_for_ms)
                arm(e, first);
}

int expiry_new(struct app *app, struct expiry **ret, struct error *err) {
        struct expiry *e = calloc(1, sizeof *e);
        if (!e)
                return error_set(err, -ENOMEM, "out of memory");
        e->app = app;
        *ret = e;
        return 0;
}

void expiry_free(struct expiry *e) {
        if (!e)
                return;
        timer_cancel(e->timer);
        free(e);
}
