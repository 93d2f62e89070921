/* SPDX-License-Identifier: Apache-2.0 */

/* Not listener_new(): that gives a stream, and a relay needs the descriptor. */

#include "acceptor.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/socket.h>

#include "base/fd.h"
#include "conn.h"

#define BURST 64
#define PAUSE_MS 100 /* after an error that passes by itself, such as no descriptor left */

struct acceptor {
        struct gateway *gw;
        uv_poll_t poll;
        uv_timer_t timer;
        int fd;
        unsigned n_open;
};

static void on_readable(uv_poll_t *h, int status, int events);

static void on_resume(uv_timer_t *t) {
        struct acceptor *a = t->data;
        if (uv_poll_start(&a->poll, UV_READABLE, on_readable) < 0)
                (void) uv_timer_start(t, on_resume, PAUSE_MS, 0);
}

static void on_readable(uv_poll_t *h, int status, int events) {
        struct acceptor *a = h->data;
        (void) status;
        (void) events;
        for (int i = 0; i < BURST; i++) {
                int fd = accept4(a->fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
                if (fd >= 0) {
                        conn_accept(a->gw, fd);
                        continue;
                }
                if (errno == EINTR || errno == ECONNABORTED)
                        continue;
                if (errno != EAGAIN) {
                        (void) uv_poll_stop(&a->poll);
                        (void) uv_timer_start(&a->timer, on_resume, PAUSE_MS, 0);
                }
                return;
        }
}

static void on_closed(uv_handle_t *h) {
        struct acceptor *a = h->data;
        if (--a->n_open == 0)
                free(a);
}

int acceptor_new(struct gateway *gw, int fd, struct acceptor **ret, struct error *err) {
        struct acceptor *a = calloc(1, sizeof *a);
        int r = a ? uv_poll_init(gw->loop, &a->poll, fd) : -ENOMEM;
        if (r < 0) {
                free(a);
                (void) fd_close(fd);
                return error_errno(err, r, "listening descriptor");
        }
        (void) uv_timer_init(gw->loop, &a->timer);
        a->gw = gw;
        a->fd = fd;
        a->n_open = 2;
        a->poll.data = a->timer.data = a;
        on_resume(&a->timer);
        *ret = a;
        return 0;
}

void acceptor_free(struct acceptor *a) {
        if (!a)
                return;
        uv_close((uv_handle_t *) &a->poll, on_closed);
        uv_close((uv_handle_t *) &a->timer, on_closed);
        a->fd = fd_close(a->fd);
}
