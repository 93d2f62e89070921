/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Theory of operation
 *
 * The descriptor is handled here with uv_poll rather than as a struct stream, for one reason: the
 * status line may be followed at once by bytes of the guest's service (a server that speaks first,
 * as SSH does), and those belong to the stream that the caller gets. So the line is looked at with
 * MSG_PEEK and exactly its bytes are then taken from the socket.
 *
 *   DIAL_CONNECT   connect() again every DIAL_RETRY_MS while the listener's backlog is full
 *   DIAL_STATUS    request written, waiting for a whole line
 *   DIAL_REPORT    outcome known, told in the next turn of the loop (never from inside dial_open())
 */
#include "dial.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>

#include "base/fd.h"
#include "base/str.h"

#define DIAL_LINE_MAX 256
#define DIAL_RETRY_MS 10

enum dial_state { DIAL_CONNECT, DIAL_STATUS, DIAL_REPORT };

struct dial {
        uv_loop_t *loop;
        enum dial_state state;
        int fd;
        int err; /* for DIAL_REPORT */
        uint16_t port;
        struct sockaddr_un addr;
        uint64_t deadline; /* in loop time */
        char line[DIAL_LINE_MAX];
        size_t line_n;
        uv_timer_t timer;
        uv_poll_t poll;
        bool polling; /* poll was initialised */
        unsigned handles; /* open or closing */
        dial_cb cb;
        void *arg;
};

static void on_handle_closed(uv_handle_t *h) {
        struct dial *d = h->data;

        if (--d->handles == 0)
                free(d);
}

/* Closes what is open; d is freed when libuv has let go of the handles. */
static void dial_end(struct dial *d) {
        d->cb = NULL;
        if (d->polling) {
                d->polling = false;
                uv_poll_stop(&d->poll);
                uv_close((uv_handle_t *) &d->poll, on_handle_closed);
        }
        uv_close((uv_handle_t *) &d->timer, on_handle_closed);
        d->fd = fd_close(d->fd);
}

static void dial_report(struct dial *d, int err) {
        dial_cb cb = d->cb;
        void *arg = d->arg;
        struct stream *s = NULL;

        if (err == 0) {
                /* The socket leaves the poll handle before the stream registers it with the loop. */
                uv_poll_stop(&d->poll);
                err = stream_from_fd(d->loop, fd_steal(&d->fd), &s, NULL);
                if (err == 0)
                        stream_fd_close_is_cut(s);
        }
        dial_end(d);
        cb(arg, err < 0 ? err : 0, s);
}

static void on_timer(uv_timer_t *t);

static void report_soon(struct dial *d, int err) {
        d->state = DIAL_REPORT;
        d->err = err;
        uv_timer_start(&d->timer, on_timer, 0, 0);
}

static int status_to_errno(const char *line) {
        if (str_has_prefix(line, "200"))
                return 0;
        if (str_has_prefix(line, "502"))
                return -ECONNREFUSED;
        if (str_has_prefix(line, "503"))
                return -EAGAIN;
        return -EPROTO;
}

/* Moves bytes of the status line, and none beyond it, from the socket to d->line. 1: the line is
 * complete; 0: not yet; negative errno. */
static int take_line(struct dial *d) {
        char *at = d->line + d->line_n;
        size_t room = sizeof(d->line) - d->line_n;
        ssize_t n = recv(d->fd, at, room, MSG_PEEK | MSG_DONTWAIT);

        if (n < 0)
                return errno == EAGAIN || errno == EINTR ? 0 : -errno;
        if (n == 0)
                return -ECONNRESET;

        const char *nl = memchr(at, '\n', (size_t) n);
        size_t take = nl ? (size_t) (nl - at) + 1 : (size_t) n;
        if (recv(d->fd, at, take, MSG_DONTWAIT) != (ssize_t) take)
                return -EPROTO;
        d->line_n += take;
        if (!nl)
                return d->line_n == sizeof(d->line) ? -EPROTO : 0;
        d->line[d->line_n - 1] = '\0';
        return 1;
}

static void on_readable(uv_poll_t *h, int status, int events) {
        struct dial *d = h->data;

        (void) events;
        if (d->state != DIAL_STATUS)
                return;
        int r = status < 0 ? status : take_line(d);
        if (r < 0)
                dial_report(d, r);
        else if (r > 0)
                dial_report(d, status_to_errno(d->line));
}

static int wait_status(struct dial *d) {
        char line[32];
        int n = snprintf(line, sizeof(line), "CONNECT %u\n", d->port);

        ssize_t sent = send(d->fd, line, (size_t) n, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (sent != n)
                return sent < 0 ? -errno : -EPIPE;
        int r = uv_poll_init(d->loop, &d->poll, d->fd);
        if (r < 0)
                return r;
        d->poll.data = d;
        d->polling = true;
        d->handles++;
        d->state = DIAL_STATUS;
        r = uv_poll_start(&d->poll, UV_READABLE | UV_DISCONNECT, on_readable);
        if (r < 0)
                return r;
        return uv_timer_start(&d->timer, on_timer, d->deadline - uv_now(d->loop), 0);
}

/* 0: under way; negative errno: it failed for good. */
static int try_connect(struct dial *d) {
        if (connect(d->fd, (const struct sockaddr *) &d->addr, sizeof(d->addr)) == 0)
                return wait_status(d);
        if (errno == EAGAIN)
                return uv_timer_start(&d->timer, on_timer, DIAL_RETRY_MS, 0);
        return errno == ECONNREFUSED || errno == ENOTDIR ? -ENOENT : -errno;
}

static void on_timer(uv_timer_t *t) {
        struct dial *d = t->data;
        int r;

        if (d->state == DIAL_REPORT)
                return dial_report(d, d->err);
        if (uv_now(d->loop) >= d->deadline)
                return dial_report(d, -ETIMEDOUT);
        r = try_connect(d);
        if (r < 0)
                dial_report(d, r);
}

int dial_open(uv_loop_t *loop, const char *sock_path, uint16_t port, dial_cb cb, void *arg, struct dial **ret,
              struct error *err) {
        struct dial *d = calloc(1, sizeof(*d));
        if (!d)
                return error_set(err, -ENOMEM, "no memory to connect to a sandbox");

        d->addr.sun_family = AF_UNIX;
        if (str_copy(d->addr.sun_path, sizeof(d->addr.sun_path), sock_path) < 0) {
                free(d);
                return error_set(err, -ENAMETOOLONG, "socket path \"%s\" is too long", sock_path);
        }
        d->fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
        if (d->fd < 0) {
                int e = errno;
                free(d);
                return error_errno(err, e, "cannot make a socket");
        }
        d->loop = loop;
        d->port = port;
        d->cb = cb;
        d->arg = arg;
        uv_timer_init(loop, &d->timer);
        d->timer.data = d;
        d->handles = 1;
        d->deadline = uv_now(loop) + DIAL_TIMEOUT_MS;

        int r = try_connect(d);
        if (r < 0)
                report_soon(d, r);
        *ret = d;
        return 0;
}

void dial_cancel(struct dial *d) {
        if (d)
                dial_end(d);
}
