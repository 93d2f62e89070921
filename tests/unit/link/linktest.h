/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* Two links, or one link and a raw descriptor, on one loop, with all that happened written down. */

#include "test.h"

#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>
#include <uv.h>

#include "base/buf.h"
#include "base/clock.h"
#include "base/limits.h"
#include "link/link.h"

#define LT_TIMEOUT_MS 20000

/* One stream's end and what came out of it. */
struct lt_end {
        struct stream *s;
        struct buf in;
        size_t received; /* also when `in` is not kept */
        bool keep, eof, drained, echo, close_on_eof;
        int error, open_err;
        bool answered;
};

struct lt_side {
        struct link *l;
        bool ready, closed;
        struct stream *parted; /* guest: the transport, given back */
        int err;
        char why[128];
        /* guest */
        int refuse; /* status to refuse with; 0 accepts */
        bool hold;  /* leaves on_open unanswered */
        int32_t held_id;
        char authority[300];
        struct lt_end *accept_into; /* an array, filled in order */
        size_t n_accepted, max_accepted;
        bool echo;
};

struct lt {
        uv_loop_t loop;
        uv_timer_t timer;
        struct lt_side host, guest;
};

void lt_init(struct lt *t);
/* Makes a host and a guest over a socket pair and runs until both are ready. */
void lt_pair(struct lt *t);
void lt_host_on(struct lt *t, int fd);
void lt_guest_on(struct lt *t, int fd);
void lt_done(struct lt *t);

/* Runs the loop until cond; fails the test after LT_TIMEOUT_MS. */
#define LT_UNTIL(t, cond)                                                \
        do {                                            \
                uint64_t end_ = clock_mono_ms() + LT_TIMEOUT_MS; \
                while (!(cond)) {                       \
                        assert_true(clock_mono_ms() < end_); \
                        uv_run(&(t)->loop, UV_RUN_ONCE); \
                }                                       \
        } while (0)

void lt_open(struct lt *t, const char *authority, struct lt_end *e);
void lt_end_done(struct lt_end *e);
extern const struct stream_handler lt_end_handler;
/* Turns the loop n times. */
void lt_turn(struct lt *t, int n);
