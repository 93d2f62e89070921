/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Connecting without blocking. The answer always comes from the loop, also when the kernel had it
 * at once, so that a caller need not think about a callback inside its own call.
 *
 * A Unix listener whose backlog is full gives EAGAIN and no event to wait for; such a connect is
 * repeated until UNIX_RETRY_MAX_MS have passed.
 */

#include "io/stream.h"

#include <arpa/inet.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "base/clock.h"
#include "base/fd.h"
#include "io/unix_addr.h"

#define UNIX_RETRY_MS 10
#define UNIX_RETRY_MAX_MS 5000

struct stream_connect {
        uv_poll_t poll;
        uv_timer_t timer;
        unsigned n_open;
        bool done;
        int fd;
        uv_loop_t *loop;
        struct unix_addr addr; /* for the next try; sa.sun_family 0 for TCP */
        uint64_t give_up_ms;
        stream_connect_cb cb;
        void *arg;
};

static void on_handle_closed(uv_handle_t *h) {
        struct stream_connect *c = h->data;
        if (--c->n_open == 0)
                free(c);
}

static void release(struct stream_connect *c) {
        c->done = true;
        unix_addr_done(&c->addr);
        uv_close((uv_handle_t *) &c->poll, on_handle_closed);
        uv_close((uv_handle_t *) &c->timer, on_handle_closed);
}

static void finish(struct stream_connect *c, int err) {
        struct stream *s = NULL;
        uv_loop_t *loop = c->loop;
        stream_connect_cb cb = c->cb;
        void *arg = c->arg;
        /* The poll handle must be closed before another one may watch the same descriptor. */
        int fd = fd_steal(&c->fd);
        release(c);
        if (err == 0)
                err = stream_from_fd(loop, fd, &s, NULL);
        else
                (void) fd_close(fd);
        cb(arg, err, s);
}

static void on_writable(uv_poll_t *h, int status, int events) {
        (void) status;
        (void) events;
        struct stream_connect *c = h->data;
        int e = 0;
        socklen_t len = sizeof e;
        if (getsockopt(c->fd, SOL_SOCKET, SO_ERROR, &e, &len) < 0)
                e = errno;
        finish(c, -e);
}

static void on_timer(uv_timer_t *t) {
        struct stream_connect *c = t->data;
        if (c->addr.sa.sun_family == 0) { /* TCP that was connected at once */
                finish(c, 0);
                return;
        }
        if (connect(c->fd, (const struct sockaddr *) &c->addr.sa, c->addr.len) == 0)
                finish(c, 0);
        else if (errno == EAGAIN && clock_mono_ms() < c->give_up_ms)
                (void) uv_timer_start(&c->timer, on_timer, UNIX_RETRY_MS, 0);
        else
                finish(c, -errno);
}

static int new_connect(uv_loop_t *loop, int family, stream_connect_cb cb, void *arg,
                       struct stream_connect **ret, struct error *err) {
        _cleanup_fd_ int fd = socket(family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
        if (fd < 0)
                return error_errno(err, errno, "cannot make a socket");
        struct stream_connect *c = calloc(1, sizeof *c);
        if (!c)
                return error_set(err, -ENOMEM, "out of memory");
        int r = uv_poll_init(loop, &c->poll, fd);
        if (r < 0) {
                free(c);
                return error_errno(err, r, "cannot poll a socket");
        }
        c->poll.data = c;
        c->timer.data = c;
        (void) uv_timer_init(loop, &c->timer);
        c->n_open = 2;
        c->fd = fd_steal(&fd);
        c->loop = loop;
        c->addr.dirfd = -EBADF;
        c->cb = cb;
        c->arg = arg;
        *ret = c;
        return 0;
}

int stream_connect_unix(uv_loop_t *loop, const char *path, stream_connect_cb cb, void *arg,
                        struct stream_connect **ret, struct error *err) {
        struct unix_addr a;
        int r = unix_addr_init(path, &a, err);
        if (r < 0)
                return r;
        struct stream_connect *c;
        r = new_connect(loop, AF_UNIX, cb, arg, &c, err);
        if (r < 0) {
                unix_addr_done(&a);
                return r;
        }
        c->addr = a;
        c->give_up_ms = clock_mono_ms() + UNIX_RETRY_MAX_MS;
        (void) uv_timer_start(&c->timer, on_timer, 0, 0);
        *ret = c;
        return 0;
}

static int parse_ip(const char *ip, uint16_t port, struct sockaddr_storage *sa, socklen_t *len) {
        struct sockaddr_in v4 = { .sin_family = AF_INET, .sin_port = htons(port) };
        struct sockaddr_in6 v6 = { .sin6_family = AF_INET6, .sin6_port = htons(port) };
        memset(sa, 0, sizeof *sa);
        if (inet_pton(AF_INET, ip, &v4.sin_addr) == 1) {
                memcpy(sa, &v4, sizeof v4);
                *len = sizeof v4;
                return 0;
        }
        if (inet_pton(AF_INET6, ip, &v6.sin6_addr) == 1) {
                memcpy(sa, &v6, sizeof v6);
                *len = sizeof v6;
                return 0;
        }
        return -EINVAL;
}

int stream_connect_tcp(uv_loop_t *loop, const char *ip, uint16_t port, stream_connect_cb cb, void *arg,
                       struct stream_connect **ret, struct error *err) {
        struct sockaddr_storage sa;
        socklen_t len;
        if (parse_ip(ip, port, &sa, &len) < 0)
                return error_set(err, -EINVAL, "\"%s\" is no IP address", ip);
        struct stream_connect *c;
        int r = new_connect(loop, sa.ss_family, cb, arg, &c, err);
        if (r < 0)
                return r;
        if (connect(c->fd, (const struct sockaddr *) &sa, len) == 0)
                (void) uv_timer_start(&c->timer, on_timer, 0, 0);
        else if (errno == EINPROGRESS)
                (void) uv_poll_start(&c->poll, UV_WRITABLE, on_writable);
        else {
                r = error_errno(err, errno, "cannot connect to %s port %u", ip, port);
                stream_connect_cancel(c);
                return r;
        }
        *ret = c;
        return 0;
}

void stream_connect_cancel(struct stream_connect *c) {
        if (!c || c->done)
                return;
        int fd = fd_steal(&c->fd);
        release(c);
        (void) fd_close(fd);
}
