/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* Blocking file work on libuv's thread pool, so that a slow disk or a large tree never holds up
 * the loop. */

#include <uv.h>

#include "user.h"

/*
 * Calls run(arg) on a thread of the pool, then done(arg) on the loop. With `as`, the thread has
 * that user's rights to files meanwhile (fsuid, fsgid and groups of the one thread; the kernel
 * takes the file capabilities away with the fsuid). -ENOMEM: neither is called.
 */
int work_start(uv_loop_t *loop, const struct user *as, void (*run)(void *arg), void (*done)(void *arg), void *arg);
