/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * Bytes between two connected sockets that nobody looks at. What comes in little pieces is read and written; where a
 * reading is full, more is waiting, and that goes by splice(2) through a pipe: no copy. At most a pipe's worth each way
 * waits for a slow reader, and the rest with its sender. The end of one side is passed on as such (half-close), a
 * reset as a reset.
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <uv.h>

#define RELAY_PIPE_BYTES (64u * 1024)
#define RELAY_COPY_BYTES (16u * 1024) /* up to here two copies cost less than two calls of splice() */
#define RELAY_SPARE_PIPES 16          /* kept for the next that needs one */
#define RELAY_IDLE_MS (2 * 3600 * 1000) /* without a byte either way */

enum relay_side { RELAY_GUEST, RELAY_UPSTREAM };

/* Pipes are only held while bytes are on their way. One pool per loop. */
struct relay_pipes {
        int fds[RELAY_SPARE_PIPES][2];
        size_t n;
};
void relay_pipes_done(struct relay_pipes *p);

struct relay;
struct relay_handler {
        /* Bytes that were passed on, as they are. False: the limit is reached, the relay ends. */
        bool (*on_bytes)(void *arg, enum relay_side from, size_t n);
        /* Once; both sockets are closed. err 0: both sides ended, else -ECONNRESET, -ETIMEDOUT, -EDQUOT, ... */
        void (*on_end)(void *arg, int err);
};

/* Takes both descriptors, and closes them on failure. `first` (copied) was read from the guest and goes
 * upstream before all else. Callbacks come from the loop only. */
int relay_new(uv_loop_t *loop, struct relay_pipes *pipes, int guest, int upstream, const void *first, size_t first_n,
              const struct relay_handler *h, void *arg, struct relay **ret);
/* Ends both connections with a reset; on_end is not called. NULL is fine. */
void relay_abort(struct relay *r);
