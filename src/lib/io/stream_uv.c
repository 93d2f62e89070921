/* SPDX-License-Identifier: Apache-2.0 */

/*
 * A stream over a descriptor: TCP or Unix socket, virtio port or another pollable character
 * device, pipe. All of them take one path: a nonblocking descriptor and a uv_poll handle.
 *
 * Reading: as long as the owner reads, the descriptor is watched for input; each wake-up reads a
 * bounded number of buffers, so that one busy peer cannot starve the others.
 *
 * Writing: tried at once; what the kernel does not take is queued and flushed when the descriptor
 * becomes writable. A failed write is remembered in `werr` and reported from the loop, and only
 * after everything that the peer had sent is delivered (the peer may have answered and closed
 * without reading what we sent).
 *
 * Hang-up: epoll reports it level-triggered whether asked or not, so a descriptor with a hang-up
 * is either on its way to on_error or not watched at all (`quiet`); it is never polled idly.
 * While nothing else is watched, UV_PRIORITIZED stands for "hang-up and error only".
 *
 * A virtio port whose host end is closed reads as end of file, is never writable, and has
 * EPOLLHUP set; that is reported as -ECONNRESET.
 */

#include "io/stream.h"

#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/fd.h"

#define READ_SIZE (128u * 1024)
#define READ_BURST 8               /* reads per wake-up */
#define KEEP_QUEUE (256u * 1024)   /* an empty queue larger than this is given back */
#define IOV_MAX_PIECES 8
#define KEEPALIVE_IDLE_S 60
#define KEEPALIVE_INTERVAL_S 15
#define KEEPALIVE_COUNT 4

enum kind { KIND_TCP, KIND_UNIX, KIND_PIPE, KIND_CHAR };

struct uv_stream {
        struct stream base;
        uv_poll_t poll;
        uv_timer_t linger;
        int fd;
        enum kind kind;
        int events;        /* what uv_poll watches now */
        struct buf out;
        int werr;          /* write side broke; what was queued is dropped */
        unsigned n_open;   /* uv handles not yet closed */
        bool reading;      /* the owner wants data */
        bool eof;          /* on_eof was delivered */
        bool shut;         /* the owner has shut down; done when the queue is out */
        bool shut_done;
        bool quiet;        /* hang-up seen, nothing to report until the owner reads on */
        bool hung;         /* the same of a device: it is "writable" and takes nothing */
        bool failed;       /* on_error was delivered */
        bool close_is_cut; /* stream_fd_close_is_cut() */
        bool closing;      /* the owner has let go: no callbacks, flush and close */
        bool dead;         /* handles are being closed */
};

static struct uv_stream *of(struct stream *s) {
        return CONTAINER_OF(s, struct uv_stream, base);
}

static bool is_socket(const struct uv_stream *s) {
        return s->kind == KIND_TCP || s->kind == KIND_UNIX;
}

static bool silent(const struct uv_stream *s) {
        return s->closing || s->failed || s->dead;
}

static void on_handle_closed(uv_handle_t *h) {
        struct uv_stream *s = h->data;
        if (--s->n_open == 0) {
                buf_done(&s->out);
                free(s);
        }
}

static void destroy(struct uv_stream *s, bool abort) {
        if (s->dead)
                return;
        s->dead = true;
        s->closing = true;
        if (abort && s->kind == KIND_TCP) {
                struct linger l = { .l_onoff = 1, .l_linger = 0 };
                (void) setsockopt(s->fd, SOL_SOCKET, SO_LINGER, &l, sizeof l);
        }
        uv_close((uv_handle_t *) &s->poll, on_handle_closed);
        uv_close((uv_handle_t *) &s->linger, on_handle_closed);
        s->fd = fd_close(s->fd);
}

static void on_poll(uv_poll_t *h, int status, int events);

static void update(struct uv_stream *s) {
        if (s->dead)
                return;
        int ev = 0;
        if (!s->failed) {
                if (s->reading && !s->eof && !s->closing)
                        ev |= UV_READABLE;
                if (s->out.len > 0 && !s->hung)
                        ev |= UV_WRITABLE;
                /* An error found inside stream_write() is told from the loop; the descriptor is
                 * in a state in which it is reported at once. */
                if (s->werr && !s->quiet)
                        ev |= UV_WRITABLE;
                if (!ev && !s->quiet && !s->closing)
                        ev = UV_PRIORITIZED;
        }
        if (ev == s->events)
                return;
        s->events = ev;
        if (ev == 0)
                (void) uv_poll_stop(&s->poll);
        else if (uv_poll_start(&s->poll, ev, on_poll) < 0)
                s->events = 0;
}

static void tell_error(struct uv_stream *s, int err) {
        if (silent(s))
                return;
        s->failed = true;
        buf_done(&s->out);
        update(s);
        s->base.handler->on_error(s->base.arg, err);
}

/* --- writing ---------------------------------------------------------------------------- */

static ssize_t push(struct uv_stream *s, struct iovec *v, int n) {
        ssize_t r;
        do {
                if (is_socket(s)) {
                        struct msghdr m = { .msg_iov = v, .msg_iovlen = (size_t) n };
                        r = sendmsg(s->fd, &m, MSG_NOSIGNAL | MSG_DONTWAIT);
                } else
                        r = writev(s->fd, v, n);
        } while (r < 0 && errno == EINTR);
        if (r < 0)
                return errno == EAGAIN || errno == ENOBUFS ? 0 : -errno;
        return r;
}

static void finish_shutdown(struct uv_stream *s) {
        if (!s->shut || s->shut_done || s->out.len > 0 || s->werr)
                return;
        s->shut_done = true;
        if (is_socket(s))
                (void) shutdown(s->fd, SHUT_WR);
}

static void write_failed(struct uv_stream *s, int err) {
        s->werr = err;
        buf_done(&s->out);
}

static void flush(struct uv_stream *s) {
        size_t before = s->out.len;
        while (s->out.len > 0) {
                struct iovec v = { .iov_base = s->out.data + s->out.start, .iov_len = s->out.len };
                ssize_t r = push(s, &v, 1);
                if (r < 0) {
                        write_failed(s, (int) r);
                        return;
                }
                buf_consume(&s->out, (size_t) r);
                /* A virtio port takes 32 KiB at a time; the others are full after a short write. */
                if (r == 0 || ((size_t) r < v.iov_len && s->kind != KIND_CHAR))
                        break;
        }
        size_t after = s->out.len;
        if (after == 0 && s->out.cap > KEEP_QUEUE)
                buf_done(&s->out);
        finish_shutdown(s);
        if (after < before && s->closing)
                (void) uv_timer_again(&s->linger);
        bool low = before > STREAM_LOW_WATER && after <= STREAM_LOW_WATER;
        if ((low || (before > 0 && after == 0)) && !silent(s) && s->base.handler && s->base.handler->on_drain)
                s->base.handler->on_drain(s->base.arg);
}

static int op_writev(struct stream *st, const struct iovec *v, int n) {
        struct uv_stream *s = of(st);
        if (s->shut || s->werr || s->failed)
                return -EPIPE;
        if (n > IOV_MAX_PIECES)
                return -EINVAL;

        struct iovec rest[IOV_MAX_PIECES];
        size_t total = 0;
        for (int i = 0; i < n; i++) {
                rest[i] = v[i];
                total += v[i].iov_len;
        }
        if (total == 0)
                return 0;
        if (total > STREAM_QUEUE_MAX || s->out.len > STREAM_QUEUE_MAX - total)
                return -ENOBUFS;

        size_t done = 0;
        if (s->out.len == 0) {
                ssize_t r = push(s, rest, n);
                if (r < 0) {
                        write_failed(s, (int) r);
                        update(s);
                        return -EPIPE;
                }
                done = (size_t) r;
        }
        if (done == total)
                return 0;

        uint8_t *unused;
        int r = buf_reserve(&s->out, total - done, &unused);
        if (r < 0) {
                /* A part is out already: the stream is broken for the peer. */
                if (done > 0)
                        write_failed(s, r);
                update(s);
                return r;
        }
        for (int i = 0; i < n; i++) {
                size_t skip = done < v[i].iov_len ? done : v[i].iov_len;
                done -= skip;
                if (v[i].iov_len > skip)
                        (void) buf_append(&s->out, (const uint8_t *) v[i].iov_base + skip,
                                          v[i].iov_len - skip);
        }
        update(s);
        return 0;
}

static int op_write(struct stream *st, const void *data, size_t n) {
        struct iovec v = { .iov_base = (void *) (uintptr_t) data, .iov_len = n };
        return op_writev(st, &v, 1);
}

/* --- reading and hang-up ---------------------------------------------------------------- */

static void check_hangup(struct uv_stream *s);

static bool is_cut(const struct uv_stream *s) {
        struct pollfd p = { .fd = s->fd };
        return s->close_is_cut && !s->shut && poll(&p, 1, 0) == 1 && (p.revents & (POLLHUP | POLLERR));
}

static void end_of_file(struct uv_stream *s) {
        if (s->kind == KIND_CHAR || is_cut(s)) {
                tell_error(s, -ECONNRESET);
                return;
        }
        s->eof = true;
        s->base.handler->on_eof(s->base.arg);
        if (s->werr)
                tell_error(s, s->werr);
}

/* One buffer of input: as read() gives it, except that a device, which gives a page at a time, is
 * asked until it has no more. Bytes read, 0 at the end, or negative errno. */
static ssize_t fill(struct uv_stream *s, uint8_t *b, size_t cap) {
        size_t n = 0;
        while (n < cap) {
                ssize_t r = read(s->fd, b + n, cap - n);
                if (r < 0 && errno == EINTR)
                        continue;
                if (r <= 0 && n > 0)
                        break; /* what it is, the next read tells again */
                if (r < 0)
                        return -errno;
                n += (size_t) r;
                if (s->kind != KIND_CHAR || r == 0)
                        break;
        }
        return (ssize_t) n;
}

static void do_read(struct uv_stream *s) {
        uint8_t b[READ_SIZE];
        for (int i = 0; i < READ_BURST && s->reading && !s->eof && !silent(s); i++) {
                ssize_t n = fill(s, b, sizeof b);
                if (n == -EAGAIN) {
                        if (s->kind == KIND_CHAR)
                                check_hangup(s);
                        return;
                }
                if (n < 0) {
                        tell_error(s, s->werr ? s->werr : (int) n);
                        return;
                }
                if (n == 0) {
                        end_of_file(s);
                        return;
                }
                s->base.handler->on_data(s->base.arg, b, (size_t) n);
                if ((size_t) n < sizeof b)
                        return;
        }
}

/* Whether bytes or an end of file wait that the owner has not read: 1, 0, or the pending error. */
static int unread(struct uv_stream *s) {
        if (!is_socket(s)) {
                /* poll() is no help: a virtio port without a host end and a hung-up terminal claim to
                 * be readable. A virtio port cannot tell what it holds; that of a lost peer is lost. */
                int n = 0;
                return ioctl(s->fd, FIONREAD, &n) == 0 && n > 0 ? 1 : 0;
        }
        uint8_t b;
        ssize_t n = recv(s->fd, &b, 1, MSG_PEEK | MSG_DONTWAIT);
        if (n >= 0)
                return 1;
        return errno == EAGAIN || errno == EINTR ? 0 : -errno;
}

/* The descriptor woke us up and neither reading nor writing explains it. */
static void check_hangup(struct uv_stream *s) {
        struct pollfd p = { .fd = s->fd, .events = 0 };
        if (poll(&p, 1, 0) < 0)
                p.revents = 0;
        if (!(p.revents & (POLLHUP | POLLERR | POLLNVAL))) {
                if (!s->reading || s->eof)
                        s->quiet = true; /* urgent data, which nobody here uses */
                return;
        }
        if (s->eof) {
                if (s->shut_done && !(p.revents & POLLERR))
                        s->quiet = true; /* both sides have ended: the usual end */
                else
                        tell_error(s, s->werr ? s->werr : -EPIPE);
                return;
        }
        int r = unread(s);
        if (r > 0 || !s->base.handler) { /* reading will find it */
                s->quiet = true;
                s->hung = s->kind == KIND_CHAR;
        } else
                tell_error(s, r < 0 ? r : -ECONNRESET);
}

/* A write has failed. While the owner reads, a peer that is gone shows itself at the end of what
 * it had sent; otherwise the owner hears of it now, unless that would lose unread bytes. */
static void check_werr(struct uv_stream *s) {
        if (!s->base.handler) {
                s->quiet = true;
                return;
        }
        if (s->reading && !s->eof) {
                struct pollfd p = { .fd = s->fd, .events = 0 };
                if (poll(&p, 1, 0) == 1 && (p.revents & (POLLHUP | POLLERR)))
                        return;
                if (unread(s) > 0)
                        return;
        } else if (!s->eof && unread(s) > 0) {
                s->quiet = true;
                return;
        }
        tell_error(s, s->werr);
}

static void on_poll(uv_poll_t *h, int status, int events) {
        struct uv_stream *s = h->data;
        if (s->dead)
                return;
        if (status < 0) {
                /* POLLERR; libuv has stopped the handle. Reading or writing finds the errno. */
                events = s->events;
                s->events = 0;
        }

        bool stuck = false;
        if (s->out.len > 0 && (events & UV_WRITABLE)) {
                size_t before = s->out.len;
                flush(s);
                stuck = s->out.len == before;
        }
        if (s->closing) {
                if (s->werr || s->out.len == 0 || (stuck && s->kind == KIND_CHAR))
                        destroy(s, s->werr != 0);
                return;
        }
        if (s->reading && !s->eof && (events & UV_READABLE))
                do_read(s);
        else if (!silent(s) && (events & UV_PRIORITIZED))
                check_hangup(s);
        else if (!silent(s) && stuck && s->kind == KIND_CHAR)
                check_hangup(s);
        if (s->werr && !silent(s) && !s->quiet)
                check_werr(s);
        update(s);
}

/* --- ops -------------------------------------------------------------------------------- */

static void op_read_start(struct stream *st) {
        struct uv_stream *s = of(st);
        s->reading = true;
        s->quiet = s->hung = false;
        update(s);
}

static void op_read_stop(struct stream *st) {
        struct uv_stream *s = of(st);
        s->reading = false;
        s->quiet = s->hung = false;
        update(s);
}

static size_t op_queued(const struct stream *st) {
        return ((const struct uv_stream *) (const void *) st)->out.len;
}

static int op_shutdown(struct stream *st) {
        struct uv_stream *s = of(st);
        if (s->werr || s->failed)
                return -EPIPE;
        s->shut = true;
        finish_shutdown(s);
        return 0;
}

static void on_linger(uv_timer_t *t) {
        destroy(t->data, true);
}

static void op_close(struct stream *st, bool abort) {
        struct uv_stream *s = of(st);
        if (s->closing)
                return;
        s->closing = true;
        s->reading = false;
        if (abort || s->out.len == 0 || s->werr || s->failed) {
                destroy(s, abort);
                return;
        }
        (void) uv_timer_start(&s->linger, on_linger, STREAM_LINGER_MS, STREAM_LINGER_MS);
        update(s);
}

static const struct stream_ops uv_ops = {
        .read_start = op_read_start,
        .read_stop = op_read_stop,
        .write = op_write,
        .queued = op_queued,
        .shutdown = op_shutdown,
        .close = op_close,
        .writev = op_writev,
};

static int classify(int fd, enum kind *ret, struct error *err) {
        struct stat st;
        if (fstat(fd, &st) < 0)
                return error_errno(err, errno, "descriptor %d", fd);
        if (S_ISCHR(st.st_mode))
                *ret = KIND_CHAR;
        else if (S_ISFIFO(st.st_mode))
                *ret = KIND_PIPE;
        else if (S_ISSOCK(st.st_mode)) {
                int domain = AF_UNIX;
                socklen_t len = sizeof domain;
                (void) getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &domain, &len);
                *ret = domain == AF_INET || domain == AF_INET6 ? KIND_TCP : KIND_UNIX;
        } else
                return error_set(err, -EINVAL, "descriptor %d is no stream", fd);
        return 0;
}

int stream_fd_release(struct stream *st) {
        struct uv_stream *s = of(st);
        int fd = fd_steal(&s->fd);
        destroy(s, false);
        return fd;
}

void stream_fd_close_is_cut(struct stream *st) {
        of(st)->close_is_cut = true;
}

/* Messages go out when they are written; a peer that vanished without a word is noticed. */
static void tune_tcp(int fd) {
        static const int on = 1, idle_s = KEEPALIVE_IDLE_S, interval_s = KEEPALIVE_INTERVAL_S,
                         count = KEEPALIVE_COUNT;
        (void) setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
        (void) setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
        (void) setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &idle_s, sizeof idle_s);
        (void) setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &interval_s, sizeof interval_s);
        (void) setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &count, sizeof count);
}

int stream_from_fd(uv_loop_t *loop, int fd, struct stream **ret, struct error *err) {
        _cleanup_fd_ int own = fd;
        enum kind kind = KIND_PIPE;
        int r = classify(fd, &kind, err);
        if (r < 0)
                return r;
        r = fd_cloexec(fd, 1, err);
        if (r < 0)
                return r;
        if (kind == KIND_TCP)
                tune_tcp(fd);

        struct uv_stream *s = calloc(1, sizeof *s);
        if (!s)
                return error_set(err, -ENOMEM, "out of memory");
        r = uv_poll_init(loop, &s->poll, fd); /* sets O_NONBLOCK */
        if (r < 0) {
                free(s);
                return error_errno(err, r, "cannot poll descriptor %d", fd);
        }
        s->base.ops = &uv_ops;
        s->out = BUF_INIT(STREAM_QUEUE_MAX);
        s->poll.data = s;
        s->linger.data = s;
        (void) uv_timer_init(loop, &s->linger);
        s->n_open = 2;
        s->kind = kind;
        s->fd = fd_steal(&own);
        update(s);
        *ret = &s->base;
        return 0;
}
