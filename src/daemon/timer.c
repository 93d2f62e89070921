/* SPDX-License-Identifier: Apache-2.0 */

#include "timer.h"

#include <stdlib.h>

struct timer {
        uv_timer_t uv; /* first: the handle is the struct */
        void (*cb)(void *arg);
        void *arg;
};

static void on_closed(uv_handle_t *h) {
        free(h->data);
}

static void on_fire(uv_timer_t *uv) {
        struct timer *t = uv->data;
        void (*cb)(void *) = t->cb;
        void *arg = t->arg;
        uv_close((uv_handle_t *) &t->uv, on_closed);
        cb(arg);
}

struct timer *timer_start(uv_loop_t *loop, uint64_t ms, void (*cb)(void *arg), void *arg) {
        struct timer *t = calloc(1, sizeof *t);
        if (!t)
                return NULL;
        t->cb = cb;
        t->arg = arg;
        (void) uv_timer_init(loop, &t->uv);
        t->uv.data = t;
        uv_update_time(loop);
        (void) uv_timer_start(&t->uv, on_fire, ms, 0);
        return t;
}

void timer_cancel(struct timer *t) {
        if (t)
                uv_close((uv_handle_t *) &t->uv, on_closed);
}
