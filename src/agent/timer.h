/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* A one-shot timer that may be freed at any time, also from its own callback. The agent has no
 * periodic timer: an idle guest uses no CPU. */

#include <uv.h>

struct timer;
struct timer *timer_new(uv_loop_t *loop, void (*cb)(void *arg), void *arg); /* NULL: no memory */
void timer_start(struct timer *t, uint64_t ms); /* again: from now */
void timer_stop(struct timer *t);
void timer_free(struct timer *t); /* NULL is fine */
