/* SPDX-License-Identifier: Apache-2.0 */
#include "provider.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "app.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/str.h"
#include "credential.h"
#include "egress.h"
#include "sandbox/sandbox_flow.h"
#include "timer.h"
#include "token_fetch.h"

struct waiter {
        struct waiter *next;
        provider_cb cb;
        void *arg;
};

struct provider {
        struct app *app;
        struct credential *c;
        struct token_fetch *fetch;
        bool queued;          /* for its turn */
        bool slow;            /* see provider.h */
        uint64_t since;       /* queued or asked: a number that grows */
        struct timer *timer;  /* to renew, or to try again; while asking, the end of its turn */
        unsigned failures;    /* since the last success */
        char reason[ERROR_MSG_MAX]; /* of the last failure; "" none */
        struct waiter *waiters;
};

static void ask(struct provider *p);

static void tell_waiters(struct provider *p, int err, const struct error *e) {
        struct waiter *list = STEAL(p->waiters);
        while (list) { /* p may go with the last of them */
                struct waiter *w = list;
                list = w->next;
                w->cb(w->arg, err, e);
                free(w);
        }
}

void provider_free(struct provider *p) {
        struct error e = ERROR_INIT;
        if (!p)
                return;
        token_fetch_free(p->fetch);
        timer_cancel(p->timer);
        p->fetch = NULL;
        p->timer = NULL;
        (void) error_set(&e, -ECANCELED, "the credential has been changed or removed meanwhile");
        tell_waiters(p, -ECANCELED, &e);
        free(p);
}

static bool in_use(const struct provider *p) {
        for (const struct sandbox *s = sandbox_oldest(p->app); s; s = s->next)
                if (egress_needs(s, credential_name(p->c)))
                        return true;
        return false;
}

/* ---- taking turns --------------------------------------------------------------------------- */

static void queue(struct provider *p) {
        if (!p->queued)
                p->since = ++p->app->provider_turns;
        p->queued = true;
}

struct turns {
        unsigned asking, slow;
        struct provider *longest; /* slow, asked for longest */
        struct provider *next;    /* waiting for longest, among those that are not slow if there are any */
};

static struct turns look_around(struct app *app) {
        struct turns t = { 0 };
        struct credential *c;
        for (size_t pos = 0; (c = credential_next(app, &pos));) {
                struct provider *p = credential_runtime(c);
                if (!p)
                        continue;
                t.asking += p->fetch != NULL;
                t.slow += p->fetch && p->slow;
                if (p->fetch && p->slow && (!t.longest || p->since < t.longest->since))
                        t.longest = p;
                if (p->queued && (!t.next || (p->slow == t.next->slow ? p->since < t.next->since : !p->slow)))
                        t.next = p;
        }
        return t;
}

/* It was told to be quick, and others wait. Who waits for its token goes on waiting. */
static void give_way(struct provider *p) {
        token_fetch_free(STEAL(p->fetch));
        timer_cancel(STEAL(p->timer));
        queue(p);
}

static void next_turn(struct app *app) {
        for (;;) {
                struct turns t = look_around(app);
                if (!t.next || (t.next->slow && t.slow >= PROVIDER_SLOW_MAX))
                        return;
                if (t.asking >= PROVIDER_ASKING_MAX && t.slow <= PROVIDER_SLOW_MAX)
                        return;
                if (t.asking >= PROVIDER_ASKING_MAX)
                        give_way(t.longest);
                t.next->queued = false;
                ask(t.next);
        }
}

static void on_turn_over(void *arg) {
        struct provider *p = arg;
        p->timer = NULL;
        p->slow = true;
        next_turn(p->app);
}

/* ---- answers -------------------------------------------------------------------------------- */

static void on_time(void *arg) {
        struct provider *p = arg;
        p->timer = NULL;
        if (!p->queued && !in_use(p))
                return;
        queue(p);
        next_turn(p->app);
}

static void wait_ms(struct provider *p, uint64_t ms) {
        timer_cancel(p->timer);
        p->timer = timer_start(p->app->loop, ms, on_time, p);
}

static void failed(struct provider *p, int err, const struct error *e) {
        unsigned shift = p->failures < 16 ? p->failures : 16;
        uint64_t pause = (uint64_t) PROVIDER_PAUSE_MIN_MS << shift;
        if (pause > PROVIDER_PAUSE_MAX_MS)
                pause = PROVIDER_PAUSE_MAX_MS;
        (void) snprintf(p->reason, sizeof p->reason, "%s", e->msg);
        log_warn("credential \"%s\": no token: %s; the next try is in %llu s", credential_name(p->c), e->msg,
                 (unsigned long long) pause / 1000);
        for (struct sandbox *s = p->failures ? NULL : sandbox_oldest(p->app); s; s = s->next)
                if (egress_needs(s, credential_name(p->c)))
                        sandbox_log(p->app, s, "error", "credential_failed", "credential \"%s\": no token: %s", credential_name(p->c), e->msg);
        p->failures++;
        p->app->counters.tokens_failed++;
        wait_ms(p, pause);
        tell_waiters(p, err, e);
}

static void succeeded(struct provider *p, const char *secret, uint64_t seconds) {
        struct error e = ERROR_INIT;
        uint64_t life = seconds * 1000, margin = life / 5;
        int r = credential_set_token(p->app, p->c, secret, clock_real_ms() + (int64_t) life);
        if (r < 0) {
                (void) error_errno(&e, r, "the token could not be kept");
                failed(p, r, &e);
                return;
        }
        if (p->failures)
                log_info("credential \"%s\": there is a token again", credential_name(p->c));
        p->failures = 0;
        p->app->counters.tokens++;
        p->reason[0] = '\0';
        margin = margin > PROVIDER_MARGIN_MAX_MS ? PROVIDER_MARGIN_MAX_MS : margin;
        wait_ms(p, life - margin < PROVIDER_PAUSE_MIN_MS ? PROVIDER_PAUSE_MIN_MS : life - margin);
        for (struct sandbox *s = sandbox_oldest(p->app); s; s = s->next)
                if (egress_needs(s, credential_name(p->c)))
                        egress_give_secret(s, credential_name(p->c));
        tell_waiters(p, 0, NULL);
}

static void on_fetched(void *arg, int err, const struct error *e, const char *secret, uint64_t seconds) {
        struct provider *p = arg;
        struct app *app = p->app;
        p->fetch = NULL;
        if (app->stopping)
                return;
        if (err == -EAGAIN || err == -EALREADY) { /* others of this host's, or an end that takes a moment: no failure of this one */
                queue(p);
                wait_ms(p, PROVIDER_PAUSE_MIN_MS);
                return;
        }
        p->slow = !p->timer; /* the turn was over before the answer came */
        if (err < 0)
                failed(p, err, e);
        else
                succeeded(p, secret, seconds);
        next_turn(app);
}

static void ask(struct provider *p) {
        struct error e = ERROR_INIT;
        timer_cancel(STEAL(p->timer));
        int r = token_fetch_start(p->app, p->c, on_fetched, p, &p->fetch, &e);
        if (r < 0) {
                failed(p, r, &e);
                return;
        }
        p->since = ++p->app->provider_turns;
        p->timer = timer_start(p->app->loop, PROVIDER_TURN_MS, on_turn_over, p);
}

/* ---- asked for ------------------------------------------------------------------------------ */

static struct provider *of(struct app *app, const char *name) {
        struct credential *c = credential_find_own(app, name);
        if (!c || credential_provider(c) == CREDENTIAL_STATIC)
                return NULL;
        struct provider *p = credential_runtime(c);
        if (!p && (p = calloc(1, sizeof *p))) {
                *p = (struct provider){ .app = app, .c = c };
                credential_set_runtime(c, p);
        }
        return p;
}

void provider_want(struct app *app, const char *credential) {
        struct provider *p = of(app, credential);
        if (!p || p->fetch || p->queued || p->timer)
                return;
        queue(p);
        next_turn(app);
}

int provider_fetch(struct app *app, const char *credential, provider_cb cb, void *arg, struct error *err) {
        struct provider *p = of(app, credential);
        struct waiter *w = cb ? calloc(1, sizeof *w) : NULL;
        if (!p || (cb && !w)) {
                free(w);
                return error_set(err, -ENOMEM, "out of memory");
        }
        if (w) {
                *w = (struct waiter){ .next = p->waiters, .cb = cb, .arg = arg };
                p->waiters = w;
        }
        if (p->fetch) { /* it may have been asked with what is not so any more */
                token_fetch_free(STEAL(p->fetch));
                timer_cancel(STEAL(p->timer));
        }
        p->failures = 0;
        p->slow = false; /* who asks may know that it is mended */
        queue(p);
        next_turn(app);
        return 0;
}

json_t *provider_to_json(const struct credential *c) {
        const struct provider *p = credential_runtime(c);
        char expires[RFC3339_SIZE];
        int64_t at = credential_expires_ms(c);
        bool good = at > clock_real_ms(), asking = p && (p->fetch || p->queued), bad = p && p->reason[0];
        clock_rfc3339(at, expires);
        return json_pack("{s:s, s:s?, s:s?}", "state", good ? "ready" : asking && !bad ? "asking" : bad ? "failed" : "idle", "expires_at",
                         good ? expires : NULL, "reason", bad ? p->reason : NULL);
}
