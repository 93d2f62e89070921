/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Connections of the HTTP server: input, order of exchanges, timeouts, ends.
 *
 * conn_run() is the only place that parses and that makes callbacks. It repeats conn_step() until
 * nothing can go on: no input, a handler that holds the body back, an answer still to come, or an
 * output queue over STREAM_HIGH_WATER (then no further pipelined request is looked at, so that a
 * client which does not read cannot make the server pile up answers). Calls of handlers only set
 * flags and kick the connection; that makes every call safe in every callback.
 *
 * One timer per connection serves all timeouts: conn_deadline() says when the present state is
 * overdue, and the timer is only moved when it would fire too late.
 */

#include "io/http_server.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "io/http_conn.h"

#define AHEAD_MAX (64u * 1024)          /* read ahead of the exchange under way */
#define IN_MAX (4u * 1024 * 1024)       /* what one read may add on top is small; a bound all the same */
#define OVERFLOW_MAX 64                 /* connections being told 503 at a time */
#define STRANGERS_LOOKED_AT 256         /* for one that can make way */
#define FLUSH_STALL_MS 30000            /* last answer not taken for so long: give up */

struct http_server {
        struct http_server_config cfg;
        uv_loop_t *loop;
        struct http_conn *conns;
        struct http_conn *newest, *oldest; /* strangers */
        size_t n_conns, n_strangers;
};

static void conn_run(struct http_conn *c);
static void update_timer(struct http_conn *c);

static const struct http_x_ops no_ops = { 0 };

/* --- ends ------------------------------------------------------------------------------- */

static void on_handle_closed(uv_handle_t *h) {
        struct http_conn *c = h->data;
        if (--c->n_open == 0) {
                http1_parser_free(c->parser);
                buf_done(&c->in);
                free(c);
        }
}

void http_conn_admit(struct http_conn *c) {
        struct http_server *s = c->server;
        if (!c->stranger || !s)
                return;
        c->stranger = false;
        *(c->newer ? &c->newer->older : &s->newest) = c->older;
        *(c->older ? &c->older->newer : &s->oldest) = c->newer;
        s->n_strangers--;
}

static void add_stranger(struct http_conn *c) {
        struct http_server *s = c->server;
        c->stranger = true;
        c->older = s->newest;
        *(s->newest ? &s->newest->newer : &s->oldest) = c;
        s->newest = c;
        s->n_strangers++;
}

/* Ends the connection's life in the server. The memory stays until the loop has closed the
 * handles, so that callers on the stack can look at state. */
static void conn_retire(struct http_conn *c) {
        c->state = CONN_DEAD;
        if (c->server) {
                http_conn_admit(c);
                if (c->prev)
                        c->prev->next = c->next;
                else
                        c->server->conns = c->next;
                if (c->next)
                        c->next->prev = c->prev;
                c->server->n_conns--;
                c->server = NULL;
        }
        uv_close((uv_handle_t *) &c->kick, on_handle_closed);
        uv_close((uv_handle_t *) &c->timer, on_handle_closed);
}

static void conn_close(struct http_conn *c, bool abort) {
        if (c->state == CONN_DEAD)
                return;
        struct stream *s = STEAL(c->stream);
        struct http_x *x = STEAL(c->x);
        conn_retire(c);
        if (abort)
                stream_abort(s);
        else
                stream_close(s);
        if (x) {
                if (x->ops->on_abort)
                        x->ops->on_abort(x->arg);
                free(x);
        }
}

/* The last answer is queued. Input that is still on its way would make the kernel answer by a
 * reset, which can overtake the answer; so it is read and dropped for a while. */
static void conn_linger(struct http_conn *c) {
        if (c->eof || stream_shutdown(c->stream) < 0) {
                conn_close(c, false);
                return;
        }
        c->state = CONN_LINGER;
        c->rx_ms = uv_now(c->timer.loop);
        buf_done(&c->in);
        c->cur_n = 0;
}

int http_conn_take(struct http_conn *c, struct stream **ret) {
        int r = 0;
        if (c->in.len > 0 && c->cur_n > 0)
                r = buf_append(&c->in, c->cur, c->cur_n);
        if (r < 0) {
                conn_close(c, true);
                return r;
        }
        const uint8_t *early = c->in.len > 0 ? buf_data(&c->in) : c->cur;
        size_t n = c->in.len > 0 ? c->in.len : c->cur_n;
        struct stream *s = STEAL(c->stream);
        r = stream_prefix(s, early, n, c->eof, ret);
        conn_retire(c);
        return r;
}

static void exchange_done(struct http_conn *c) {
        struct http_x *x = STEAL(c->x);
        bool last = x->close;
        bool unread = !x->req_done || c->in.len > 0 || c->cur_n > 0 || !c->reading;
        if (x->ops->on_done)
                x->ops->on_done(x->arg);
        free(x);
        if (c->state == CONN_DEAD)
                return; /* the callback freed the server */
        if (last && unread)
                conn_linger(c);
        else if (last)
                conn_close(c, false);
        c->rx_ms = uv_now(c->timer.loop);
        c->head_ms = c->in.len + c->cur_n > 0 ? c->rx_ms : 0;
}

/* --- input ------------------------------------------------------------------------------ */

static void refuse(struct http_conn *c, int status, const char *reason) {
        if (http_conn_answer_error(c, status, reason) < 0)
                conn_close(c, true);
        else
                conn_linger(c);
}

static void on_bad_input(struct http_conn *c, const struct http1_event *ev) {
        struct http_x *x = c->x;
        if (x && x->started) {
                conn_close(c, !x->ended);
                return;
        }
        if (x) {
                c->x = NULL;
                if (x->ops->on_abort)
                        x->ops->on_abort(x->arg);
                free(x);
                if (c->state == CONN_DEAD)
                        return;
        }
        refuse(c, ev->status, ev->reason);
}

static void on_head(struct http_conn *c, const struct http1_head *head) {
        struct http_x *x = calloc(1, sizeof *x);
        if (!x) {
                conn_close(c, true);
                return;
        }
        x->conn = c;
        x->ops = &no_ops;
        x->head = head;
        x->left = -1;
        x->want_continue = head->expect_continue;
        x->close = !head->keep_alive;
        c->x = x;
        c->head_ms = 0;
        c->server->cfg.on_request(c->server->cfg.arg, x);
}

static void on_body(struct http_conn *c, const struct http1_event *ev) {
        struct http_x *x = c->x;
        x->want_continue = false;
        if (x->ended) {
                x->discarded += ev->n;
                return;
        }
        if (x->ops->on_body)
                x->ops->on_body(x->arg, ev->data, ev->n);
}

static void on_request_end(struct http_conn *c) {
        struct http_x *x = c->x;
        x->req_done = true;
        x->want_continue = false;
        if (!x->ended && x->ops->on_end)
                x->ops->on_end(x->arg);
}

/* No whole event in the input: the end of it may have been reached, or the client waits for us. */
static void on_input_exhausted(struct http_conn *c) {
        struct http_x *x = c->x;
        if (c->eof) {
                bool clean = http1_parser_eof(c->parser) == 0;
                if (x)
                        conn_close(c, true); /* the request was cut short */
                else
                        conn_close(c, !clean);
                return;
        }
        if (x && x->want_continue && !x->started) {
                x->want_continue = false;
                static const char line[] = "HTTP/1.1 100 Continue\r\n\r\n";
                if (stream_write(c->stream, line, sizeof line - 1) == -ENOMEM)
                        conn_close(c, true);
        }
}

static bool may_parse(const struct http_conn *c) {
        const struct http_x *x = c->x;
        if (!x)
                return stream_queued(c->stream) <= STREAM_HIGH_WATER;
        return !x->req_done && (x->ended || !x->paused);
}

static bool given_up(const struct http_conn *c, const struct http_x *x) {
        return x->discarded > HTTP_DISCARD_MAX || x->want_continue ||
               uv_now(c->timer.loop) >= x->ended_ms + HTTP_DISCARD_MS;
}

static void parse_one(struct http_conn *c, struct http1_event *ev) {
        size_t used;
        if (c->in.len > 0) {
                http1_parse(c->parser, buf_data(&c->in), c->in.len, &used, ev);
                /* The memory stays, so what the event borrows from it does too. */
                buf_consume(&c->in, used);
        } else {
                http1_parse(c->parser, c->cur, c->cur_n, &used, ev);
                if (used > 0) {
                        c->cur += used;
                        c->cur_n -= used;
                }
        }
}

/* True when another step may get on. */
static bool conn_step(struct http_conn *c) {
        if (c->state != CONN_OPEN)
                return false;
        struct http_x *x = c->x;
        if (x && x->aborted) {
                conn_close(c, true);
                return false;
        }
        if (x && x->ended && (x->req_done || given_up(c, x))) {
                if (!x->req_done)
                        x->close = true;
                exchange_done(c);
                return true;
        }
        if (!may_parse(c))
                return false;

        struct http1_event ev;
        parse_one(c, &ev);
        switch (ev.type) {
        case HTTP1_NEED_DATA:
                if (c->in.len == 0 && c->cur_n > 0)
                        return true;
                on_input_exhausted(c);
                return false;
        case HTTP1_HEAD:
                on_head(c, ev.head);
                return true;
        case HTTP1_BODY:
                on_body(c, &ev);
                return true;
        case HTTP1_END:
                on_request_end(c);
                return true;
        case HTTP1_ERROR:
        default:
                on_bad_input(c, &ev);
                return false;
        }
}

static void update_reading(struct http_conn *c) {
        const struct http_x *x = c->x;
        bool want = !c->eof;
        if (c->state == CONN_OPEN && want)
                want = c->in.len < AHEAD_MAX && !(x && !x->req_done && !x->ended && x->paused);
        if (want == c->reading)
                return;
        c->reading = want;
        if (want)
                stream_read_start(c->stream);
        else
                stream_read_stop(c->stream);
}

static void conn_run(struct http_conn *c) {
        if (c->running || c->state == CONN_DEAD)
                return;
        c->running = true;
        while (conn_step(c))
                ;
        c->running = false;
        if (c->state == CONN_DEAD)
                return;
        if (c->state == CONN_LINGER)
                buf_done(&c->in);
        else if (c->cur_n > 0 && buf_append(&c->in, c->cur, c->cur_n) < 0) {
                conn_close(c, true);
                return;
        }
        c->cur = NULL;
        c->cur_n = 0;
        if (c->state == CONN_OPEN && c->in.len == 0)
                buf_done(&c->in);
        update_reading(c); /* may deliver what the stream has buffered, and so end the connection */
        if (c->state != CONN_DEAD)
                update_timer(c);
}

static void on_kick(uv_idle_t *h) {
        (void) uv_idle_stop(h);
        conn_run(h->data);
}

void http_conn_kick(struct http_conn *c) {
        if (!c->running && c->state != CONN_DEAD)
                (void) uv_idle_start(&c->kick, on_kick);
}

/* --- stream callbacks ------------------------------------------------------------------- */

static void on_data(void *arg, const uint8_t *data, size_t n) {
        struct http_conn *c = arg;
        if (c->state == CONN_LINGER)
                return;
        c->rx_ms = uv_now(c->timer.loop);
        if (!c->x && c->head_ms == 0)
                c->head_ms = c->rx_ms;
        c->cur = data;
        c->cur_n = n;
        conn_run(c);
}

static void on_eof(void *arg) {
        struct http_conn *c = arg;
        c->eof = true;
        if (c->state == CONN_LINGER) {
                conn_close(c, false);
                return;
        }
        conn_run(c);
        struct http_x *x = c->x;
        if (c->state != CONN_OPEN || !x || !x->req_done || x->ended || !x->ops->on_eof)
                return;
        c->running = true; /* as in on_drain() */
        x->ops->on_eof(x->arg);
        c->running = false;
        conn_run(c);
}

static void on_drain(void *arg) {
        struct http_conn *c = arg;
        c->tx_ms = 0;
        /* While the queue was full nothing was expected of the peer. */
        if (c->state == CONN_LINGER)
                c->rx_ms = uv_now(c->timer.loop);
        if (c->head_ms > 0)
                c->head_ms = uv_now(c->timer.loop);
        struct http_x *x = c->x;
        if (c->state == CONN_OPEN && x && x->started && !x->ended && x->ops->on_drain) {
                c->running = true; /* what the handler does now is looked at below */
                x->ops->on_drain(x->arg);
                c->running = false;
        }
        conn_run(c);
}

static void on_error(void *arg, int err) {
        (void) err;
        conn_close(arg, true);
}

static const struct stream_handler conn_handler = {
        .on_data = on_data,
        .on_eof = on_eof,
        .on_drain = on_drain,
        .on_error = on_error,
};

/* --- timeouts --------------------------------------------------------------------------- */

enum overdue {
        OVERDUE_NONE,
        OVERDUE_IDLE,
        OVERDUE_HEAD,
        OVERDUE_BODY,
        OVERDUE_DISCARD,
        OVERDUE_LINGER,
        OVERDUE_WRITE
};

static void earlier(uint64_t *at, enum overdue *what, uint64_t since, uint64_t after, enum overdue kind) {
        if (after > 0 && (*what == OVERDUE_NONE || since + after < *at)) {
                *at = since + after;
                *what = kind;
        }
}

/* When the present state is overdue, and what is to be done about it then. */
static enum overdue conn_deadline(struct http_conn *c, uint64_t *at) {
        const struct http_server_config *cfg = &c->server->cfg;
        const struct http_x *x = c->x;
        enum overdue what = OVERDUE_NONE;
        size_t queued = stream_queued(c->stream);
        uint64_t now = uv_now(c->timer.loop);

        if (queued == 0)
                c->tx_ms = 0;
        else if (c->tx_ms == 0 || queued < c->tx_queued)
                c->tx_ms = now;
        c->tx_queued = queued;

        *at = 0;
        if (c->state == CONN_LINGER) {
                if (queued > 0)
                        earlier(at, &what, c->tx_ms, FLUSH_STALL_MS, OVERDUE_WRITE);
                else
                        earlier(at, &what, c->rx_ms, HTTP_LINGER_MS, OVERDUE_LINGER);
                return what;
        }
        if (queued > 0)
                earlier(at, &what, c->tx_ms, cfg->write_timeout_ms, OVERDUE_WRITE);
        if (!x && queued <= STREAM_HIGH_WATER) {
                if (c->head_ms > 0)
                        earlier(at, &what, c->head_ms, cfg->head_timeout_ms, OVERDUE_HEAD);
                else
                        earlier(at, &what, c->rx_ms, cfg->idle_timeout_ms, OVERDUE_IDLE);
        }
        if (x && !x->req_done && x->ended)
                earlier(at, &what, x->ended_ms, HTTP_DISCARD_MS, OVERDUE_DISCARD);
        else if (x && !x->req_done && !x->paused)
                earlier(at, &what, c->rx_ms, cfg->body_timeout_ms, OVERDUE_BODY);
        return what;
}

static void on_timer(uv_timer_t *t) {
        struct http_conn *c = t->data;
        c->timer_at = 0;
        uint64_t at;
        enum overdue what = conn_deadline(c, &at);
        if (what == OVERDUE_NONE || at > uv_now(t->loop)) {
                c->second_look = false;
                update_timer(c);
                return;
        }
        /* When this process was held up, timers are served before the input that came meanwhile. */
        if (!c->second_look) {
                c->second_look = true;
                c->timer_at = uv_now(t->loop) + 1;
                (void) uv_timer_start(&c->timer, on_timer, 1, 0);
                return;
        }
        c->second_look = false;
        switch (what) {
        case OVERDUE_HEAD:
                refuse(c, 408, "the request did not arrive in time");
                break;
        case OVERDUE_BODY:
                on_bad_input(c, &(struct http1_event){.status = 408,
                                                      .reason = "the request body stopped arriving"});
                break;
        case OVERDUE_DISCARD:
                break; /* conn_step() gives up */
        case OVERDUE_IDLE:
        case OVERDUE_LINGER:
                conn_close(c, false);
                break;
        case OVERDUE_WRITE:
                conn_close(c, true);
                break;
        case OVERDUE_NONE:
        default:
                break;
        }
        conn_run(c);
}

static void update_timer(struct http_conn *c) {
        uint64_t at;
        if (conn_deadline(c, &at) == OVERDUE_NONE || (c->timer_at != 0 && c->timer_at <= at))
                return;
        uint64_t now = uv_now(c->timer.loop);
        c->timer_at = at;
        (void) uv_timer_start(&c->timer, on_timer, at > now ? at - now : 0, 0);
}

/* --- server ----------------------------------------------------------------------------- */

int http_server_new(uv_loop_t *loop, const struct http_server_config *cfg, struct http_server **ret,
                    struct error *err) {
        struct http_server *s = calloc(1, sizeof *s);
        if (!s)
                return error_set(err, -ENOMEM, "out of memory");
        s->cfg = *cfg;
        s->loop = loop;
        *ret = s;
        return 0;
}

/* A stranger that asks for nothing makes way. One whose request is under way, or who is being told something, does not;
 * there are few of those, as strangers are refused at once. */
static bool make_way(struct http_server *s) {
        struct http_conn *c = s->oldest;
        for (unsigned looked = 0; c && looked < STRANGERS_LOOKED_AT; c = c->newer, looked++)
                if (c->state == CONN_OPEN && !c->x && !c->running) {
                        conn_close(c, true);
                        return true;
                }
        return false;
}

int http_server_add(struct http_server *s, struct stream *conn, void *tag) {
        size_t max = s->cfg.max_connections, strangers = s->cfg.max_strangers;
        bool full = (max > 0 && s->n_conns >= max) || (strangers > 0 && s->n_strangers >= strangers);
        if (full && strangers > 0 && make_way(s))
                full = false;
        if (full && ((max > 0 && s->n_conns >= max + OVERFLOW_MAX) ||
                     (strangers > 0 && s->n_strangers >= strangers + OVERFLOW_MAX))) {
                stream_close(conn);
                return -EMFILE;
        }
        struct http_conn *c = calloc(1, sizeof *c);
        struct http1_parser *p = http1_parser_new(HTTP1_REQUESTS);
        if (!c || !p) {
                free(c);
                http1_parser_free(p);
                stream_close(conn);
                return -ENOMEM;
        }
        c->server = s;
        c->stream = conn;
        c->tag = tag;
        c->parser = p;
        c->in = BUF_INIT(IN_MAX);
        c->kick.data = c->timer.data = c;
        (void) uv_idle_init(s->loop, &c->kick);
        (void) uv_timer_init(s->loop, &c->timer);
        c->n_open = 2;
        c->rx_ms = uv_now(s->loop);
        c->next = s->conns;
        if (c->next)
                c->next->prev = c;
        s->conns = c;
        s->n_conns++;
        add_stranger(c);
        stream_set_handler(conn, &conn_handler, c);
        if (full)
                refuse(c, 503, "too many connections");
        /* Not run here: stream_read_start() of a stream with buffered bytes makes callbacks. */
        http_conn_kick(c);
        return 0;
}

size_t http_server_connections(const struct http_server *s) {
        return s->n_conns;
}

void http_server_free(struct http_server *s) {
        if (!s)
                return;
        while (s->conns)
                conn_close(s->conns, true);
        free(s);
}
