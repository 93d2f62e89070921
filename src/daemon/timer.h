/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* One-shot timers that may be dropped at any time: libuv's own must outlive their close. */

#include <stdint.h>
#include <uv.h>

struct timer;

/* cb comes once, after ms milliseconds, never from inside; the timer is gone then. NULL: no memory. */
struct timer *timer_start(uv_loop_t *loop, uint64_t ms, void (*cb)(void *arg), void *arg);
void timer_cancel(struct timer *t); /* before cb only; NULL is fine */
