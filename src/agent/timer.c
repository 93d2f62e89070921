/* SPDX-License-Identifier: Apache-2.0 */
#include "timer.h"

#include <stdlib.h>

struct timer {
        uv_timer_t uv;
        void (*cb)(void *arg);
        void *arg;
};

struct timer *timer_new(uv_loop_t *loop, void (*cb)(void *arg), void *arg) {
        struct timer *t = calloc(1, sizeof *t);
        if (!t)
                return NULL;
        (void) uv_timer_init(loop, &t->uv);
        t->uv.data = t;
        t->cb = cb;
        t->arg = arg;
        return t;
}

static void fired(uv_timer_t *uv) {
        struct timer *t = uv->data;
        t->cb(t->arg);
}

void timer_start(struct timer *t, uint64_t ms) {
        uv_update_time(t->uv.loop);
        (void) uv_timer_start(&t->uv, fired, ms, 0);
}

void timer_stop(struct timer *t) {
        (void) uv_timer_stop(&t->uv);
}

static void closed(uv_handle_t *h) {
        free(h->data);
}

void timer_free(struct timer *t) {
        if (t)
                uv_close((uv_handle_t *) &t->uv, closed);
}
