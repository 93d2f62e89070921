/* SPDX-License-Identifier: Apache-2.0 */
#include "settle.h"

#include <errno.h>
#include <stdlib.h>

#include "app.h"
#include "base/str.h"
#include "sandbox_flow.h"
#include "timer.h"

#define SETTLE_LIMIT_MS 3000  /* then the rows are all there is to tell */
#define STORED_LIMIT_MS 30000 /* a disk without reflinks is copied */

struct waiting {
        struct waiting *next, **at; /* *at == this */
        struct api_req *r;
        void (*fn)(struct api_req *r);
        struct sandbox *of;  /* a reference; NULL: waits for the first pass */
        struct timer *limit; /* of one with `of` */
};

struct settle {
        struct timer *limit; /* NULL: over */
        bool known;
        struct waiting *first, **end;
};

/* Takes w out and frees it; its request, which is answered or goes on now. */
static struct api_req *take_out(struct settle *s, struct waiting *w) {
        struct api_req *r = w->r;
        *w->at = w->next;
        if (w->next)
                w->next->at = w->at;
        else
                s->end = w->at;
        timer_cancel(w->limit);
        sandbox_unref(w->of);
        r->on_gone = NULL;
        free(w);
        return r;
}

static void go_on(struct settle *s, struct waiting *w) {
        void (*fn)(struct api_req *) = w->fn;
        struct api_req *r = take_out(s, w);
        if (r->x && !settle_hold(s, r, fn)) /* the pass may have found that its sandbox is lost */
                fn(r);
        api_req_unref(r);
}

static void over(struct settle *s) {
        timer_cancel(s->limit);
        s->limit = NULL;
        for (struct waiting *w = s->first, *next; w; w = next) {
                next = w->next;
                if (w->of)
                        continue;
                go_on(s, w);
                next = s->first; /* what went on may have answered others */
        }
}

static void on_limit(void *arg) {
        struct settle *s = arg;
        s->limit = NULL;
        over(s);
}

int settle_new(struct app *app, struct settle **ret, struct error *err) {
        struct settle *s = calloc(1, sizeof *s);
        if (s)
                s->limit = timer_start(app->loop, SETTLE_LIMIT_MS, on_limit, s);
        if (!s || !s->limit) {
                free(s);
                return error_set(err, -ENOMEM, "out of memory");
        }
        s->end = &s->first;
        *ret = s;
        return 0;
}

void settle_free(struct settle *s) {
        if (!s)
                return;
        timer_cancel(s->limit);
        while (s->first) /* their clients have gone */
                api_req_unref(take_out(s, s->first));
        free(s);
}

bool settle_known(const struct settle *s) {
        return s->known;
}

void settle_done(struct settle *s) {
        s->known = true;
        over(s);
}

void settle_stored(struct settle *s, const struct sandbox *of) {
        for (struct waiting *w = s ? s->first : NULL, *next; w; w = next) {
                next = w->next;
                if (w->of != of)
                        continue;
                go_on(s, w);
                next = s->first;
        }
}

static void on_gone(void *arg) {
        struct waiting *w = arg;
        api_req_unref(take_out(w->r->app->settle, w));
}

static void on_too_late(void *arg) {
        struct waiting *w = arg;
        w->limit = NULL;
        char id[ID_SIZE];
        (void) str_copy(id, sizeof id, w->of->id);
        struct api_req *r = take_out(w->r->app->settle, w);
        api_error(r, API_UNAVAILABLE, "the disk of sandbox \"%s\" is being stored, which takes longer than %d s: try again", id,
                  STORED_LIMIT_MS / 1000);
        api_req_unref(r);
}

/* The one whose disk r has to wait for; NULL: none. */
static struct sandbox *being_stored(struct api_req *r) {
        if (!r->params[0] || str_eq(r->route->method, "GET"))
                return NULL;
        struct sandbox *s = sandbox_find_any(r->app, r->params[0]);
        return s && life_stores(s) ? s : NULL;
}

bool settle_hold(struct settle *s, struct api_req *r, void (*fn)(struct api_req *r)) {
        struct sandbox *of = s->limit ? NULL : being_stored(r);
        if (!s->limit && !of)
                return false;
        struct waiting *w = calloc(1, sizeof *w);
        if (w && of)
                w->limit = timer_start(r->app->loop, STORED_LIMIT_MS, on_too_late, w);
        if (!w || (of && !w->limit)) {
                free(w);
                api_error(r, API_INTERNAL, "out of memory");
                return true;
        }
        w->at = s->end;
        w->r = api_req_ref(r);
        w->fn = fn;
        w->of = of ? sandbox_ref(of) : NULL;
        *s->end = w;
        s->end = &w->next;
        r->on_gone = on_gone;
        r->gone_arg = w;
        return true;
}
