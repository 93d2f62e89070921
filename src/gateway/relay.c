/* SPDX-License-Identifier: Apache-2.0 */

/*
 * A server that answers and closes without having read all it was sent resets the connection; what it
 * had answered is still there to be read. So neither an error of the upstream socket nor a failed
 * write to it ends the relay before all that upstream sent has reached the guest.
 *
 * Polls are level-triggered: a reading that was not full is not tried again, and only the way that an event speaks
 * of is worked on. In a conversation of small messages that makes one reading and one writing of each.
 */

#include "relay.h"

#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/fd.h"

#define STEPS_PER_TURN 16 /* pipes' worth before the loop gets its turn */

struct side {
        struct relay *r;
        uv_poll_t poll;
        int fd;
        int events;
        /* what this side sends */
        int pipe[2];
        size_t in_pipe;
        bool bulk;      /* the last reading was full: by the pipe from here on */
        uint8_t *first; /* goes out before the pipe: what was read ahead of the relay, or the rest of a copy */
        size_t first_n, first_at;
        bool eof, shut; /* end of input seen; passed on to the other side */
        int err;        /* of the socket; told when its input is used up */
};

struct relay {
        struct side side[2];
        uv_timer_t timer;
        uint64_t last_ms;
        struct relay_pipes *pipes;
        const struct relay_handler *h;
        void *arg;
        unsigned n_open;
        bool over;
};

/* ---- pipes --------------------------------------------------------------------------------- */

static int get_pipe(struct relay *r, struct side *s) {
        if (s->pipe[0] >= 0)
                return 0;
        if (r->pipes->n > 0) {
                memcpy(s->pipe, r->pipes->fds[--r->pipes->n], sizeof s->pipe);
                return 0;
        }
        return pipe2(s->pipe, O_CLOEXEC | O_NONBLOCK) < 0 ? -errno : 0;
}

/* Only an empty one may be used again: what is left in it is another connection's. */
static void put_pipe(struct relay *r, struct side *s) {
        if (s->pipe[0] < 0)
                return;
        if (s->in_pipe == 0 && r->pipes->n < RELAY_SPARE_PIPES)
                memcpy(r->pipes->fds[r->pipes->n++], s->pipe, sizeof s->pipe);
        else {
                (void) fd_close(s->pipe[0]);
                (void) fd_close(s->pipe[1]);
        }
        s->pipe[0] = s->pipe[1] = -EBADF;
}

void relay_pipes_done(struct relay_pipes *p) {
        while (p->n > 0) {
                p->n--;
                (void) fd_close(p->fds[p->n][0]);
                (void) fd_close(p->fds[p->n][1]);
        }
}

/* ---- end ----------------------------------------------------------------------------------- */

static void on_closed(uv_handle_t *h) {
        struct relay *r = h->data;
        if (--r->n_open == 0)
                free(r);
}

static void on_side_closed(uv_handle_t *h) {
        struct side *s = h->data;
        struct relay *r = s->r;
        if (--r->n_open == 0)
                free(r);
}

static void release(struct relay *r, bool reset) {
        r->over = true;
        for (int i = 0; i < 2; i++) {
                struct side *s = &r->side[i];
                put_pipe(r, s);
                free(STEAL(s->first));
                const struct linger l = { .l_onoff = 1, .l_linger = 0 };
                if (reset)
                        (void) setsockopt(s->fd, SOL_SOCKET, SO_LINGER, &l, sizeof l);
                uv_close((uv_handle_t *) &s->poll, on_side_closed);
                s->fd = fd_close(s->fd);
        }
        uv_close((uv_handle_t *) &r->timer, on_closed);
}

static void end(struct relay *r, int err) {
        if (r->over)
                return;
        release(r, err != 0);
        r->h->on_end(r->arg, err);
}

void relay_abort(struct relay *r) {
        if (r && !r->over)
                release(r, true);
}

/* ---- moving -------------------------------------------------------------------------------- */

/* Bytes that went into `to`; 0 when it takes no more now; negative errno. */
static ssize_t put_out(struct side *from, struct side *to) {
        ssize_t n;
        if (from->first) {
                n = send(to->fd, from->first + from->first_at, from->first_n - from->first_at, MSG_NOSIGNAL | MSG_DONTWAIT);
                if (n > 0) {
                        from->first_at += (size_t) n;
                        if (from->first_at == from->first_n)
                                free(STEAL(from->first));
                }
        } else {
                n = splice(from->pipe[0], NULL, to->fd, NULL, from->in_pipe, SPLICE_F_MOVE | SPLICE_F_NONBLOCK);
                if (n > 0)
                        from->in_pipe -= (size_t) n;
        }
        if (n < 0)
                return errno == EAGAIN || errno == EINTR ? 0 : -errno;
        return n;
}

/* What a reading of n bytes, or its failure, means: 1 for bytes or the end, 0 for nothing there, negative errno. */
static int taken(struct side *from, ssize_t n) {
        if (n < 0)
                return errno == EAGAIN || errno == EINTR ? 0 : -errno;
        if (n == 0 && from->err && from->err != -EPIPE) /* EPIPE: its end had come before the reset */
                return from->err;
        from->eof = n == 0;
        return 1;
}

/* Into the pipe. */
static int take_in(struct relay *r, struct side *from) {
        int e = get_pipe(r, from);
        if (e < 0)
                return e;
        ssize_t n = splice(from->fd, NULL, from->pipe[1], NULL, RELAY_PIPE_BYTES, SPLICE_F_MOVE | SPLICE_F_NONBLOCK);
        e = taken(from, n);
        if (n > 0)
                from->in_pipe += (size_t) n;
        from->bulk = n >= (ssize_t) RELAY_COPY_BYTES;
        return e;
}

/* Keeps what did not go out. */
static int keep(struct side *from, const uint8_t *rest, size_t n) {
        from->first = malloc(n);
        if (!from->first)
                return -ENOMEM;
        memcpy(from->first, rest, n);
        from->first_n = n;
        from->first_at = 0;
        return 0;
}

static bool loaded(const struct side *s) {
        return s->first || s->in_pipe > 0;
}

/* Nothing more can be written to upstream. */
static void give_up_sending(struct relay *r, struct side *guest, int err) {
        struct side *up = &r->side[RELAY_UPSTREAM];
        if (!up->err)
                up->err = err;
        free(STEAL(guest->first));
        (void) fd_close(guest->pipe[0]);
        (void) fd_close(guest->pipe[1]);
        guest->pipe[0] = guest->pipe[1] = -EBADF;
        guest->in_pipe = 0;
        guest->eof = guest->shut = true;
}

static int went_out(struct relay *r, struct side *from, size_t n) {
        r->last_ms = uv_now(r->timer.loop);
        return r->h->on_bytes(r->arg, from == &r->side[RELAY_GUEST] ? RELAY_GUEST : RELAY_UPSTREAM, n) ? 0 : -EDQUOT;
}

/* A failed write of what `from` sent: 0 where the relay goes on without it. */
static int not_sent(struct relay *r, struct side *from, int err) {
        if (from != &r->side[RELAY_GUEST])
                return err;
        give_up_sending(r, from, err);
        return 0;
}

/* Reads and writes once, with nothing on its way. 1: there may be more, 0: not now, negative errno. */
static int copy(struct relay *r, struct side *from, struct side *to) {
        uint8_t d[RELAY_COPY_BYTES];
        ssize_t n = recv(from->fd, d, sizeof d, MSG_DONTWAIT);
        int e = taken(from, n);
        if (e <= 0 || n == 0)
                return e;
        from->bulk = (size_t) n == sizeof d;
        ssize_t sent = send(to->fd, d, (size_t) n, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (sent < 0 && errno != EAGAIN && errno != EINTR)
                return not_sent(r, from, -errno);
        if (sent < n) {
                size_t out = sent > 0 ? (size_t) sent : 0;
                e = keep(from, d + out, (size_t) n - out);
                if (e < 0)
                        return e;
        }
        if (sent > 0)
                e = went_out(r, from, (size_t) sent);
        return e < 0 ? e : from->bulk && sent == n;
}

/* By the pipe, or what is left of a copy; the same answers. */
static int pass(struct relay *r, struct side *from, struct side *to) {
        if (!loaded(from)) {
                int e = take_in(r, from);
                if (e <= 0 || from->eof)
                        return e;
        }
        ssize_t n = put_out(from, to);
        if (n < 0)
                return not_sent(r, from, (int) n);
        if (n == 0)
                return 0;
        int e = went_out(r, from, (size_t) n);
        return e < 0 ? e : loaded(from) || from->bulk || from->eof;
}

/* Moves what `from` sends on to `to`. */
static int move(struct relay *r, struct side *from, struct side *to) {
        int e = 1;
        for (int i = 0; i < STEPS_PER_TURN && e > 0 && (loaded(from) || !from->eof); i++)
                e = loaded(from) || from->bulk ? pass(r, from, to) : copy(r, from, to);
        if (e >= 0 && from->eof && !loaded(from) && !from->shut) {
                from->shut = true;
                (void) shutdown(to->fd, SHUT_WR);
        }
        if (!loaded(from))
                put_pipe(r, from);
        return e < 0 ? e : 0;
}

static void on_poll(uv_poll_t *h, int status, int events);

static void watch(struct side *s, struct side *other) {
        int ev = (!s->eof && !loaded(s) ? UV_READABLE : 0) | (loaded(other) ? UV_WRITABLE : 0);
        if (ev == s->events)
                return;
        s->events = ev;
        if (ev == 0)
                (void) uv_poll_stop(&s->poll);
        else
                (void) uv_poll_start(&s->poll, ev, on_poll);
}

/* Each way only if an event spoke of it. */
static void work(struct relay *r, bool outward, bool inward) {
        struct side *g = &r->side[RELAY_GUEST], *u = &r->side[RELAY_UPSTREAM];
        int e = outward ? move(r, g, u) : 0;
        if (e == 0 && inward)
                e = move(r, u, g);
        if (e < 0) {
                end(r, e);
                return;
        }
        if (g->shut && u->shut) {
                end(r, 0);
                return;
        }
        watch(g, u);
        watch(u, g);
}

/* libuv has stopped the handle; what it is, the sockets tell. */
static void on_poll_error(struct side *s) {
        int e = 0;
        socklen_t len = sizeof e;
        s->events = 0;
        if (getsockopt(s->fd, SOL_SOCKET, SO_ERROR, &e, &len) == 0 && e != 0)
                s->err = -e;
        if (s->err && s == &s->r->side[RELAY_GUEST])
                end(s->r, s->err);
        else
                work(s->r, true, true);
}

static void on_poll(uv_poll_t *h, int status, int events) {
        struct side *s = h->data;
        bool in = events & UV_READABLE, out = events & UV_WRITABLE, guest = s == &s->r->side[RELAY_GUEST];
        if (status < 0)
                on_poll_error(s);
        else
                work(s->r, guest ? in : out, guest ? out : in);
}

static void on_timer(uv_timer_t *t) {
        struct relay *r = t->data;
        uint64_t idle = uv_now(t->loop) - r->last_ms;
        if (idle >= RELAY_IDLE_MS)
                end(r, -ETIMEDOUT);
        else
                (void) uv_timer_start(t, on_timer, RELAY_IDLE_MS - idle, 0);
}

/* ---- start --------------------------------------------------------------------------------- */

static void tune(int fd) {
        static const int on = 1, idle_s = 60, interval_s = 15, count = 4;
        (void) setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
        (void) setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
        (void) setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &idle_s, sizeof idle_s);
        (void) setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &interval_s, sizeof interval_s);
        (void) setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &count, sizeof count);
}

static int add_side(struct relay *r, uv_loop_t *loop, int i, int fd) {
        struct side *s = &r->side[i];
        tune(fd);
        int e = uv_poll_init(loop, &s->poll, fd);
        if (e < 0)
                return e;
        s->poll.data = s;
        s->r = r;
        s->fd = fd;
        s->pipe[0] = s->pipe[1] = -EBADF;
        r->n_open++;
        return 0;
}

int relay_new(uv_loop_t *loop, struct relay_pipes *pipes, int guest, int upstream, const void *first, size_t first_n,
              const struct relay_handler *h, void *arg, struct relay **ret) {
        _cleanup_fd_ int g = guest, u = upstream;
        uint8_t *copy = first_n > 0 ? malloc(first_n) : NULL;
        struct relay *r = calloc(1, sizeof *r);
        if (!r || (first_n > 0 && !copy)) {
                free(r);
                free(copy);
                return -ENOMEM;
        }
        (void) uv_timer_init(loop, &r->timer);
        r->timer.data = r;
        r->n_open = 1;
        r->pipes = pipes;
        int e = add_side(r, loop, RELAY_GUEST, g);
        if (e == 0)
                e = add_side(r, loop, RELAY_UPSTREAM, u);
        if (e < 0) {
                free(copy);
                if (r->n_open > 1)
                        uv_close((uv_handle_t *) &r->side[RELAY_GUEST].poll, on_side_closed);
                uv_close((uv_handle_t *) &r->timer, on_closed);
                return e;
        }
        (void) fd_steal(&g);
        (void) fd_steal(&u);
        if (first_n > 0)
                memcpy(copy, first, first_n);
        r->side[RELAY_GUEST].first = copy;
        r->side[RELAY_GUEST].first_n = first_n;
        r->h = h;
        r->arg = arg;
        r->last_ms = uv_now(loop);
        (void) uv_timer_start(&r->timer, on_timer, RELAY_IDLE_MS, 0);
        watch(&r->side[RELAY_GUEST], &r->side[RELAY_UPSTREAM]);
        watch(&r->side[RELAY_UPSTREAM], &r->side[RELAY_GUEST]);
        *ret = r;
        return 0;
}
