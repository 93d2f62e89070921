/* SPDX-License-Identifier: Apache-2.0 */
#include "settle.h"

#include <errno.h>
#include <stdlib.h>

#include "app.h"
#include "timer.h"

#define SETTLE_LIMIT_MS 3000 /* then the rows are all there is to tell */

struct waiting {
        struct waiting *next, **at; /* *at == this */
        struct api_req *r;
        void (*fn)(struct api_req *r);
};

struct settle {
        struct timer *limit; /* NULL: over */
        struct waiting *first, **end;
};

static void take_out(struct settle *s, struct waiting *w) {
        *w->at = w->next;
        if (w->next)
                w->next->at = w->at;
        else
                s->end = w->at;
}

static void on_limit(void *arg) {
        struct settle *s = arg;
        s->limit = NULL;
        settle_done(s);
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
        s->limit = NULL;
        settle_done(s); /* their clients have gone */
        free(s);
}

bool settle_over(const struct settle *s) {
        return !s->limit;
}

void settle_done(struct settle *s) {
        timer_cancel(s->limit);
        s->limit = NULL;
        for (struct waiting *w; (w = s->first);) {
                struct api_req *r = w->r;
                void (*fn)(struct api_req *) = w->fn;
                take_out(s, w);
                free(w);
                r->on_gone = NULL;
                if (r->x)
                        fn(r);
                api_req_unref(r);
        }
}

static void on_gone(void *arg) {
        struct waiting *w = arg;
        struct api_req *r = w->r;
        take_out(r->app->settle, w);
        free(w);
        api_req_unref(r);
}

void settle_wait(struct settle *s, struct api_req *r, void (*fn)(struct api_req *r)) {
        struct waiting *w = calloc(1, sizeof *w);
        if (!w) {
                api_error(r, API_INTERNAL, "out of memory");
                return;
        }
        *w = (struct waiting){ .at = s->end, .r = api_req_ref(r), .fn = fn };
        *s->end = w;
        s->end = &w->next;
        r->on_gone = on_gone;
        r->gone_arg = w;
}
