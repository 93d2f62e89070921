/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * A duplex byte stream on the libuv loop: TCP, Unix socket, virtio port, or one stream of the
 * host-guest link. Everything above (HTTP, attach frames, the data plane) speaks to this interface
 * and does not know which it has.
 *
 * Ownership: whoever holds the pointer closes it with stream_close(); after that call no callback
 * arrives and the pointer is dead. Callbacks are never made from inside a stream_* call that the
 * owner makes, except stream_read_start() of already buffered bytes; an owner may call
 * stream_close() from inside any callback.
 *
 * Flow control: the reader stops with stream_read_stop() and the peer is held back (TCP window,
 * HTTP/2 window). The writer looks at stream_queued() and waits for on_drain when it is above its
 * own mark; writes are always accepted (copied) until STREAM_QUEUE_MAX, where -ENOBUFS says that
 * the caller did not wait.
 *
 * Loss: what the peer sent before it went away is delivered before on_error, also when a write
 * fails first, so that a server which answers and closes at once loses nothing. A peer that went
 * away entirely while reading is stopped or after on_eof is reported by on_error where the
 * transport tells (reset, Unix socket closed, virtio port without a host end). Only a virtio port may
 * lose what its host end had sent before it closed. Pipes raise SIGPIPE: programs ignore it.
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <uv.h>

#include "base/error.h"

#define STREAM_QUEUE_MAX (64u * 1024 * 1024)
#define STREAM_HIGH_WATER (256u * 1024) /* a writer waits for on_drain above this */
#define STREAM_LOW_WATER (64u * 1024)   /* on_drain comes when the queue falls to this, and at 0 */
#define STREAM_LINGER_MS 30000 /* a closed stream whose peer takes nothing for so long is dropped */

struct stream;

struct stream_handler {
        void (*on_data)(void *arg, const uint8_t *data, size_t n);
        void (*on_eof)(void *arg);           /* peer will send no more; writing still works */
        void (*on_drain)(void *arg);         /* may be NULL */
        void (*on_error)(void *arg, int err); /* negative errno; nothing more arrives; owner closes */
};

struct stream_ops {
        void (*read_start)(struct stream *s);
        void (*read_stop)(struct stream *s);
        int (*write)(struct stream *s, const void *data, size_t n);
        size_t (*queued)(const struct stream *s);
        int (*shutdown)(struct stream *s);
        void (*close)(struct stream *s, bool abort);
        int (*writev)(struct stream *s, const struct iovec *v, int n); /* may be NULL */
};

/* Embedded first in each implementation. */
struct stream {
        const struct stream_ops *ops;
        const struct stream_handler *handler;
        void *arg;
};

static inline void stream_set_handler(struct stream *s, const struct stream_handler *h, void *arg) {
        s->handler = h;
        s->arg = arg;
}
static inline void stream_read_start(struct stream *s) {
        s->ops->read_start(s);
}
static inline void stream_read_stop(struct stream *s) {
        s->ops->read_stop(s);
}
/* Queues a copy. 0, -ENOBUFS, -ENOMEM, -EPIPE after shutdown or error. */
static inline int stream_write(struct stream *s, const void *data, size_t n) {
        return s->ops->write(s, data, n);
}
static inline size_t stream_queued(const struct stream *s) {
        return s->ops->queued(s);
}
/* As stream_write() of the pieces one after the other; nothing is queued on -ENOBUFS. */
int stream_writev(struct stream *s, const struct iovec *v, int n);
/* Sends end of stream once the queue is out; reading goes on. */
static inline int stream_shutdown(struct stream *s) {
        return s->ops->shutdown(s);
}
/* Flushes what is queued in the background, then closes. */
static inline void stream_close(struct stream *s) {
        if (s)
                s->ops->close(s, false);
}
/* Drops what is queued; the peer sees a reset where the transport has one. */
static inline void stream_abort(struct stream *s) {
        if (s)
                s->ops->close(s, true);
}

/* A stream that first delivers n bytes (copied), then what inner has; eof: inner's end has been
 * seen already. Takes inner, closes it on failure. For bytes read beyond the end of one protocol
 * on a connection that goes on in another. Gives inner itself when there is nothing to put first. */
int stream_prefix(struct stream *inner, const void *data, size_t n, bool eof, struct stream **ret);

/* --- over libuv ------------------------------------------------------------------------- */

/* Takes fd (TCP or Unix stream socket, or a pollable character device such as a virtio port);
 * closes it on failure too. Reading is stopped until stream_read_start(). */
int stream_from_fd(uv_loop_t *loop, int fd, struct stream **ret, struct error *err);
/* Gives the descriptor back, open and non-blocking, and ends the stream. Of a stream of stream_from_fd() alone, whose
 * queue is empty. */
int stream_fd_release(struct stream *s);
/* For a stream of stream_from_fd() over a Unix socket whose peer shuts its side down to end, and
 * closes first only to break off (data.sock): end of file with a hang-up is then -ECONNRESET. Holds
 * until the owner itself has shut down, from when on the two look alike. */
void stream_fd_close_is_cut(struct stream *s);

/* Connects without blocking; cb is called once, later, with a stream that the callee owns, or with
 * err < 0 and s NULL. Cancel with stream_connect_cancel() before cb was called. */
typedef void (*stream_connect_cb)(void *arg, int err, struct stream *s);
struct stream_connect;
int stream_connect_unix(uv_loop_t *loop, const char *path, stream_connect_cb cb, void *arg,
                        struct stream_connect **ret, struct error *err);
int stream_connect_tcp(uv_loop_t *loop, const char *ip, uint16_t port, stream_connect_cb cb, void *arg,
                       struct stream_connect **ret, struct error *err);
void stream_connect_cancel(struct stream_connect *c);

/* Accepts on a listening socket (fd is taken). A transient accept error (EMFILE, ECONNABORTED)
 * pauses accepting for 100 ms and goes on; it never ends the listener. */
struct listener;
typedef void (*listener_cb)(void *arg, struct stream *s, int fd /* for SO_PEERCRED; owned by s */);
int listener_new(uv_loop_t *loop, int fd, listener_cb cb, void *arg, struct listener **ret,
                 struct error *err);
void listener_free(struct listener *l);

/* socket+bind+listen. Unix: an existing socket file that nobody listens on is replaced. */
int listen_tcp(const char *ip, uint16_t port, int *ret_fd, struct error *err);
int listen_unix(const char *path, mode_t mode, int *ret_fd, struct error *err);
