/* SPDX-License-Identifier: Apache-2.0 */

/* The HTTP client against a server that writes and reads raw bytes on the other end of a socket. */

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/cleanup.h"
#include "io/http_client.h"
#include "loop.h"
#include "test.h"

#define CRLF "\r\n"

struct fixture {
        uv_loop_t loop;
        int peer;
        struct buf got; /* what the server received */
        bool peer_eof;
        struct http_call *call;
        struct stream *kept;
        int status;
        struct buf body;
        int n_head, n_end, n_error, err, n_drain;
        bool in_call, pause_in_body, free_in_head, free_in_body, free_in_end, free_in_error, upgrade_in_head,
                reuse_in_end;
        const char *reason;
};
static struct fixture *fx;

static struct fixture *of(void *arg) {
        struct fixture *f = arg;
        assert_false(f->in_call);
        assert_int_equal(f->n_end + f->n_error, 0);
        return f;
}
static void on_head(void *arg, const struct http1_head *h) {
        struct fixture *f = of(arg);
        f->n_head++;
        f->status = h->status;
        if (f->upgrade_in_head)
                f->kept = http_call_upgrade(f->call);
        if (f->free_in_head)
                http_call_free(STEAL(f->call));
}
static void on_body(void *arg, const uint8_t *d, size_t n) {
        struct fixture *f = of(arg);
        assert_int_equal(f->n_head, 1);
        buf_append(&f->body, d, n);
        if (f->pause_in_body)
                http_call_read_pause(f->call);
        if (f->free_in_body)
                http_call_free(STEAL(f->call));
}
static void on_end(void *arg) {
        struct fixture *f = of(arg);
        f->n_end++;
        if (f->reuse_in_end)
                f->kept = http_call_reuse(f->call);
        if (f->free_in_end)
                http_call_free(STEAL(f->call));
}
static void on_drain(void *arg) {
        of(arg)->n_drain++;
}
static void on_error(void *arg, int err) {
        struct fixture *f = of(arg);
        f->n_error++;
        f->err = err;
        f->reason = http_call_reason(f->call);
        if (f->free_in_error)
                http_call_free(STEAL(f->call));
}
static const struct http_call_ops ops = { on_head, on_body, on_end, on_drain, on_error };

static void setup(struct fixture *f) {
        memset(f, 0, sizeof *f);
        fx = f;
        uv_loop_init(&f->loop);
}
static int begin_on(struct fixture *f, struct stream *s, const char *method, const struct http_header *h,
                    size_t nh, int64_t len) {
        f->n_head = f->n_end = f->n_error = f->status = 0;
        buf_clear(&f->body);
        buf_clear(&f->got);
        struct error err = ERROR_INIT;
        return http_call_new(&f->loop, s, method, "/x", h, nh, len, &ops, f, &f->call, &err);
}
static void begin(struct fixture *f, const char *method, const struct http_header *h, size_t nh,
                  int64_t len) {
        int fds[2];
        assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, fds), 0);
        struct stream *s = NULL;
        assert_int_equal(stream_from_fd(&f->loop, fds[0], &s, NULL), 0);
        f->peer = fds[1];
        f->peer_eof = false;
        assert_int_equal(begin_on(f, s, method, h, nh, len), 0);
}
static void finish(struct fixture *f) {
        http_call_free(STEAL(f->call));
        close(f->peer);
        run_pending(&f->loop);
}
static void teardown(struct fixture *f) {
        buf_done(&f->got);
        buf_done(&f->body);
        loop_done(&f->loop);
}

static void say_n(struct fixture *f, const char *s, size_t n) {
        assert_int_equal(send(f->peer, s, n, MSG_NOSIGNAL), n);
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
static void expect_request(struct fixture *f, const char *want) {
        RUN_UNTIL(&f->loop, hear(f) && f->got.len >= strlen(want));
        assert_string_equal(buf_str(&f->got), want);
        buf_clear(&f->got);
}
static void expect_body(struct fixture *f, int status, const char *body) {
        RUN_UNTIL(&f->loop, f->n_end || f->n_error);
        assert_int_equal(f->n_error, 0);
        assert_int_equal(f->status, status);
        assert_string_equal(buf_str(&f->body), body);
}
static void expect_error(struct fixture *f, int err) {
        RUN_UNTIL(&f->loop, f->n_end || f->n_error);
        assert_int_equal(f->n_end, 0);
        assert_int_equal(f->err, err);
}

static void test_requests(void **state) {
        (void) state;
        struct fixture f;
        setup(&f);
        begin(&f, "GET", NULL, 0, 0);
        expect_request(&f, "GET /x HTTP/1.1" CRLF "Host: localhost" CRLF CRLF);
        assert_int_equal(http_call_write(f.call, "x", 1), -EPIPE);
        assert_int_equal(http_call_end(f.call), 0);
        finish(&f);

        begin(&f, "POST", NULL, 0, 0);
        expect_request(&f, "POST /x HTTP/1.1" CRLF "Host: localhost" CRLF "Content-Length: 0" CRLF CRLF);
        finish(&f);

        struct http_header h[] = {
                {"Host", "h"}, {"content-length", "7"}, {"X", "y"}, {"Transfer-Encoding", "x"}};
        begin(&f, "PUT", h, ARRAY_SIZE(h), 5);
        assert_int_equal(http_call_write(f.call, "hel", 3), 0);
        assert_int_equal(http_call_end(f.call), -EPROTO);
        assert_int_equal(http_call_write(f.call, "lo!", 3), -EMSGSIZE);
        assert_int_equal(http_call_write(f.call, "lo", 2), 0);
        assert_int_equal(http_call_end(f.call), 0);
        assert_int_equal(http_call_write(f.call, "x", 1), -EPIPE);
        expect_request(&f, "PUT /x HTTP/1.1" CRLF "Host: h" CRLF "X: y" CRLF "Content-Length: 5" CRLF CRLF
                           "hello");
        finish(&f);

        begin(&f, "POST", NULL, 0, -1);
        assert_int_equal(http_call_write(f.call, "hello", 5), 0);
        assert_int_equal(http_call_write(f.call, "", 0), 0);
        assert_int_equal(http_call_end(f.call), 0);
        assert_int_equal(http_call_end(f.call), 0);
        expect_request(&f, "POST /x HTTP/1.1" CRLF "Host: localhost" CRLF
                           "Transfer-Encoding: chunked" CRLF CRLF "5" CRLF "hello" CRLF "0" CRLF CRLF);
        finish(&f);

        /* A header that would be two. */
        struct http_header evil = { "X", "a\r\nb: c" };
        int fds[2];
        assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, fds), 0);
        struct stream *s = NULL;
        assert_int_equal(stream_from_fd(&f.loop, fds[0], &s, NULL), 0);
        assert_int_equal(begin_on(&f, s, "GET", &evil, 1, 0), -EINVAL);
        close(fds[1]);
        teardown(&f);
}

static void test_answers(void **state) {
        (void) state;
        static const struct {
                const char *method, *answer;
                int status;
                const char *body;
                bool close, reusable;
        } t[] = {
                {"GET", "HTTP/1.1 200 OK" CRLF "Content-Length: 5" CRLF CRLF "hello", 200, "hello", false,
                 true},
                {"GET", "HTTP/1.1 200 OK" CRLF "Content-Length: 0" CRLF CRLF, 200, "", false, true},
                {"GET", "HTTP/1.1 204 No" CRLF CRLF, 204, "", false, true},
                {"GET",
                 "HTTP/1.1 200 OK" CRLF "Transfer-Encoding: chunked" CRLF CRLF "5" CRLF "hello" CRLF
                 "0" CRLF CRLF,
                 200, "hello", false, true},
                {"GET", "HTTP/1.1 200 OK" CRLF CRLF "until the end", 200, "until the end", true, false},
                {"GET", "HTTP/1.1 200 OK" CRLF "Connection: close" CRLF "Content-Length: 1" CRLF CRLF "x",
                 200, "x", false, false},
                {"GET", "HTTP/1.0 200 OK" CRLF "Content-Length: 1" CRLF CRLF "x", 200, "x", false, false},
                {"HEAD", "HTTP/1.1 200 OK" CRLF "Content-Length: 5" CRLF CRLF, 200, "", false, true},
                {"GET",
                 "HTTP/1.1 100 Continue" CRLF CRLF "HTTP/1.1 103 Early" CRLF "Link: x" CRLF CRLF
                 "HTTP/1.1 302 Found" CRLF "Location: http://elsewhere/" CRLF "Content-Length: 1" CRLF CRLF
                 "x",
                 302, "x", false, true},
                /* Bytes beyond the answer: whatever they are, the connection is not reused. */
                {"GET", "HTTP/1.1 204 No" CRLF CRLF "HTTP/1.1 200 OK" CRLF CRLF, 204, "", false, false},
                {"GET", "HTTP/1.1 204 No" CRLF CRLF, 204, "", true, true},
        };
        for (size_t i = 0; i < ARRAY_SIZE(t); i++)
                for (int by_byte = 0; by_byte < 2; by_byte++) {
                        struct fixture f;
                        setup(&f);
                        begin(&f, t[i].method, NULL, 0, 0);
                        size_t n = strlen(t[i].answer);
                        for (size_t off = 0; off < n && !f.n_end; off += by_byte ? 1 : n) {
                                say_n(&f, t[i].answer + off, by_byte ? 1 : n);
                                run_pending(&f.loop);
                        }
                        if (t[i].close)
                                shutdown(f.peer, SHUT_WR);
                        expect_body(&f, t[i].status, t[i].body);
                        assert_int_equal(f.n_head, 1);
                        if (!by_byte && !t[i].close) {
                                struct stream *s = http_call_reuse(f.call);
                                assert_int_equal(s != NULL, t[i].reusable);
                                stream_close(s);
                        }
                        finish(&f);
                        teardown(&f);
                }
}

static void test_errors(void **state) {
        (void) state;
        static const struct {
                const char *answer;
                int err;
                const char *reason;
        } t[] = {
                {"", -ECONNRESET, "ended"},
                {"HTTP/1.1 20", -ECONNRESET, "ended"},
                {"HTTP/1.1 100 Continue" CRLF CRLF, -ECONNRESET, "ended"},
                {"HTTP/1.1 200 OK" CRLF "Content-Length: 5" CRLF CRLF "hell", -ECONNRESET, "ended"},
                {"HTTP/1.1 200 OK" CRLF "Transfer-Encoding: chunked" CRLF CRLF "5" CRLF "hello" CRLF,
                 -ECONNRESET, "ended"},
                {"HTTP/1.1 200 OK" CRLF "Transfer-Encoding: chunked" CRLF CRLF "zz", -ECONNRESET, "ended"},
                {"HTTP/1.1 200 OK" CRLF "Transfer-Encoding: chunked" CRLF CRLF "zz" CRLF, -EPROTO,
                 "hexadecimal"},
                {"SSH-2.0-OpenSSH" CRLF, -EPROTO, "not HTTP"},
                {"HTTP/1.1 101 Switching" CRLF "Upgrade: x" CRLF "Connection: upgrade" CRLF CRLF, -EPROTO,
                 "asked"},
                {"HTTP/1.1 200 OK" CRLF "Content-Length: 1" CRLF "Content-Length: 2" CRLF CRLF "xy", -EPROTO,
                 "more than one"},
        };
        for (size_t i = 0; i < ARRAY_SIZE(t); i++)
                for (int freeing = 0; freeing < 2; freeing++) {
                        struct fixture f;
                        setup(&f);
                        f.free_in_error = freeing;
                        begin(&f, "GET", NULL, 0, 0);
                        say(&f, t[i].answer);
                        shutdown(f.peer, SHUT_WR);
                        expect_error(&f, t[i].err);
                        assert_non_null(strstr(f.reason, t[i].reason));
                        run_pending(&f.loop);
                        finish(&f);
                        teardown(&f);
                }
        struct fixture f;
        setup(&f);
        begin(&f, "GET", NULL, 0, 0);
        for (int i = 0; i <= HTTP_INTERIM_MAX; i++)
                say(&f, "HTTP/1.1 100 Continue" CRLF CRLF);
        expect_error(&f, -EPROTO);
        finish(&f);
        teardown(&f);
}

static void test_reuse(void **state) {
        (void) state;
        struct fixture f;
        setup(&f);
        f.reuse_in_end = f.free_in_end = true;
        begin(&f, "GET", NULL, 0, 0);
        for (int i = 0; i < 3; i++) {
                expect_request(&f, "GET /x HTTP/1.1" CRLF "Host: localhost" CRLF CRLF);
                say(&f, "HTTP/1.1 200 OK" CRLF "Content-Length: 2" CRLF CRLF "ok");
                expect_body(&f, 200, "ok");
                assert_null(f.call);
                assert_non_null(f.kept);
                run_pending(&f.loop);
                assert_int_equal(begin_on(&f, STEAL(f.kept), "GET", NULL, 0, 0), 0);
        }
        finish(&f);
        teardown(&f);
}

/* An answer before the request is complete is an answer; its connection is not used again. */
static void test_early_answer(void **state) {
        (void) state;
        struct fixture f;
        setup(&f);
        begin(&f, "POST", NULL, 0, 1000000);
        assert_int_equal(http_call_write(f.call, "x", 1), 0);
        say(&f, "HTTP/1.1 413 Too Large" CRLF "Content-Length: 2" CRLF CRLF "no");
        expect_body(&f, 413, "no");
        assert_int_equal(http_call_write(f.call, "x", 1), -EPIPE);
        assert_null(http_call_reuse(f.call));
        finish(&f);

        /* The server answers, closes, and does not read: the writes fail, the answer counts. */
        begin(&f, "POST", NULL, 0, -1);
        RUN_UNTIL(&f.loop, hear(&f) && f.got.len);
        say(&f, "HTTP/1.1 413 Too Large" CRLF "Content-Length: 2" CRLF CRLF "no");
        close(f.peer);
        static char piece[65536];
        for (int i = 0; i < 10; i++)
                (void) http_call_write(f.call, piece, sizeof piece);
        expect_body(&f, 413, "no");
        f.peer = open("/dev/null", O_RDONLY | O_CLOEXEC);
        finish(&f);
        teardown(&f);
}

static void test_pause(void **state) {
        (void) state;
        struct fixture f;
        setup(&f);
        f.pause_in_body = true;
        begin(&f, "GET", NULL, 0, 0);
        say(&f, "HTTP/1.1 200 OK" CRLF "Transfer-Encoding: chunked" CRLF CRLF "2" CRLF "ab" CRLF "2" CRLF
                "cd" CRLF "0" CRLF CRLF);
        RUN_UNTIL(&f.loop, f.body.len == 2);
        run_pending(&f.loop);
        assert_int_equal(f.body.len, 2);
        f.in_call = true;
        http_call_read_resume(f.call);
        f.in_call = false;
        assert_int_equal(f.body.len, 2);
        RUN_UNTIL(&f.loop, f.body.len == 4);
        run_pending(&f.loop);
        assert_int_equal(f.n_end, 0);
        http_call_read_resume(f.call);
        expect_body(&f, 200, "abcd");
        finish(&f);

        /* The server closes while the reader holds back: nothing is lost, and the cut shows. */
        begin(&f, "GET", NULL, 0, 0);
        say(&f, "HTTP/1.1 200 OK" CRLF "Content-Length: 9" CRLF CRLF "abcd");
        RUN_UNTIL(&f.loop, f.body.len == 4);
        say(&f, "efgh");
        close(f.peer);
        run_pending(&f.loop);
        assert_int_equal(f.n_error, 0);
        f.pause_in_body = false;
        http_call_read_resume(f.call);
        expect_error(&f, -ECONNRESET);
        assert_int_equal(f.body.len, 8);
        f.peer = open("/dev/null", O_RDONLY | O_CLOEXEC);
        finish(&f);

        /* Backpressure reaches the server. */
        f.pause_in_body = true;
        begin(&f, "GET", NULL, 0, 0);
        say(&f, "HTTP/1.1 200 OK" CRLF "Content-Length: 100000000" CRLF CRLF);
        static char piece[65536];
        size_t sent = 0;
        for (int quiet = 0; quiet < 100;) {
                ssize_t n = send(f.peer, piece, sizeof piece, MSG_NOSIGNAL);
                sent += n > 0 ? (size_t) n : 0;
                quiet = n > 0 ? 0 : quiet + 1;
                uv_run(&f.loop, UV_RUN_NOWAIT);
        }
        assert_true(sent < 1024 * 1024);
        assert_true(f.body.len <= 256 * 1024);
        finish(&f);
        teardown(&f);
}

static void test_drain(void **state) {
        (void) state;
        struct fixture f;
        setup(&f);
        begin(&f, "POST", NULL, 0, -1);
        static char piece[65536];
        while (http_call_queued(f.call) < STREAM_HIGH_WATER)
                assert_int_equal(http_call_write(f.call, piece, sizeof piece), 0);
        RUN_UNTIL(&f.loop, hear(&f) && f.n_drain > 0);
        assert_int_equal(http_call_end(f.call), 0);
        RUN_UNTIL(&f.loop, hear(&f) && http_call_queued(f.call) == 0);
        finish(&f);
        teardown(&f);
}

static void test_freed_in_callbacks(void **state) {
        (void) state;
        for (int where = 0; where < 3; where++) {
                struct fixture f;
                setup(&f);
                f.free_in_head = where == 0;
                f.free_in_body = where == 1;
                f.free_in_end = where == 2;
                begin(&f, "GET", NULL, 0, 0);
                say(&f, "HTTP/1.1 200 OK" CRLF "Transfer-Encoding: chunked" CRLF CRLF "2" CRLF "ab" CRLF
                        "2" CRLF "cd" CRLF "0" CRLF CRLF);
                RUN_UNTIL(&f.loop, !f.call);
                run_pending(&f.loop);
                assert_int_equal(f.n_end, where == 2);
                RUN_UNTIL(&f.loop, hear(&f) && f.peer_eof);
                finish(&f);
                teardown(&f);
        }
        http_call_free(NULL);
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

static void test_upgrade(void **state) {
        (void) state;
        for (int mode = 0; mode < 8; mode++) {
                bool inside = mode & 1, early = mode & 2, connect = mode & 4;
                struct fixture f;
                setup(&f);
                t_eof = false;
                t_in = BUF_INIT(0);
                f.upgrade_in_head = f.free_in_head = inside;
                struct http_header h[] = { { "Connection", "Upgrade" }, { "Upgrade", "x" } };
                begin(&f, connect ? "CONNECT" : "GET", connect ? NULL : h, connect ? 0 : 2, 0);
                RUN_UNTIL(&f.loop, hear(&f) && f.got.len);
                static const char sw[] = "HTTP/1.1 101 Switching" CRLF "Connection: upgrade" CRLF
                                         "Upgrade: x" CRLF CRLF "\0early";
                static const char co[] = "HTTP/1.1 200 OK" CRLF CRLF "\0early";
                say_n(&f, connect ? co : sw, (connect ? sizeof co : sizeof sw) - 1 - (early ? 0 : 6));
                RUN_UNTIL(&f.loop, f.n_head);
                if (!inside) {
                        run_pending(&f.loop);
                        f.kept = http_call_upgrade(f.call);
                        http_call_free(STEAL(f.call));
                }
                assert_non_null(f.kept);
                stream_set_handler(f.kept, &t_handler, NULL);
                stream_read_start(f.kept);
                buf_clear(&f.got);
                assert_int_equal(stream_write(f.kept, "raw", 3), 0);
                RUN_UNTIL(&f.loop, hear(&f) && f.got.len == 3);
                say(&f, "later");
                shutdown(f.peer, SHUT_WR);
                RUN_UNTIL(&f.loop, t_eof);
                assert_int_equal(t_in.len, early ? 11 : 5);
                assert_memory_equal(buf_data(&t_in), early ? "\0earlylater" : "later", t_in.len);
                assert_int_equal(f.n_end + f.n_error, 0);
                stream_close(STEAL(f.kept));
                buf_done(&t_in);
                finish(&f);
                teardown(&f);
        }
        /* A refusal is an ordinary answer. */
        struct fixture f;
        setup(&f);
        struct http_header h[] = { { "Connection", "Upgrade" }, { "Upgrade", "x" } };
        begin(&f, "GET", h, 2, 0);
        say(&f, "HTTP/1.1 404 Not Found" CRLF "Content-Length: 2" CRLF CRLF "no");
        expect_body(&f, 404, "no");
        assert_null(http_call_upgrade(f.call));
        finish(&f);
        teardown(&f);
}

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(test_requests),     cmocka_unit_test(test_answers),
                cmocka_unit_test(test_errors),       cmocka_unit_test(test_reuse),
                cmocka_unit_test(test_early_answer), cmocka_unit_test(test_pause),
                cmocka_unit_test(test_drain),        cmocka_unit_test(test_freed_in_callbacks),
                cmocka_unit_test(test_upgrade),
        };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
