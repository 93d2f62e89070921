/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * Output in the order in which it came, to stdout and stderr, without blocking the loop: one worker
 * at a time writes (the descriptors are shared with other programs, so they must not be made
 * non-blocking). The caller holds its source back while sink_queued() is above its mark.
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <uv.h>

struct sink_ops {
        void (*on_written)(void *arg, uint64_t offset); /* all up to here is out, or was discarded */
        /* fd takes no more (-EPIPE and others); what comes for it from now on is discarded. */
        void (*on_error)(void *arg, int fd, int err);
};

struct sink;
struct sink *sink_new(uv_loop_t *loop, const struct sink_ops *ops, void *arg);
/* offset: of the byte after these, handed to on_written. */
void sink_put(struct sink *s, int fd, const void *data, size_t n, uint64_t offset);
size_t sink_queued(const struct sink *s);
/* A write that still blocks keeps its memory and its thread; then true is returned, and the
 * process must end by _exit(). */
bool sink_free(struct sink *s);
