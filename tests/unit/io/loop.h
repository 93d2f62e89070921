/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* Running a loop in tests: until a condition holds, never for a guessed time. */

#include <stdbool.h>
#include <sys/socket.h>
#include <uv.h>

#include "test.h"

#define WAIT_MS 120000 /* only a guard; machines are busy sometimes */

static inline void loop_on_timeout(uv_timer_t *t) {
        (void) t;
        fail_msg("condition not met in time");
}

#define RUN_UNTIL(loop, cond)                                            \
        do {                                                             \
                uv_timer_t t_;                                           \
                uv_timer_init((loop), &t_);                              \
                uv_timer_start(&t_, loop_on_timeout, WAIT_MS, 0);        \
                while (!(cond))                                          \
                        uv_run((loop), UV_RUN_ONCE);                     \
                uv_close((uv_handle_t *) &t_, NULL);                     \
                uv_run((loop), UV_RUN_NOWAIT);                           \
        } while (0)

/* Runs what is pending, without waiting for anything. */
static inline void run_pending(uv_loop_t *loop) {
        for (int i = 0; i < 20; i++)
                uv_run(loop, UV_RUN_NOWAIT);
}

/* Everything must have been closed or be closing. */
static inline void loop_done(uv_loop_t *loop) {
        uv_run(loop, UV_RUN_DEFAULT);
        assert_int_equal(uv_loop_close(loop), 0);
}

static inline void loop_on_prepare(uv_prepare_t *p) {
        ++*(unsigned *) p->data;
}
static inline void loop_on_window(uv_timer_t *t) {
        *(bool *) t->data = true;
}

/* How often the loop goes round in 100 ms: a few times when idle, thousands when it spins. */
static inline unsigned count_rounds(uv_loop_t *loop) {
        unsigned n = 0;
        bool over = false;
        uv_prepare_t p;
        uv_timer_t t;
        uv_prepare_init(loop, &p);
        uv_timer_init(loop, &t);
        p.data = &n;
        t.data = &over;
        uv_prepare_start(&p, loop_on_prepare);
        uv_timer_start(&t, loop_on_window, 100, 0);
        while (!over)
                uv_run(loop, UV_RUN_ONCE);
        uv_close((uv_handle_t *) &p, NULL);
        uv_close((uv_handle_t *) &t, NULL);
        uv_run(loop, UV_RUN_NOWAIT);
        return n;
}
