/* SPDX-License-Identifier: Apache-2.0 */

/* The HTTP server against a peer that writes and reads raw bytes on the other end of a socket. */

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/cleanup.h"
#include "io/http_server.h"
#include "loop.h"
#include "test.h"

#define CRLF "\r\n"
#define GET "GET / HTTP/1.1" CRLF "Host: a" CRLF CRLF
#define POST(n) "POST / HTTP/1.1" CRLF "Host: a" CRLF "Content-Length: " #n CRLF CRLF
#define MAX_X 16

/* What the handler saw of one exchange. */
struct seen {
        struct http_x *x;
        struct buf body;
        char target[64];
        bool ended;
        int n_done, n_abort, n_drain, n_eof;
};

struct fixture {
        uv_loop_t loop;
        struct http_server *server;
        int peer;
        struct buf got; /* what the peer received */
        bool peer_eof;
        struct seen x[MAX_X];
        size_t n;
        bool in_callback, in_call;
        void (*on_request)(struct fixture *f, struct seen *s);
        void (*on_body)(struct fixture *f, struct seen *s);
        void (*on_end)(struct fixture *f, struct seen *s);
        void (*on_drain)(struct fixture *f, struct seen *s);
        void (*on_eof)(struct fixture *f, struct seen *s);
};
static struct fixture *fx;

static struct seen *of(void *arg) {
        assert_false(fx->in_call); /* no callback from inside a call of the handler */
        return arg;
}
static void x_body(void *arg, const uint8_t *d, size_t n) {
        struct seen *s = of(arg);
        assert_int_equal(s->n_done + s->n_abort, 0);
        assert_false(s->ended);
        buf_append(&s->body, d, n);
        if (fx->on_body)
                fx->on_body(fx, s);
}
static void x_end(void *arg) {
        struct seen *s = of(arg);
        assert_false(s->ended);
        s->ended = true;
        if (fx->on_end)
                fx->on_end(fx, s);
}
static void x_drain(void *arg) {
        struct seen *s = of(arg);
        s->n_drain++;
        if (fx->on_drain)
                fx->on_drain(fx, s);
}
static void x_eof(void *arg) {
        struct seen *s = of(arg);
        assert_true(s->ended);
        s->n_eof++;
        if (fx->on_eof)
                fx->on_eof(fx, s);
}
static void x_abort(void *arg) {
        struct seen *s = arg;
        assert_int_equal(s->n_done + s->n_abort, 0);
        s->n_abort++;
        s->x = NULL;
}
static void x_done(void *arg) {
        struct seen *s = arg;
        assert_int_equal(s->n_done + s->n_abort, 0);
        s->n_done++;
        s->x = NULL;
}
static const struct http_x_ops x_ops = {
        .on_body = x_body, .on_end = x_end, .on_drain = x_drain, .on_eof = x_eof,
        .on_abort = x_abort, .on_done = x_done,
};

static void on_request(void *arg, struct http_x *x) {
        struct fixture *f = arg;
        assert_true(f->n < MAX_X);
        struct seen *s = &f->x[f->n++];
        s->x = x;
        (void) snprintf(s->target, sizeof s->target, "%s", http_x_head(x)->target);
        http_x_set_ops(x, &x_ops, s);
        if (f->on_request)
                f->on_request(f, s);
}

#define CALL(expr)                    \
        ({                            \
                fx->in_call = true;   \
                __auto_type r_ = (expr); \
                fx->in_call = false;  \
                r_;                   \
        })

static void answer_ok(struct fixture *f, struct seen *s) {
        (void) f;
        assert_int_equal(CALL(http_x_respond(s->x, 200, NULL, 0, "ok", 2)), 0);
}
static void answer_echo(struct fixture *f, struct seen *s) {
        (void) f;
        assert_int_equal(CALL(http_x_respond(s->x, 200, NULL, 0, buf_data(&s->body), s->body.len)), 0);
}

static int connect_peer(struct fixture *f, void *tag) {
        int fds[2];
        assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, fds), 0);
        struct stream *s = NULL;
        assert_int_equal(stream_from_fd(&f->loop, fds[0], &s, NULL), 0);
        assert_int_equal(http_server_add(f->server, s, tag), 0);
        return fds[1];
}

static void setup(struct fixture *f, const struct http_server_config *with) {
        memset(f, 0, sizeof *f);
        fx = f;
        uv_loop_init(&f->loop);
        struct http_server_config cfg = with ? *with : (struct http_server_config){ 0 };
        cfg.on_request = on_request;
        cfg.arg = f;
        assert_int_equal(http_server_new(&f->loop, &cfg, &f->server, NULL), 0);
        f->peer = connect_peer(f, NULL);
}
static void teardown(struct fixture *f) {
        close(f->peer);
        http_server_free(f->server);
        for (size_t i = 0; i < f->n; i++) {
                assert_int_equal(f->x[i].n_done + f->x[i].n_abort, 1);
                buf_done(&f->x[i].body);
        }
        buf_done(&f->got);
        loop_done(&f->loop);
}

static void say_n(struct fixture *f, const void *d, size_t n) {
        size_t off = 0;
        while (off < n) {
                ssize_t r = send(f->peer, (const char *) d + off, n - off, MSG_NOSIGNAL);
                if (r > 0)
                        off += (size_t) r;
                else
                        assert_int_equal(errno, EAGAIN);
                uv_run(&f->loop, UV_RUN_NOWAIT);
        }
}
static void say(struct fixture *f, const char *s) {
        say_n(f, s, strlen(s));
}
static bool hear(struct fixture *f) {
        char b[65536];
        ssize_t n;
        while ((n = recv(f->peer, b, sizeof b, 0)) > 0)
                buf_append(&f->got, b, (size_t) n);
        if (n == 0 || errno != EAGAIN)
                f->peer_eof = true;
        return true;
}
static bool heard(struct fixture *f, const char *want) {
        hear(f);
        return f->got.len >= strlen(want);
}
/* Waits until the peer has received exactly this, and forgets it. */
static void expect(struct fixture *f, const char *want) {
        RUN_UNTIL(&f->loop, heard(f, want) || f->peer_eof);
        hear(f);
        assert_string_equal(buf_str(&f->got), want);
        buf_clear(&f->got);
}
static void expect_close(struct fixture *f) {
        RUN_UNTIL(&f->loop, hear(f) && f->peer_eof);
}

#define OK "HTTP/1.1 200 OK" CRLF "Content-Length: 2" CRLF CRLF "ok"

static void test_simple_keep_alive(void **state) {
        (void) state;
        struct fixture f;
        setup(&f, NULL);
        f.on_request = answer_ok;
        for (int i = 0; i < 3; i++) {
                say(&f, GET);
                expect(&f, OK);
        }
        assert_int_equal(f.n, 3);
        RUN_UNTIL(&f.loop, f.x[2].n_done);
        say(&f, "GET / HTTP/1.1" CRLF "Host: a" CRLF "Connection: close" CRLF CRLF);
        expect(&f, "HTTP/1.1 200 OK" CRLF "Content-Length: 2" CRLF "Connection: close" CRLF CRLF "ok");
        expect_close(&f);
        assert_int_equal(http_server_connections(f.server), 0);
        teardown(&f);
}

static void test_http10(void **state) {
        (void) state;
        struct fixture f;
        setup(&f, NULL);
        f.on_request = answer_ok;
        say(&f, "GET / HTTP/1.0" CRLF "Connection: keep-alive" CRLF CRLF);
        expect(&f, "HTTP/1.1 200 OK" CRLF "Content-Length: 2" CRLF "Connection: keep-alive" CRLF CRLF "ok");
        say(&f, "GET / HTTP/1.0" CRLF CRLF);
        expect(&f, "HTTP/1.1 200 OK" CRLF "Content-Length: 2" CRLF "Connection: close" CRLF CRLF "ok");
        expect_close(&f);
        teardown(&f);
}

static void stream_answer(struct fixture *f, struct seen *s) {
        (void) f;
        assert_int_equal(CALL(http_x_start(s->x, 200, NULL, 0, -1)), 0);
        assert_true(http_x_started(s->x));
        assert_int_equal(CALL(http_x_write(s->x, "hello ", 6)), 0);
        assert_int_equal(CALL(http_x_write(s->x, NULL, 0)), 0);
        assert_int_equal(CALL(http_x_write(s->x, "world", 5)), 0);
        assert_int_equal(CALL(http_x_end(s->x)), 0);
        assert_int_equal(CALL(http_x_write(s->x, "x", 1)), -EPIPE);
        assert_int_equal(CALL(http_x_end(s->x)), -EINVAL);
        assert_int_equal(CALL(http_x_respond(s->x, 200, NULL, 0, NULL, 0)), -EINVAL);
}

static void test_answer_in_pieces(void **state) {
        (void) state;
        struct fixture f;
        setup(&f, NULL);
        f.on_request = stream_answer;
        say(&f, GET);
        expect(&f, "HTTP/1.1 200 OK" CRLF "Transfer-Encoding: chunked" CRLF CRLF "6" CRLF "hello " CRLF
                   "5" CRLF "world" CRLF "0" CRLF CRLF);
        /* To a 1.0 client: until the connection closes. */
        say(&f, "GET / HTTP/1.0" CRLF "Connection: keep-alive" CRLF CRLF);
        expect(&f, "HTTP/1.1 200 OK" CRLF "Connection: close" CRLF CRLF "hello world");
        expect_close(&f);
        teardown(&f);
}

static void head_answer(struct fixture *f, struct seen *s) {
        (void) f;
        if (strcmp(s->target, "/whole") == 0)
                assert_int_equal(CALL(http_x_respond(s->x, 200, NULL, 0, "body", 4)), 0);
        else if (strcmp(s->target, "/sized") == 0) {
                assert_int_equal(CALL(http_x_start(s->x, 200, NULL, 0, 1000)), 0);
                assert_int_equal(CALL(http_x_write(s->x, "x", 1)), 0);
                assert_int_equal(CALL(http_x_end(s->x)), 0);
        } else if (strcmp(s->target, "/chunked") == 0) {
                assert_int_equal(CALL(http_x_start(s->x, 200, NULL, 0, -1)), 0);
                assert_int_equal(CALL(http_x_write(s->x, "x", 1)), 0);
                assert_int_equal(CALL(http_x_end(s->x)), 0);
        } else if (strcmp(s->target, "/204") == 0)
                assert_int_equal(CALL(http_x_respond(s->x, 204, NULL, 0, NULL, 0)), 0);
        else if (strcmp(s->target, "/304") == 0)
                assert_int_equal(CALL(http_x_respond(s->x, 304, NULL, 0, "no", 2)), 0);
        else
                assert_int_equal(CALL(http_x_respond(s->x, 200, NULL, 0, NULL, 0)), 0);
}

static void test_no_body(void **state) {
        (void) state;
        struct fixture f;
        setup(&f, NULL);
        f.on_request = head_answer;
#define R(m, t) m " " t " HTTP/1.1" CRLF "Host: a" CRLF CRLF
        say(&f, R("HEAD", "/whole"));
        expect(&f, "HTTP/1.1 200 OK" CRLF "Content-Length: 4" CRLF CRLF);
        say(&f, R("HEAD", "/sized"));
        expect(&f, "HTTP/1.1 200 OK" CRLF "Content-Length: 1000" CRLF CRLF);
        say(&f, R("HEAD", "/chunked"));
        expect(&f, "HTTP/1.1 200 OK" CRLF "Transfer-Encoding: chunked" CRLF CRLF);
        say(&f, R("GET", "/204"));
        expect(&f, "HTTP/1.1 204 No Content" CRLF CRLF);
        say(&f, R("GET", "/304"));
        expect(&f, "HTTP/1.1 304 Not Modified" CRLF CRLF);
        say(&f, R("GET", "/empty"));
        expect(&f, "HTTP/1.1 200 OK" CRLF "Content-Length: 0" CRLF CRLF);
        teardown(&f);
}

static void test_request_bodies(void **state) {
        (void) state;
        struct fixture f;
        setup(&f, NULL);
        f.on_end = answer_echo;
        say(&f, POST(5) "hello");
        expect(&f, "HTTP/1.1 200 OK" CRLF "Content-Length: 5" CRLF CRLF "hello");
        say(&f, "POST / HTTP/1.1" CRLF "Host: a" CRLF "Transfer-Encoding: chunked" CRLF CRLF);
        say(&f, "3" CRLF "abc" CRLF "2;x=y" CRLF);
        say(&f, "de" CRLF "0" CRLF "Trailer: x" CRLF);
        assert_false(f.x[1].ended);
        say(&f, CRLF);
        expect(&f, "HTTP/1.1 200 OK" CRLF "Content-Length: 5" CRLF CRLF "abcde");
        say(&f, POST(0));
        expect(&f, "HTTP/1.1 200 OK" CRLF "Content-Length: 0" CRLF CRLF);
        teardown(&f);
}

static void test_byte_by_byte(void **state) {
        (void) state;
        struct fixture f;
        setup(&f, NULL);
        f.on_end = answer_echo;
        static const char in[] =
                POST(5) "hello"
                        "POST / HTTP/1.1" CRLF "Host: a" CRLF "Transfer-Encoding: chunked" CRLF CRLF "3" CRLF
                        "abc" CRLF "0" CRLF CRLF;
        for (size_t i = 0; i < sizeof in - 1; i++) {
                say_n(&f, in + i, 1);
                run_pending(&f.loop);
        }
        expect(&f, "HTTP/1.1 200 OK" CRLF "Content-Length: 5" CRLF CRLF "hello"
                   "HTTP/1.1 200 OK" CRLF "Content-Length: 3" CRLF CRLF "abc");
        teardown(&f);
}

static void test_pipelining(void **state) {
        (void) state;
        struct fixture f;
        setup(&f, NULL);
        say(&f, R("GET", "/1") R("GET", "/2") POST(3) "abc" R("GET", "/4"));
        run_pending(&f.loop);
        /* One at a time; the next is looked at when the answer has ended. */
        assert_int_equal(f.n, 1);
        answer_ok(&f, &f.x[0]);
        RUN_UNTIL(&f.loop, f.n == 2);
        assert_int_equal(f.x[0].n_done, 1);
        assert_string_equal(f.x[1].target, "/2");
        run_pending(&f.loop);
        assert_int_equal(f.n, 2);
        assert_int_equal(CALL(http_x_start(f.x[1].x, 200, NULL, 0, 1)), 0);
        run_pending(&f.loop);
        assert_int_equal(f.n, 2);
        assert_int_equal(CALL(http_x_write(f.x[1].x, "2", 1)), 0);
        assert_int_equal(CALL(http_x_end(f.x[1].x)), 0);
        RUN_UNTIL(&f.loop, f.n == 3 && f.x[2].ended);
        answer_echo(&f, &f.x[2]);
        RUN_UNTIL(&f.loop, f.n == 4);
        answer_ok(&f, &f.x[3]);
        expect(&f, OK "HTTP/1.1 200 OK" CRLF "Content-Length: 1" CRLF CRLF "2"
                   "HTTP/1.1 200 OK" CRLF "Content-Length: 3" CRLF CRLF "abc" OK);
        teardown(&f);
}

/* A client that pipelines without end and never reads: bounded on both sides. */
static void test_pipelining_is_bounded(void **state) {
        (void) state;
        struct fixture f;
        setup(&f, NULL);
        static char big[100000];
        memset(big, 'x', sizeof big);
        size_t sent = 0;
        for (int quiet = 0; quiet < 200;) {
                ssize_t r = send(f.peer, GET, sizeof GET - 1, MSG_NOSIGNAL);
                if (r > 0)
                        sent += (size_t) r;
                /* A cut request would be a malformed one; the rest is of no interest here. */
                quiet = r == (ssize_t) sizeof GET - 1 ? 0 : quiet + 1;
                uv_run(&f.loop, UV_RUN_NOWAIT);
                if (r > 0 && r < (ssize_t) sizeof GET - 1)
                        break;
                for (size_t i = 0; i < f.n; i++)
                        if (f.x[i].x && !http_x_started(f.x[i].x))
                                (void) http_x_respond(f.x[i].x, 200, NULL, 0, big, sizeof big);
        }
        assert_true(f.n < MAX_X);
        assert_true(sent < 1024 * 1024);
        teardown(&f);
}

static void test_header_checks(void **state) {
        (void) state;
        struct fixture f;
        setup(&f, NULL);
        say(&f, GET);
        RUN_UNTIL(&f.loop, f.n == 1);
        struct http_x *x = f.x[0].x;
        struct http_header evil = { "X", "a\r\nSet-Cookie: b" };
        assert_int_equal(CALL(http_x_respond(x, 200, &evil, 1, "x", 1)), -EINVAL);
        assert_int_equal(CALL(http_x_start(x, 200, &evil, 1, 1)), -EINVAL);
        assert_int_equal(CALL(http_x_start(x, 100, NULL, 0, 1)), -EINVAL);
        assert_int_equal(CALL(http_x_start(x, 999, NULL, 0, 1)), -EINVAL);
        assert_int_equal(CALL(http_x_write(x, "x", 1)), -EINVAL);
        assert_int_equal(CALL(http_x_end(x)), -EINVAL);
        assert_false(http_x_started(x));
        /* Framing is the server's. */
        struct http_header h[] = { { "content-length", "99" },     { "Transfer-Encoding", "gzip" },
                                   { "X-Ok", "yes" },              { "Connection", "keep-alive" },
                                   { "Keep-Alive", "timeout=5" } };
        assert_int_equal(CALL(http_x_respond(x, 200, h, ARRAY_SIZE(h), "x", 1)), 0);
        expect(&f, "HTTP/1.1 200 OK" CRLF "X-Ok: yes" CRLF "Content-Length: 1" CRLF CRLF "x");
        say(&f, GET);
        RUN_UNTIL(&f.loop, f.n == 2);
        struct http_header c = { "Connection", "close" };
        assert_int_equal(CALL(http_x_respond(f.x[1].x, 200, &c, 1, "x", 1)), 0);
        expect(&f, "HTTP/1.1 200 OK" CRLF "Content-Length: 1" CRLF "Connection: close" CRLF CRLF "x");
        expect_close(&f);
        teardown(&f);
}

static void test_lengths_are_kept(void **state) {
        (void) state;
        struct fixture f;
        setup(&f, NULL);
        say(&f, GET);
        RUN_UNTIL(&f.loop, f.n == 1);
        assert_int_equal(CALL(http_x_start(f.x[0].x, 200, NULL, 0, 5)), 0);
        assert_int_equal(CALL(http_x_write(f.x[0].x, "123456", 6)), -EMSGSIZE);
        assert_int_equal(CALL(http_x_write(f.x[0].x, "123", 3)), 0);
        /* Too short: the peer must not take it for complete. */
        assert_int_equal(CALL(http_x_end(f.x[0].x)), -EPROTO);
        assert_int_equal(CALL(http_x_write(f.x[0].x, "45", 2)), -EPIPE);
        RUN_UNTIL(&f.loop, f.x[0].n_abort);
        expect(&f, "HTTP/1.1 200 OK" CRLF "Content-Length: 5" CRLF CRLF "123");
        expect_close(&f);
        teardown(&f);
}

#define EXPECTING(n)                                                                                         \
        "POST / HTTP/1.1" CRLF "Host: a" CRLF "Expect: 100-continue" CRLF "Content-Length: " #n CRLF CRLF
#define CONTINUE "HTTP/1.1 100 Continue" CRLF CRLF

static void pause_body(struct fixture *f, struct seen *s) {
        (void) f;
        fx->in_call = true;
        http_x_read_pause(s->x);
        fx->in_call = false;
}

static void start_sized(struct fixture *f, struct seen *s) {
        (void) f;
        assert_int_equal(CALL(http_x_start(s->x, 200, NULL, 0, 3)), 0);
}

static void test_expect_continue(void **state) {
        (void) state;
        struct fixture f;
        setup(&f, NULL);
        f.on_end = answer_echo;
        say(&f, EXPECTING(5));
        expect(&f, CONTINUE);
        say(&f, "hello");
        expect(&f, "HTTP/1.1 200 OK" CRLF "Content-Length: 5" CRLF CRLF "hello");
        /* The client does not wait for it. */
        say(&f, EXPECTING(5) "hello");
        expect(&f, "HTTP/1.1 200 OK" CRLF "Content-Length: 5" CRLF CRLF "hello");
        /* Held back: not before the handler reads on. */
        f.on_request = pause_body;
        say(&f, EXPECTING(5));
        RUN_UNTIL(&f.loop, f.n == 3);
        run_pending(&f.loop);
        hear(&f);
        assert_int_equal(f.got.len, 0);
        http_x_read_resume(f.x[2].x);
        assert_int_equal(f.got.len, 0);
        expect(&f, CONTINUE);
        say(&f, "hello");
        expect(&f, "HTTP/1.1 200 OK" CRLF "Content-Length: 5" CRLF CRLF "hello");
        /* Answered at once: no 100, and whether a body follows is unknown, so the connection ends. */
        f.on_request = answer_ok;
        f.on_end = NULL;
        uint64_t since = uv_now(&f.loop);
        say(&f, EXPECTING(5));
        expect(&f, "HTTP/1.1 200 OK" CRLF "Content-Length: 2" CRLF "Connection: close" CRLF CRLF "ok");
        expect_close(&f);
        assert_int_equal(f.x[3].n_done, 1);
        assert_true(uv_now(&f.loop) - since < HTTP_DISCARD_MS - 1000);
        teardown(&f);
        /* No 100 once the answer has begun. */
        setup(&f, NULL);
        f.on_request = start_sized;
        say(&f, EXPECTING(5));
        RUN_UNTIL(&f.loop, f.n == 1);
        run_pending(&f.loop);
        expect(&f, "HTTP/1.1 200 OK" CRLF "Content-Length: 3" CRLF "Connection: close" CRLF CRLF);
        run_pending(&f.loop);
        hear(&f);
        assert_int_equal(f.got.len, 0);
        teardown(&f);
}

static void test_pause_holds_back(void **state) {
        (void) state;
        struct fixture f;
        setup(&f, NULL);
        f.on_body = pause_body;
        f.on_end = answer_ok;
        static char piece[64 * 1024];
        say(&f, "POST / HTTP/1.1" CRLF "Host: a" CRLF "Content-Length: 8388608" CRLF CRLF);
        size_t sent = 0;
        for (int quiet = 0; sent < 8388608 && quiet < 100;) {
                ssize_t r = send(f.peer, piece, sizeof piece, MSG_NOSIGNAL);
                if (r > 0)
                        sent += (size_t) r;
                quiet = r > 0 ? 0 : quiet + 1;
                uv_run(&f.loop, UV_RUN_NOWAIT);
        }
        /* What fits into the socket's buffers and one read, and no more. */
        assert_true(sent < 1024 * 1024);
        size_t first = f.x[0].body.len;
        assert_true(first > 0 && first <= 256 * 1024);
        http_x_read_resume(f.x[0].x);
        assert_int_equal(f.x[0].body.len, first);
        RUN_UNTIL(&f.loop, f.x[0].body.len > first);
        f.on_body = NULL;
        http_x_read_resume(f.x[0].x);
        while (sent < 8388608) {
                ssize_t r = send(f.peer, piece, 8388608 - sent < sizeof piece ? 8388608 - sent : sizeof piece,
                                 MSG_NOSIGNAL);
                if (r > 0)
                        sent += (size_t) r;
                uv_run(&f.loop, UV_RUN_NOWAIT);
        }
        RUN_UNTIL(&f.loop, f.x[0].ended);
        assert_int_equal(f.x[0].body.len, 8388608);
        expect(&f, OK);
        teardown(&f);
}

static size_t pumped;
static void pump(struct fixture *f, struct seen *s) {
        (void) f;
        static char piece[64 * 1024];
        while (pumped < 32 * sizeof piece && http_x_queued(s->x) < STREAM_HIGH_WATER) {
                assert_int_equal(CALL(http_x_write(s->x, piece, sizeof piece)), 0);
                pumped += sizeof piece;
        }
        if (pumped == 32 * sizeof piece && http_x_started(s->x) && s->x) {
                pumped++;
                assert_int_equal(CALL(http_x_end(s->x)), 0);
        }
}
static void start_pump(struct fixture *f, struct seen *s) {
        pumped = 0;
        assert_int_equal(CALL(http_x_start(s->x, 200, NULL, 0, -1)), 0);
        pump(f, s);
}

static void test_slow_reader(void **state) {
        (void) state;
        struct fixture f;
        setup(&f, NULL);
        f.on_request = start_pump;
        f.on_drain = pump;
        say(&f, GET);
        run_pending(&f.loop);
        assert_int_equal(f.x[0].n_drain, 0);
        assert_true(http_x_queued(f.x[0].x) < STREAM_HIGH_WATER + 128 * 1024);
        RUN_UNTIL(&f.loop, hear(&f) && f.x[0].n_done);
        assert_true(f.x[0].n_drain > 1);
        RUN_UNTIL(&f.loop, hear(&f) && f.got.len > 32 * 64 * 1024 &&
                                   memcmp(buf_str(&f.got) + f.got.len - 5, "0\r\n\r\n", 5) == 0);
        say(&f, GET); /* still alive */
        RUN_UNTIL(&f.loop, f.n == 2);
        teardown(&f);
}

static void test_peer_lost(void **state) {
        (void) state;
        struct fixture f;
        /* In the middle of a request body. */
        setup(&f, NULL);
        say(&f, POST(5) "he");
        RUN_UNTIL(&f.loop, f.x[0].body.len == 2);
        shutdown(f.peer, SHUT_WR);
        RUN_UNTIL(&f.loop, f.x[0].n_abort);
        assert_false(f.x[0].ended);
        teardown(&f);
        /* While it waits for the answer: gone entirely. */
        setup(&f, NULL);
        say(&f, GET);
        RUN_UNTIL(&f.loop, f.n == 1);
        close(f.peer);
        RUN_UNTIL(&f.loop, f.x[0].n_abort);
        f.peer = open("/dev/null", O_RDONLY | O_CLOEXEC);
        teardown(&f);
        /* In the middle of an answer, with a full queue. */
        setup(&f, NULL);
        f.on_request = start_pump;
        say(&f, GET);
        RUN_UNTIL(&f.loop, f.n == 1 && http_x_queued(f.x[0].x) > 0);
        close(f.peer);
        RUN_UNTIL(&f.loop, f.x[0].n_abort);
        f.peer = open("/dev/null", O_RDONLY | O_CLOEXEC);
        assert_int_equal(http_server_connections(f.server), 0);
        teardown(&f);
        /* Between requests, and in the middle of a head. */
        setup(&f, NULL);
        run_pending(&f.loop);
        shutdown(f.peer, SHUT_WR);
        expect_close(&f);
        assert_int_equal(f.got.len, 0);
        teardown(&f);
        setup(&f, NULL);
        say(&f, "GET / HT");
        shutdown(f.peer, SHUT_WR);
        expect_close(&f);
        assert_int_equal(f.n, 0);
        teardown(&f);
}

static void abort_it(struct fixture *f, struct seen *s) {
        (void) f;
        fx->in_call = true;
        http_x_abort(s->x);
        fx->in_call = false;
}
static void free_server(struct fixture *f, struct seen *s) {
        (void) s;
        http_server_free(STEAL(f->server));
}

/* printf ... | nc: the client has shut down its sending side and waits for the answers. */
static void test_half_close(void **state) {
        (void) state;
        struct fixture f;
        setup(&f, NULL);
        say(&f, GET POST(2) "hi");
        shutdown(f.peer, SHUT_WR);
        RUN_UNTIL(&f.loop, f.n == 1);
        run_pending(&f.loop);
        assert_int_equal(f.x[0].n_abort, 0);
        answer_ok(&f, &f.x[0]);
        RUN_UNTIL(&f.loop, f.n == 2 && f.x[1].ended);
        answer_ok(&f, &f.x[1]);
        expect(&f, OK OK);
        expect_close(&f);
        assert_int_equal(f.x[0].n_eof, 1);
        teardown(&f);
        /* A handler that has no use for such a client: whatever it does in the callback. */
        for (int i = 0; i < 3; i++) {
                setup(&f, NULL);
                f.on_eof = i == 0 ? answer_ok : i == 1 ? abort_it : free_server;
                say(&f, GET);
                RUN_UNTIL(&f.loop, f.n == 1);
                shutdown(f.peer, SHUT_WR);
                expect_close(&f);
                assert_int_equal(f.x[0].n_eof, 1);
                assert_int_equal(f.x[0].n_abort, i > 0);
                teardown(&f);
        }
}

static void test_malformed(void **state) {
        (void) state;
        static const struct {
                const char *in, *status, *word;
        } t[] = {
                {"GET / HTTP/1.1" CRLF CRLF, "400 Bad Request", "no Host"},
                {"GET / HTTP/3.0" CRLF "Host: a" CRLF CRLF, "505 ", "HTTP/1.1"},
                {"nonsense\n", "400 ", "CRLF"},
                {"\x16\x03\x01", "400 ", "not HTTP"},
                {"POST / HTTP/1.1" CRLF "Host: a" CRLF "Transfer-Encoding: gzip" CRLF CRLF, "501 ",
                 "chunked"},
        };
        for (size_t i = 0; i < ARRAY_SIZE(t); i++) {
                struct fixture f;
                setup(&f, NULL);
                say(&f, t[i].in);
                RUN_UNTIL(&f.loop, hear(&f) && f.got.len > 0);
                const char *got = buf_str(&f.got);
                assert_memory_equal(got, "HTTP/1.1 ", 9);
                assert_memory_equal(got + 9, t[i].status, strlen(t[i].status));
                assert_non_null(strstr(got, t[i].word));
                assert_non_null(strstr(got, "Connection: close"));
                assert_int_equal(f.n, 0);
                /* What the client still sends is read, so that no reset overtakes the answer. */
                say(&f, "more and more");
                expect_close(&f);
                shutdown(f.peer, SHUT_WR);
                RUN_UNTIL(&f.loop, http_server_connections(f.server) == 0);
                teardown(&f);
        }
        /* In a body: the exchange is lost; 400 when no answer has begun, else the connection breaks. */
        struct fixture f;
        setup(&f, NULL);
        say(&f, "POST / HTTP/1.1" CRLF "Host: a" CRLF "Transfer-Encoding: chunked" CRLF CRLF "zz" CRLF);
        RUN_UNTIL(&f.loop, f.x[0].n_abort && hear(&f) && f.got.len);
        assert_memory_equal(buf_str(&f.got), "HTTP/1.1 400", 12);
        teardown(&f);
        setup(&f, NULL);
        f.on_request = start_pump;
        say(&f, "POST / HTTP/1.1" CRLF "Host: a" CRLF "Transfer-Encoding: chunked" CRLF CRLF "zz" CRLF);
        RUN_UNTIL(&f.loop, f.x[0].n_abort);
        expect_close(&f);
        assert_null(strstr(buf_str(&f.got), "0\r\n\r\n"));
        teardown(&f);
}

/* The answer comes before the request has: a short rest is read over, a long one is not. */
static void test_early_answer(void **state) {
        (void) state;
        struct fixture f;
        setup(&f, NULL);
        f.on_request = answer_ok;
        say(&f, POST(5) "he");
        expect(&f, OK);
        assert_int_equal(f.x[0].n_done, 0);
        say(&f, "llo" GET);
        expect(&f, OK);
        assert_int_equal(f.x[0].n_done, 1);
        assert_int_equal(f.x[0].body.len, 0); /* not told any more */
        assert_false(f.x[0].ended);
        /* Announced as long: the client is told at once. */
        say(&f, POST(10000000));
        expect(&f, "HTTP/1.1 200 OK" CRLF "Content-Length: 2" CRLF "Connection: close" CRLF CRLF "ok");
        static char piece[64 * 1024];
        uint64_t since = uv_now(&f.loop);
        for (int i = 0; i < 40; i++) {
                (void) send(f.peer, piece, sizeof piece, MSG_NOSIGNAL);
                run_pending(&f.loop);
        }
        RUN_UNTIL(&f.loop, f.x[2].n_done);
        assert_true(uv_now(&f.loop) - since < HTTP_DISCARD_MS - 1000); /* by its size, not its age */
        expect_close(&f);
        teardown(&f);
}

static void test_abort_by_handler(void **state) {
        (void) state;
        struct fixture f;
        setup(&f, NULL);
        say(&f, GET);
        RUN_UNTIL(&f.loop, f.n == 1);
        assert_int_equal(CALL(http_x_start(f.x[0].x, 200, NULL, 0, -1)), 0);
        assert_int_equal(CALL(http_x_write(f.x[0].x, "part", 4)), 0);
        fx->in_call = true;
        http_x_abort(f.x[0].x);
        http_x_abort(f.x[0].x);
        fx->in_call = false;
        assert_int_equal(f.x[0].n_abort, 0);
        assert_int_equal(CALL(http_x_write(f.x[0].x, "x", 1)), -EPIPE);
        assert_int_equal(CALL(http_x_end(f.x[0].x)), -EPIPE);
        RUN_UNTIL(&f.loop, f.x[0].n_abort);
        expect(&f, "HTTP/1.1 200 OK" CRLF "Transfer-Encoding: chunked" CRLF CRLF "4" CRLF "part" CRLF);
        expect_close(&f);
        teardown(&f);
}

static void start_only(struct fixture *f, struct seen *s) {
        (void) f;
        assert_int_equal(http_x_start(s->x, 200, NULL, 0, -1), 0);
        static char piece[1024 * 1024];
        assert_int_equal(http_x_write(s->x, piece, sizeof piece), 0);
}

static void test_server_freed_in_callbacks(void **state) {
        (void) state;
        for (int where = 0; where < 4; where++) {
                struct fixture f;
                setup(&f, NULL);
                if (where == 0)
                        f.on_request = free_server;
                else if (where == 1)
                        f.on_body = free_server;
                else if (where == 2)
                        f.on_end = free_server;
                else {
                        f.on_request = start_only;
                        f.on_drain = free_server;
                }
                say(&f, POST(5) "hello" GET);
                RUN_UNTIL(&f.loop, hear(&f) && !f.server);
                assert_int_equal(f.x[0].n_abort, 1);
                expect_close(&f);
                teardown(&f);
        }
}

static bool t_eof;
static struct buf t_in;
static void t_data(void *arg, const uint8_t *d, size_t n) {
        (void) arg;
        buf_append(&t_in, d, n);
}
static void t_end(void *arg) {
        (void) arg;
        t_eof = true;
}
static void t_error(void *arg, int err) {
        (void) arg;
        (void) err;
        t_eof = true;
}
static const struct stream_handler t_handler = { t_data, t_end, NULL, t_error };
static struct stream *upgraded;

static void upgrade(struct fixture *f, struct seen *s) {
        (void) f;
        struct http_header h[] = { { "Upgrade", "cspace-attach" }, { "X", "y" } };
        bool connect = strcmp(http_x_head(s->x)->method, "CONNECT") == 0;
        assert_int_equal(http_x_upgrade(s->x, connect ? 200 : 101, h, connect ? 0 : 2, &upgraded), 0);
        assert_int_equal(s->n_done, 1);
        stream_set_handler(upgraded, &t_handler, NULL);
}

#define UPGRADE                                                                                              \
        "GET /up HTTP/1.1" CRLF "Host: a" CRLF "Connection: Upgrade" CRLF "Upgrade: cspace-attach" CRLF CRLF

static void test_upgrade(void **state) {
        (void) state;
        for (int mode = 0; mode < 6; mode++) {
                bool inside = mode & 1, early = mode & 2, connect = mode >= 4;
                struct fixture f;
                setup(&f, NULL);
                upgraded = NULL;
                t_eof = false;
                t_in = BUF_INIT(0);
                if (inside)
                        f.on_request = upgrade;
                const char *head = connect ? "CONNECT a:1 HTTP/1.1" CRLF "Host: a:1" CRLF CRLF : UPGRADE;
                _cleanup_buf_ struct buf req = { 0 };
                buf_puts(&req, head);
                if (early)
                        buf_append(&req, "\0early", 6);
                say_n(&f, buf_data(&req), req.len);
                RUN_UNTIL(&f.loop, f.n == 1);
                if (!inside) {
                        run_pending(&f.loop);
                        upgrade(&f, &f.x[0]);
                }
                RUN_UNTIL(&f.loop, upgraded != NULL);
                assert_int_equal(http_server_connections(f.server), 0);
                assert_int_equal(f.x[0].body.len, 0);
                stream_read_start(upgraded);
                assert_int_equal(stream_write(upgraded, "raw", 3), 0);
                expect(&f, connect ? "HTTP/1.1 200 OK" CRLF CRLF "raw"
                                   : "HTTP/1.1 101 Switching Protocols" CRLF "Upgrade: cspace-attach" CRLF
                                     "X: y" CRLF "Connection: Upgrade" CRLF CRLF "raw");
                say(&f, "later");
                shutdown(f.peer, SHUT_WR);
                RUN_UNTIL(&f.loop, t_eof);
                const char *want = early ? "\0earlylater" : "later";
                assert_int_equal(t_in.len, early ? 11 : 5);
                assert_memory_equal(buf_data(&t_in), want, t_in.len);
                stream_close(upgraded);
                buf_done(&t_in);
                teardown(&f);
        }
}

static void test_upgrade_refused(void **state) {
        (void) state;
        struct fixture f;
        setup(&f, NULL);
        say(&f, "POST /up HTTP/1.1" CRLF "Host: a" CRLF "Connection: Upgrade" CRLF "Upgrade: x" CRLF
                "Content-Length: 2" CRLF CRLF "hi");
        RUN_UNTIL(&f.loop, f.n == 1);
        struct stream *s = NULL;
        assert_int_equal(CALL(http_x_upgrade(f.x[0].x, 101, NULL, 0, &s)), -EINVAL);
        assert_int_equal(CALL(http_x_upgrade(f.x[0].x, 404, NULL, 0, &s)), -EINVAL);
        assert_null(s);
        RUN_UNTIL(&f.loop, f.x[0].ended);
        answer_ok(&f, &f.x[0]);
        expect(&f, OK);
        teardown(&f);
}

static void test_timeouts(void **state) {
        (void) state;
        struct http_server_config cfg = { .idle_timeout_ms = 400, .head_timeout_ms = 300, .body_timeout_ms = 350,
                                          .write_timeout_ms = 450 };
        struct fixture f;
        /* Idle: closed without a word; also after a request. */
        setup(&f, &cfg);
        f.on_request = answer_ok;
        expect_close(&f);
        assert_int_equal(f.got.len, 0);
        teardown(&f);
        setup(&f, &cfg);
        f.on_request = answer_ok;
        say(&f, GET);
        expect(&f, OK);
        expect_close(&f);
        teardown(&f);
        /* A head that trickles in: one byte now and then does not help. */
        setup(&f, &cfg);
        say(&f, "GET / HTTP/1.1" CRLF);
        for (int i = 0; i < 2000 && !f.got.len; i++) {
                (void) send(f.peer, "X", 1, MSG_NOSIGNAL);
                uv_run(&f.loop, UV_RUN_NOWAIT);
                usleep(1000);
                hear(&f);
        }
        assert_memory_equal(buf_str(&f.got), "HTTP/1.1 408", 12);
        shutdown(f.peer, SHUT_WR);
        expect_close(&f);
        teardown(&f);
        /* Empty lines are no request either. */
        setup(&f, &cfg);
        say(&f, CRLF);
        RUN_UNTIL(&f.loop, hear(&f) && f.got.len);
        assert_memory_equal(buf_str(&f.got), "HTTP/1.1 408", 12);
        teardown(&f);
        /* A body that stops; one that the handler holds back does not count. */
        setup(&f, &cfg);
        say(&f, POST(5) "he");
        RUN_UNTIL(&f.loop, f.x[0].n_abort);
        RUN_UNTIL(&f.loop, hear(&f) && f.got.len);
        assert_memory_equal(buf_str(&f.got), "HTTP/1.1 408", 12);
        teardown(&f);
        setup(&f, &cfg);
        f.on_request = pause_body;
        say(&f, POST(5) "he");
        RUN_UNTIL(&f.loop, f.n == 1);
        uint64_t until = uv_now(&f.loop) + 700;
        while (uv_now(&f.loop) < until) {
                uv_run(&f.loop, UV_RUN_NOWAIT);
                usleep(2000);
        }
        assert_int_equal(f.x[0].n_abort, 0);
        teardown(&f);
        /* A peer that takes nothing of the answer. */
        setup(&f, &cfg);
        f.on_request = start_pump;
        f.on_drain = pump;
        say(&f, GET);
        RUN_UNTIL(&f.loop, f.n && f.x[0].n_abort);
        teardown(&f);
        /* A handler that takes its time. */
        setup(&f, &cfg);
        say(&f, GET);
        RUN_UNTIL(&f.loop, f.n == 1);
        until = uv_now(&f.loop) + 700;
        while (uv_now(&f.loop) < until) {
                uv_run(&f.loop, UV_RUN_NOWAIT);
                usleep(2000);
        }
        answer_ok(&f, &f.x[0]);
        expect(&f, OK);
        teardown(&f);
}

static void test_max_connections(void **state) {
        (void) state;
        struct http_server_config cfg = { .max_connections = 2 };
        struct fixture f;
        setup(&f, &cfg);
        f.on_request = answer_ok;
        int second = connect_peer(&f, NULL), first = f.peer;
        f.peer = connect_peer(&f, NULL);
        RUN_UNTIL(&f.loop, hear(&f) && f.got.len);
        assert_memory_equal(buf_str(&f.got), "HTTP/1.1 503", 12);
        expect_close(&f);
        close(f.peer);
        buf_clear(&f.got);
        f.peer_eof = false;
        /* A place becomes free. */
        close(second);
        RUN_UNTIL(&f.loop, http_server_connections(f.server) == 1);
        f.peer = connect_peer(&f, NULL);
        say(&f, GET);
        expect(&f, OK);
        close(first);
        teardown(&f);
}

static void admit_and_answer(struct fixture *f, struct seen *s) {
        http_x_admit(s->x);
        answer_ok(f, s);
}

/* Whoever was let in keeps its place; of the others the one that waits longest makes way. */
static void test_strangers(void **state) {
        (void) state;
        struct http_server_config cfg = { .max_connections = 3, .max_strangers = 2 };
        struct fixture f;
        setup(&f, &cfg);
        f.on_request = admit_and_answer;
        say(&f, GET);
        expect(&f, OK);
        int known = f.peer, idle[8];
        for (size_t i = 0; i < 8; i++) { /* 2 of them may stay */
                idle[i] = connect_peer(&f, NULL);
                assert_int_equal(http_server_connections(f.server), i < 2 ? 2 + i : 3);
        }
        char c;
        for (size_t i = 0; i < 6; i++)
                RUN_UNTIL(&f.loop, recv(idle[i], &c, 1, MSG_DONTWAIT) != -1 || errno == ECONNRESET);
        assert_int_equal(recv(idle[6], &c, 1, MSG_DONTWAIT), -1);
        assert_int_equal(errno, EAGAIN);
        f.peer = known;
        buf_clear(&f.got);
        say(&f, GET);
        expect(&f, OK);
        f.peer = idle[7];
        buf_clear(&f.got);
        say(&f, GET);
        expect(&f, OK); /* and is one of those that stay from here on */
        int third = connect_peer(&f, NULL);
        RUN_UNTIL(&f.loop, recv(idle[6], &c, 1, MSG_DONTWAIT) != -1 || errno == ECONNRESET);
        assert_int_equal(recv(third, &c, 1, MSG_DONTWAIT), -1);
        assert_int_equal(errno, EAGAIN);
        close(known);
        close(third);
        for (size_t i = 0; i < 7; i++)
                close(idle[i]);
        teardown(&f);
}

static void tag_answer(struct fixture *f, struct seen *s) {
        (void) f;
        const char *tag = http_x_conn_tag(s->x);
        assert_int_equal(http_x_respond(s->x, 200, NULL, 0, tag, strlen(tag)), 0);
}

static void test_tag(void **state) {
        (void) state;
        struct fixture f;
        setup(&f, NULL);
        f.on_request = tag_answer;
        close(f.peer);
        char tag[] = "trusted";
        f.peer = connect_peer(&f, tag);
        say(&f, GET);
        expect(&f, "HTTP/1.1 200 OK" CRLF "Content-Length: 7" CRLF CRLF "trusted");
        teardown(&f);
}

/* An idle server and one with an open exchange let the loop sleep. */
static void test_no_busy_loop(void **state) {
        (void) state;
        struct fixture f;
        setup(&f, NULL);
        run_pending(&f.loop);
        assert_true(count_rounds(&f.loop) < 10);
        say(&f, POST(5) "he");
        RUN_UNTIL(&f.loop, f.n == 1);
        assert_true(count_rounds(&f.loop) < 10);
        pause_body(&f, &f.x[0]);
        run_pending(&f.loop);
        say(&f, "llo" GET);
        assert_true(count_rounds(&f.loop) < 10);
        shutdown(f.peer, SHUT_WR);
        assert_true(count_rounds(&f.loop) < 10);
        teardown(&f);
}

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(test_simple_keep_alive),
                cmocka_unit_test(test_http10),
                cmocka_unit_test(test_answer_in_pieces),
                cmocka_unit_test(test_no_body),
                cmocka_unit_test(test_request_bodies),
                cmocka_unit_test(test_byte_by_byte),
                cmocka_unit_test(test_pipelining),
                cmocka_unit_test(test_pipelining_is_bounded),
                cmocka_unit_test(test_header_checks),
                cmocka_unit_test(test_lengths_are_kept),
                cmocka_unit_test(test_expect_continue),
                cmocka_unit_test(test_pause_holds_back),
                cmocka_unit_test(test_slow_reader),
                cmocka_unit_test(test_peer_lost),
                cmocka_unit_test(test_half_close),
                cmocka_unit_test(test_malformed),
                cmocka_unit_test(test_early_answer),
                cmocka_unit_test(test_abort_by_handler),
                cmocka_unit_test(test_server_freed_in_callbacks),
                cmocka_unit_test(test_upgrade),
                cmocka_unit_test(test_upgrade_refused),
                cmocka_unit_test(test_timeouts),
                cmocka_unit_test(test_max_connections),
                cmocka_unit_test(test_strangers),
                cmocka_unit_test(test_tag),
                cmocka_unit_test(test_no_busy_loop),
        };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
