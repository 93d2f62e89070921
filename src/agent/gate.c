/* SPDX-License-Identifier: Apache-2.0 */
#include "gate.h"

#include <stdlib.h>

#include "api.h"
#include "list.h"
#include "timer.h"

struct gate {
        struct agent *a;
        struct list waiting;
        size_t n;
};

struct waiter {
        struct list link;
        struct gate *g;
        struct http_x *x;
        struct timer *timer;
        void (*go)(struct agent *a, struct http_x *x);
};

static const struct http_x_ops no_ops = { 0 };

static struct http_x *release(struct waiter *w) {
        struct http_x *x = w->x;
        list_remove(&w->link);
        w->g->n--;
        timer_free(w->timer);
        free(w);
        return x;
}

static void on_abort(void *arg) {
        (void) release(arg);
}

static void on_timeout(void *arg) {
        struct http_x *x = release(arg);
        http_x_set_ops(x, &no_ops, NULL);
        api_fail_e2b(x, 503, "the sandbox has not been given its identity");
}

struct gate *gate_new(struct agent *a) {
        struct gate *g = calloc(1, sizeof *g);
        if (!g)
                return NULL;
        g->a = a;
        list_init(&g->waiting);
        return g;
}

void gate_free(struct gate *g) {
        if (!g)
                return;
        LIST_FOREACH(it, &g->waiting)
                on_timeout(CONTAINER_OF(it, struct waiter, link));
        free(g);
}

void gate_wait(struct gate *g, struct http_x *x, void (*go)(struct agent *a, struct http_x *x)) {
        static const struct http_x_ops ops = { .on_abort = on_abort, .on_done = on_abort };
        struct waiter *w = g->n < GATE_WAITING_MAX ? calloc(1, sizeof *w) : NULL;
        if (w && !(w->timer = timer_new(g->a->loop, on_timeout, w))) {
                free(w);
                w = NULL;
        }
        if (!w) {
                api_fail_e2b(x, 503, "the sandbox has not been given its identity, and %d requests wait already",
                             GATE_WAITING_MAX);
                return;
        }
        w->g = g;
        w->x = x;
        w->go = go;
        list_append(&g->waiting, &w->link);
        g->n++;
        timer_start(w->timer, GATE_WAIT_MS);
        http_x_read_pause(x);
        http_x_set_ops(x, &ops, w);
}

void gate_open(struct gate *g) {
        LIST_FOREACH(it, &g->waiting) {
                struct waiter *w = CONTAINER_OF(it, struct waiter, link);
                void (*go)(struct agent *a, struct http_x *x) = w->go;
                struct agent *a = g->a;
                struct http_x *x = release(w);
                http_x_set_ops(x, &no_ops, NULL);
                http_x_read_resume(x);
                go(a, x);
        }
}
