/* SPDX-License-Identifier: Apache-2.0 */
#include "data.h"

/*
 * One connection:
 *
 *   LINE      reads "CONNECT N\n", not a byte more
 *   WAIT      the guest is not up yet
 *   OPENING   link_open() is under way
 *   OPEN      bytes go both ways
 *   FINISHED  both directions ended properly; only the client's close is waited for
 *
 * How ends are told apart, which a Unix socket does not do by itself: the side that has said all it
 * has to say shuts down its sending direction and leaves the descriptor open; closing it while the
 * other side still expects something means that the stream was cut. So a client sees end of file
 * without POLLHUP for a proper end, with POLLHUP for a cut one, and is read here the same way. (The
 * kernel also sets POLLHUP once both sides have shut down; then there is nothing left to cut.)
 *
 * Memory: towards the guest bytes are read only while the link's queue is short, towards the client
 * at most one piece of what the link delivers waits here while the link is held back.
 */

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/queue.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/cleanup.h"
#include "base/fd.h"
#include "base/limits.h"
#include "base/str.h"

#define DATA_PIECE 65536
#define DATA_QUEUE (128u * 1024) /* of the link; reading from the client stops above */
#define DATA_FINISHED_MS 60000
#define DATA_SWEEP_MS 1000
#define DATA_BURST 8 /* pieces read at one wake-up */

enum conn_state { CONN_LINE, CONN_WAIT, CONN_OPENING, CONN_OPEN, CONN_FINISHED };

struct conn {
        LIST_ENTRY(conn) entry;
        struct data *d;
        uv_poll_t poll;
        int fd, events;
        enum conn_state state;
        bool opening; /* link_open() owes us a call: the memory must stay */
        bool dead, closed; /* no longer in the list; its handle is closed too */
        unsigned port;
        uint64_t deadline;

        struct stream *s;
        bool client_eof; /* the client will send no more */
        bool guest_eof;  /* the guest neither; told to the client when `out` is empty */
        bool shut;       /* told */
        struct buf out;  /* to the client */
};

struct data {
        uv_loop_t *loop;
        struct warden *w;
        uv_poll_t poll;
        uv_timer_t sweep;
        int fd;
        unsigned handles;
        size_t n_conns;
        LIST_HEAD(, conn) conns;
};

static void update(struct conn *c);

/* ---- life of a connection ------------------------------------------------------------------ */

static void conn_release(struct conn *c) {
        if (c->opening || !c->closed)
                return;
        buf_done(&c->out);
        free(c);
}

static void on_conn_closed(uv_handle_t *h) {
        struct conn *c = h->data;
        c->closed = true;
        conn_release(c);
}

static void conn_free(struct conn *c, bool cut) {
        if (c->dead)
                return;
        c->dead = true;
        LIST_REMOVE(c, entry);
        c->d->n_conns--;
        if (cut)
                stream_abort(STEAL(c->s));
        else
                stream_close(STEAL(c->s));
        uv_poll_stop(&c->poll);
        c->fd = fd_close(c->fd);
        uv_close((uv_handle_t *) &c->poll, on_conn_closed);
}

static void say(struct conn *c, const char *line) {
        (void) !send(c->fd, line, strlen(line), MSG_NOSIGNAL | MSG_DONTWAIT);
}

static void refuse(struct conn *c, const char *line) {
        say(c, line);
        conn_free(c, true);
}

static void set_deadline(struct conn *c, unsigned ms);

/* ---- bytes --------------------------------------------------------------------------------- */

static bool hung_up(int fd) {
        struct pollfd p = { .fd = fd };
        return poll(&p, 1, 0) == 1 && (p.revents & (POLLHUP | POLLERR));
}

static void check_finished(struct conn *c) {
        if (c->guest_eof && c->out.len == 0 && !c->shut) {
                c->shut = true;
                (void) shutdown(c->fd, SHUT_WR);
        }
        if (c->state == CONN_OPEN && c->shut && c->client_eof) {
                c->state = CONN_FINISHED;
                stream_close(STEAL(c->s));
                set_deadline(c, DATA_FINISHED_MS);
        }
}

/* Sends to the client what its socket takes; false when the client is gone. */
static bool push(struct conn *c, const uint8_t *data, size_t n, size_t *ret_sent) {
        *ret_sent = 0;
        while (*ret_sent < n) {
                ssize_t r = send(c->fd, data + *ret_sent, n - *ret_sent, MSG_NOSIGNAL | MSG_DONTWAIT);
                if (r < 0 && errno == EINTR)
                        continue;
                if (r < 0)
                        return errno == EAGAIN;
                *ret_sent += (size_t) r;
        }
        return true;
}

static void on_guest_data(void *arg, const uint8_t *data, size_t n) {
        struct conn *c = arg;
        size_t sent = 0;
        if (c->out.len == 0 && !push(c, data, n, &sent))
                return conn_free(c, true);
        if (sent < n) {
                if (buf_append(&c->out, data + sent, n - sent) < 0)
                        return conn_free(c, true);
                stream_read_stop(c->s);
                update(c);
        }
}

static void on_guest_eof(void *arg) {
        struct conn *c = arg;
        c->guest_eof = true;
        check_finished(c);
        update(c);
}

static void on_guest_drain(void *arg) {
        update(arg);
}

static void on_guest_error(void *arg, int err) {
        struct conn *c = arg;
        /* The guest closed its end after having said all: our client may still be reading that. */
        if (err == -EPIPE && c->guest_eof) {
                stream_close(STEAL(c->s));
                c->client_eof = true;
                c->state = CONN_FINISHED;
                set_deadline(c, DATA_FINISHED_MS);
                check_finished(c);
                return update(c);
        }
        conn_free(c, true);
}

static const struct stream_handler guest_handler = {
        .on_data = on_guest_data,
        .on_eof = on_guest_eof,
        .on_drain = on_guest_drain,
        .on_error = on_guest_error,
};

static void client_ended(struct conn *c) {
        c->client_eof = true;
        if (hung_up(c->fd))
                return conn_free(c, !c->guest_eof);
        stream_shutdown(c->s);
        check_finished(c);
}

static void read_client(struct conn *c) {
        uint8_t buf[DATA_PIECE];
        for (int i = 0; i < DATA_BURST && stream_queued(c->s) <= DATA_QUEUE; i++) {
                ssize_t n = recv(c->fd, buf, sizeof(buf), MSG_DONTWAIT);
                if (n == 0)
                        return client_ended(c);
                if (n < 0) {
                        if (errno != EAGAIN && errno != EINTR)
                                conn_free(c, true);
                        return;
                }
                if (stream_write(c->s, buf, (size_t) n) < 0)
                        return; /* on_error or on_eof is on its way */
        }
}

static void write_client(struct conn *c) {
        size_t sent;
        if (!push(c, buf_data(&c->out), c->out.len, &sent))
                return conn_free(c, true);
        buf_consume(&c->out, sent);
        if (c->out.len > 0)
                return;
        buf_done(&c->out);
        if (c->s)
                stream_read_start(c->s);
        check_finished(c);
}

/* ---- opening ------------------------------------------------------------------------------- */

static void is_open(struct conn *c, struct stream *s) {
        c->s = s;
        c->state = CONN_OPEN;
        c->deadline = 0;
        stream_set_handler(s, &guest_handler, c);
        say(c, "200 OK\n");
        stream_read_start(s);
        update(c);
}

static void on_opened(void *arg, int err, struct stream *s) {
        struct conn *c = arg;
        c->opening = false;
        if (c->dead) {
                stream_abort(s);
                return conn_release(c);
        }
        if (err == -ECONNREFUSED)
                return refuse(c, "502 closed\n");
        if (err < 0)
                return refuse(c, err == -EAGAIN ? "503 too many streams\n" : "503 the guest does not answer\n");
        is_open(c, s);
}

static void open_stream(struct conn *c) {
        struct link *l = warden_link(c->d->w);
        char authority[32];
        if (!l) {
                c->state = CONN_WAIT;
                return;
        }
        snprintf(authority, sizeof(authority), "127.0.0.1:%u", c->port);
        /* The agent itself is always there; the client need not wait for it to say so. */
        struct stream *s;
        bool agent = c->port == AGENT_PORT;
        int r = agent ? link_open_early(l, authority, &s) : link_open(l, authority, on_opened, c);
        if (r < 0)
                return refuse(c, r == -EAGAIN ? "503 too many streams\n" : "503 no link\n");
        if (agent)
                return is_open(c, s);
        c->state = CONN_OPENING;
        c->opening = true;
}

/* Takes the line off the socket, and nothing behind it. */
static void read_line(struct conn *c) {
        char line[DATA_LINE_MAX + 1];
        ssize_t n = recv(c->fd, line, DATA_LINE_MAX, MSG_PEEK | MSG_DONTWAIT);
        if (n < 0 && (errno == EAGAIN || errno == EINTR))
                return;
        if (n <= 0)
                return conn_free(c, true);
        char *nl = memchr(line, '\n', (size_t) n);
        if (!nl && n == DATA_LINE_MAX)
                return refuse(c, "400 no line\n");
        if (!nl) {
                /* An incomplete line would wake us up for ever: take it off and keep it. */
                if (c->out.len + (size_t) n > DATA_LINE_MAX)
                        return refuse(c, "400 no line\n");
                (void) !recv(c->fd, line, (size_t) n, MSG_DONTWAIT);
                if (buf_append(&c->out, line, (size_t) n) < 0)
                        conn_free(c, true);
                return;
        }
        (void) !recv(c->fd, line, (size_t) (nl + 1 - line), MSG_DONTWAIT);
        *nl = '\0';
        uint64_t port = 0;
        if (buf_append(&c->out, line, (size_t) (nl - line)) < 0)
                return conn_free(c, true);
        const char *all = buf_str(&c->out);
        if (!all || !str_has_prefix(all, "CONNECT ") || str_to_u64(all + 8, 65535, &port) < 0 || port == 0)
                return refuse(c, "400 expected CONNECT and a port\n");
        buf_done(&c->out);
        c->port = (unsigned) port;
        if (warden_ended(c->d->w))
                return refuse(c, "503 the VM has ended\n");
        set_deadline(c, DATA_WAIT_MS);
        open_stream(c);
}

/* ---- the loop ------------------------------------------------------------------------------ */

static void on_poll(uv_poll_t *h, int status, int events) {
        struct conn *c = h->data;
        if (status < 0)
                return conn_free(c, true);
        if (c->state == CONN_LINE) {
                read_line(c);
        } else {
                if (events & UV_WRITABLE)
                        write_client(c);
                if (!c->dead && (events & UV_READABLE) && c->state == CONN_OPEN)
                        read_client(c);
                if (!c->dead && (events & UV_PRIORITIZED) && hung_up(c->fd))
                        return conn_free(c, c->state != CONN_FINISHED && !c->guest_eof);
        }
        if (!c->dead)
                update(c);
}

static void update(struct conn *c) {
        int events = 0;
        if (c->dead)
                return;
        if (c->state == CONN_LINE)
                events = UV_READABLE;
        else if (c->state == CONN_OPEN && !c->client_eof && stream_queued(c->s) <= DATA_QUEUE)
                events = UV_READABLE;
        if (c->out.len > 0 && c->state != CONN_LINE)
                events |= UV_WRITABLE;
        if (events == 0)
                events = UV_PRIORITIZED; /* that is: only tell when the client is gone */
        if (events == c->events)
                return;
        c->events = events;
        uv_poll_start(&c->poll, events, on_poll);
}

static void on_sweep(uv_timer_t *t) {
        struct data *d = t->data;
        uint64_t now = uv_now(d->loop);
        bool more = false;
        struct conn *c = LIST_FIRST(&d->conns), *next;
        for (; c; c = next) {
                next = LIST_NEXT(c, entry);
                if (!c->deadline)
                        continue;
                if (c->deadline > now)
                        more = true;
                else if (c->state == CONN_FINISHED)
                        conn_free(c, false);
                else
                        refuse(c, c->state == CONN_LINE ? "400 no line\n" : "503 the guest does not answer\n");
        }
        if (!more)
                uv_timer_stop(t);
}

static void set_deadline(struct conn *c, unsigned ms) {
        struct data *d = c->d;
        c->deadline = uv_now(d->loop) + ms;
        if (!uv_is_active((uv_handle_t *) &d->sweep))
                uv_timer_start(&d->sweep, on_sweep, DATA_SWEEP_MS, DATA_SWEEP_MS);
}

static void on_connection(uv_poll_t *h, int status, int events) {
        struct data *d = h->data;
        (void) status;
        (void) events;
        int fd = accept4(d->fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
        if (fd < 0)
                return;
        static const char full[] = "503 too many connections\n";
        struct conn *c = d->n_conns < DATA_CONNECTIONS_MAX ? calloc(1, sizeof(*c)) : NULL;
        if (!c || uv_poll_init(d->loop, &c->poll, fd) < 0) {
                (void) !send(fd, full, sizeof(full) - 1, MSG_NOSIGNAL | MSG_DONTWAIT);
                free(c);
                fd_close(fd);
                return;
        }
        c->d = d;
        c->fd = fd;
        c->poll.data = c;
        LIST_INSERT_HEAD(&d->conns, c, entry);
        d->n_conns++;
        set_deadline(c, DATA_LINE_MS);
        read_line(c); /* usually it is there already */
        update(c);
}

int data_new(uv_loop_t *loop, int listen_fd, struct warden *w, struct data **ret, struct error *err) {
        struct data *d = calloc(1, sizeof(*d));
        int r = d ? uv_poll_init(loop, &d->poll, listen_fd) : -ENOMEM;
        if (r < 0) {
                free(d);
                fd_close(listen_fd);
                return error_errno(err, r, "data.sock");
        }
        uv_timer_init(loop, &d->sweep);
        d->loop = loop;
        d->w = w;
        d->fd = listen_fd;
        d->poll.data = d->sweep.data = d;
        d->handles = 2;
        LIST_INIT(&d->conns);
        uv_poll_start(&d->poll, UV_READABLE, on_connection);
        *ret = d;
        return 0;
}

void data_link_up(struct data *d) {
        struct conn *c = d ? LIST_FIRST(&d->conns) : NULL, *next;
        for (; c; c = next) {
                next = LIST_NEXT(c, entry);
                if (c->state == CONN_WAIT)
                        open_stream(c);
        }
}

void data_end(struct data *d, const char *reason) {
        char line[ERROR_MSG_MAX + 8];
        snprintf(line, sizeof(line), "503 %s", reason);
        line[strcspn(line, "\r\n")] = '\0';
        strcat(line, "\n");
        struct conn *c = d ? LIST_FIRST(&d->conns) : NULL, *next;
        for (; c; c = next) {
                next = LIST_NEXT(c, entry);
                if (c->state == CONN_WAIT || c->state == CONN_OPENING)
                        refuse(c, line);
                else if (c->state == CONN_OPEN)
                        conn_free(c, true);
        }
}

static void on_handle_closed(uv_handle_t *h) {
        struct data *d = h->data;
        if (--d->handles == 0)
                free(d);
}

void data_free(struct data *d) {
        if (!d)
                return;
        struct conn *c;
        while ((c = LIST_FIRST(&d->conns)))
                conn_free(c, true);
        uv_poll_stop(&d->poll);
        uv_timer_stop(&d->sweep);
        d->fd = fd_close(d->fd);
        uv_close((uv_handle_t *) &d->poll, on_handle_closed);
        uv_close((uv_handle_t *) &d->sweep, on_handle_closed);
}
