/* SPDX-License-Identifier: Apache-2.0 */

/* WebSocket: handshake through our HTTP server and client, both ends against each other, and each
 * end against raw frames. */

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/cleanup.h"
#include "io/http_client.h"
#include "io/http_server.h"
#include "io/websocket.h"
#include "loop.h"
#include "test.h"

#define CRLF "\r\n"
#define KEY "dGhlIHNhbXBsZSBub25jZQ=="
#define ACCEPT "s3pPLMBiTxaQ9kYGzzhZRbK+xOo="

/* One end: what it has got. */
struct end {
        struct websocket *w;
        struct buf in; /* "T:hello;" and so on */
        int n_message, n_drain, n_close, code;
        char reason[128];
        size_t bytes;
        bool pause, echo, free_in_message, close_in_message, free_in_close;
};

static void on_message(void *arg, enum websocket_type type, const uint8_t *d, size_t n) {
        struct end *e = arg;
        assert_int_equal(e->n_close, 0);
        e->n_message++;
        e->bytes += n;
        if (n < 1000) {
                buf_puts(&e->in, type == WEBSOCKET_TEXT ? "T:" : "B:");
                buf_append(&e->in, d, n);
                buf_puts(&e->in, ";");
        }
        if (e->echo)
                assert_int_equal(websocket_send(e->w, type, d, n, NULL, 0), 0);
        if (e->pause)
                websocket_read_pause(e->w);
        if (e->close_in_message)
                websocket_close(e->w, WEBSOCKET_GOING_AWAY, "enough");
        if (e->free_in_message)
                websocket_free(STEAL(e->w));
}
static void on_drain(void *arg) {
        ((struct end *) arg)->n_drain++;
}
static void on_close(void *arg, int code, const char *reason) {
        struct end *e = arg;
        e->n_close++;
        e->code = code;
        strncpy(e->reason, reason, sizeof e->reason - 1);
        if (e->free_in_close)
                websocket_free(STEAL(e->w));
}
static const struct websocket_handler handler = { on_message, on_drain, on_close };

static void end_done(struct end *e) {
        websocket_free(STEAL(e->w));
        buf_done(&e->in);
}

static void pair(uv_loop_t *loop, struct end *server, struct end *client, size_t max) {
        int fds[2];
        struct stream *a = NULL, *b = NULL;
        assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds), 0);
        assert_int_equal(stream_from_fd(loop, fds[0], &a, NULL), 0);
        assert_int_equal(stream_from_fd(loop, fds[1], &b, NULL), 0);
        assert_int_equal(websocket_new(loop, WEBSOCKET_SERVER, a, max, &handler, server, &server->w, NULL),
                         0);
        assert_int_equal(websocket_new(loop, WEBSOCKET_CLIENT, b, max, &handler, client, &client->w, NULL),
                         0);
}
static int raw(uv_loop_t *loop, struct end *e, enum websocket_role role, size_t max) {
        int fds[2];
        struct stream *a = NULL;
        assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, fds), 0);
        assert_int_equal(stream_from_fd(loop, fds[0], &a, NULL), 0);
        assert_int_equal(websocket_new(loop, role, a, max, &handler, e, &e->w, NULL), 0);
        return fds[1];
}
static bool hear(int fd, struct buf *b) {
        char t[65536];
        ssize_t n;
        while ((n = recv(fd, t, sizeof t, 0)) > 0)
                buf_append(b, t, (size_t) n);
        return true;
}

static void test_accept_value(void **state) {
        (void) state;
        char out[WEBSOCKET_ACCEPT_SIZE], a[WEBSOCKET_KEY_SIZE], b[WEBSOCKET_KEY_SIZE];
        assert_int_equal(websocket_accept_value(KEY, out), 0);
        assert_string_equal(out, ACCEPT); /* RFC 6455, 1.3 */
        assert_int_equal(websocket_accept_value("much too long to be a key of sixteen bytes", out), -EINVAL);
        assert_int_equal(websocket_new_key(a), 0);
        assert_int_equal(websocket_new_key(b), 0);
        assert_int_equal(strlen(a), 24);
        assert_string_not_equal(a, b);
}

static int check(const char *head, const char **reason) {
        struct http1_parser *p = http1_parser_new(HTTP1_REQUESTS);
        struct http1_event ev;
        size_t used;
        http1_parse(p, (const uint8_t *) head, strlen(head), &used, &ev);
        assert_int_equal(ev.type, HTTP1_HEAD);
        int r = websocket_check_request(ev.head, reason);
        http1_parser_free(p);
        return r;
}

#define UP "Host: a" CRLF "Upgrade: WebSocket" CRLF "Connection: keep-alive, Upgrade" CRLF

static void test_check_request(void **state) {
        (void) state;
        const char *reason = NULL;
        assert_int_equal(check("GET / HTTP/1.1" CRLF UP "Sec-WebSocket-Version: 13" CRLF
                               "Sec-WebSocket-Key: " KEY CRLF CRLF,
                               &reason),
                         0);
        static const struct {
                const char *head;
                int status;
        } t[] = {
                {"POST / HTTP/1.1" CRLF UP "Sec-WebSocket-Version: 13" CRLF
                 "Sec-WebSocket-Key: " KEY CRLF CRLF,
                 400},
                {"GET / HTTP/1.0" CRLF UP "Sec-WebSocket-Version: 13" CRLF
                 "Sec-WebSocket-Key: " KEY CRLF CRLF,
                 400},
                {"GET / HTTP/1.1" CRLF UP "Content-Length: 1" CRLF "Sec-WebSocket-Version: 13" CRLF
                 "Sec-WebSocket-Key: " KEY CRLF CRLF,
                 400},
                {"GET / HTTP/1.1" CRLF "Host: a" CRLF CRLF, 426},
                {"GET / HTTP/1.1" CRLF "Host: a" CRLF "Connection: upgrade" CRLF "Upgrade: h2c" CRLF CRLF,
                 426},
                {"GET / HTTP/1.1" CRLF UP "Sec-WebSocket-Version: 8" CRLF "Sec-WebSocket-Key: " KEY CRLF CRLF,
                 426},
                {"GET / HTTP/1.1" CRLF UP "Sec-WebSocket-Key: " KEY CRLF CRLF, 426},
                {"GET / HTTP/1.1" CRLF UP "Sec-WebSocket-Version: 13" CRLF CRLF, 400},
                {"GET / HTTP/1.1" CRLF UP "Sec-WebSocket-Version: 13" CRLF
                 "Sec-WebSocket-Key: abcd" CRLF CRLF,
                 400},
                {"GET / HTTP/1.1" CRLF UP "Sec-WebSocket-Version: 13" CRLF
                 "Sec-WebSocket-Key: !!!!!!!!!!!!!!!!!!!!!!!!" CRLF CRLF,
                 400},
        };
        for (size_t i = 0; i < ARRAY_SIZE(t); i++) {
                reason = NULL;
                assert_int_equal(check(t[i].head, &reason), t[i].status);
                assert_non_null(reason);
        }
}

static void test_check_answer(void **state) {
        (void) state;
        static const struct {
                const char *head;
                int r;
        } t[] = {
                {"HTTP/1.1 101 X" CRLF "Upgrade: websocket" CRLF "Connection: upgrade" CRLF
                 "Sec-WebSocket-Accept: " ACCEPT CRLF CRLF,
                 0},
                {"HTTP/1.1 101 X" CRLF "Upgrade: websocket" CRLF "Connection: upgrade" CRLF
                 "Sec-WebSocket-Accept: x" CRLF CRLF,
                 -EPROTO},
                {"HTTP/1.1 101 X" CRLF "Upgrade: websocket" CRLF "Connection: upgrade" CRLF CRLF, -EPROTO},
                {"HTTP/1.1 101 X" CRLF "Upgrade: other" CRLF "Connection: upgrade" CRLF
                 "Sec-WebSocket-Accept: " ACCEPT CRLF CRLF,
                 -EPROTO},
                {"HTTP/1.1 200 X" CRLF "Upgrade: websocket" CRLF "Connection: upgrade" CRLF
                 "Sec-WebSocket-Accept: " ACCEPT CRLF CRLF,
                 -EPROTO},
                {"HTTP/1.1 101 X" CRLF "Upgrade: websocket" CRLF "Connection: upgrade" CRLF
                 "Sec-WebSocket-Accept: " ACCEPT CRLF
                 "Sec-WebSocket-Extensions: permessage-deflate" CRLF CRLF,
                 -EPROTO},
        };
        for (size_t i = 0; i < ARRAY_SIZE(t); i++) {
                struct http1_parser *p = http1_parser_new(HTTP1_RESPONSES);
                struct http1_event ev;
                size_t used;
                struct error err = ERROR_INIT;
                http1_parse(p, (const uint8_t *) t[i].head, strlen(t[i].head), &used, &ev);
                assert_int_equal(ev.type, HTTP1_HEAD);
                assert_int_equal(websocket_check_answer(ev.head, KEY, &err), t[i].r);
                http1_parser_free(p);
        }
}

static void test_messages(void **state) {
        (void) state;
        uv_loop_t loop;
        uv_loop_init(&loop);
        struct end s = { .echo = true }, c = { 0 };
        pair(&loop, &s, &c, WEBSOCKET_MESSAGE_MAX);
        assert_int_equal(websocket_send(c.w, WEBSOCKET_TEXT, "hel", 3, "lo", 2), 0);
        assert_int_equal(websocket_send(c.w, WEBSOCKET_BINARY, "\xff\x01", 2, NULL, 0), 0);
        assert_int_equal(websocket_send(c.w, WEBSOCKET_BINARY, NULL, 0, NULL, 0), 0);
        assert_int_equal(websocket_ping(c.w), 0);
        assert_int_equal(c.n_message, 0);
        RUN_UNTIL(&loop, c.n_message == 3);
        assert_string_equal(buf_str(&c.in), "T:hello;B:\xff\x01;B:;");
        /* Sizes around the three forms of the length. */
        static uint8_t big[WEBSOCKET_MESSAGE_MAX];
        static const size_t sizes[] = { 125, 126, 127, 65535, 65536, 65537, WEBSOCKET_MESSAGE_MAX };
        for (size_t i = 0; i < ARRAY_SIZE(sizes); i++) {
                c.bytes = 0;
                assert_int_equal(websocket_send(c.w, WEBSOCKET_BINARY, big, sizes[i], NULL, 0), 0);
                int before = c.n_message;
                RUN_UNTIL(&loop, c.n_message == before + 1);
                assert_int_equal(c.bytes, sizes[i]);
        }
        assert_int_equal(s.n_close + c.n_close, 0);
        end_done(&c);
        RUN_UNTIL(&loop, s.n_close);
        assert_int_equal(s.code, WEBSOCKET_ABNORMAL); /* freed without a close */
        end_done(&s);
        loop_done(&loop);
        websocket_free(NULL);
}

static void test_close(void **state) {
        (void) state;
        for (int by_server = 0; by_server < 2; by_server++) {
                uv_loop_t loop;
                uv_loop_init(&loop);
                struct end s = { .free_in_close = true }, c = { .free_in_close = true };
                pair(&loop, &s, &c, 1000);
                struct end *a = by_server ? &s : &c, *b = by_server ? &c : &s;
                assert_int_equal(websocket_send(a->w, WEBSOCKET_TEXT, "last", 4, NULL, 0), 0);
                websocket_close(a->w, 4001, "gr\xc3\xbc\xc3\x9f" "e");
                websocket_close(a->w, 4002, "twice");
                assert_int_equal(websocket_send(a->w, WEBSOCKET_TEXT, "x", 1, NULL, 0), -EPIPE);
                assert_int_equal(websocket_ping(a->w), -EPIPE);
                assert_int_equal(a->n_close, 0);
                RUN_UNTIL(&loop, a->n_close && b->n_close);
                assert_string_equal(buf_str(&b->in), "T:last;");
                assert_int_equal(b->code, 4001);
                assert_string_equal(b->reason, "gr\xc3\xbc\xc3\x9f" "e");
                assert_int_equal(a->code, 4001); /* the echo */
                end_done(&s);
                end_done(&c);
                loop_done(&loop);
        }
        /* A reason that is too long, cut within a character. */
        uv_loop_t loop;
        uv_loop_init(&loop);
        struct end s = { 0 }, c = { 0 };
        pair(&loop, &s, &c, 1000);
        _cleanup_buf_ struct buf long_reason = { 0 };
        for (int i = 0; i < 100; i++)
                buf_puts(&long_reason, "\xe4\xbd\xa0");
        websocket_close(c.w, 1000, buf_str(&long_reason));
        RUN_UNTIL(&loop, s.n_close);
        assert_int_equal(strlen(s.reason), 123);
        end_done(&s);
        end_done(&c);
        loop_done(&loop);
}

static void test_in_callbacks(void **state) {
        (void) state;
        for (int how = 0; how < 2; how++) {
                uv_loop_t loop;
                uv_loop_init(&loop);
                struct end s = {.free_in_message = how == 0, .close_in_message = how == 1, .echo = true},
                           c = {0};
                pair(&loop, &s, &c, 1000);
                for (int i = 0; i < 3; i++)
                        assert_int_equal(websocket_send(c.w, WEBSOCKET_TEXT, "x", 1, NULL, 0), 0);
                /* close_in_message: the echo of the second one is refused. */
                s.echo = how == 0;
                RUN_UNTIL(&loop, c.n_close);
                assert_int_equal(c.code, how ? WEBSOCKET_GOING_AWAY : WEBSOCKET_ABNORMAL);
                assert_int_equal(s.n_message, how ? 3 : 1);
                if (how == 0)
                        assert_string_equal(buf_str(&c.in),
                                            "T:x;"); /* what was sent before the free is out */
                end_done(&s);
                end_done(&c);
                loop_done(&loop);
        }
}

static void test_pause(void **state) {
        (void) state;
        uv_loop_t loop;
        uv_loop_init(&loop);
        struct end s = { .pause = true }, c = { 0 };
        pair(&loop, &s, &c, WEBSOCKET_MESSAGE_MAX);
        for (int i = 0; i < 100; i++)
                assert_int_equal(websocket_send(c.w, WEBSOCKET_TEXT, "0123456789", 10, NULL, 0), 0);
        for (int i = 1; i <= 50; i++) {
                RUN_UNTIL(&loop, s.n_message == i);
                run_pending(&loop);
                assert_int_equal(s.n_message, i); /* one message for each resume */
                websocket_read_resume(s.w);
                assert_int_equal(s.n_message, i);
        }
        s.pause = false;
        websocket_read_resume(s.w);
        RUN_UNTIL(&loop, s.n_message == 100);
        /* Backpressure reaches the sender. */
        websocket_read_pause(s.w);
        static uint8_t big[65536];
        int n = 0;
        while (websocket_queued(c.w) < STREAM_HIGH_WATER && n++ < 1000) {
                assert_int_equal(websocket_send(c.w, WEBSOCKET_BINARY, big, sizeof big, NULL, 0), 0);
                uv_run(&loop, UV_RUN_NOWAIT);
        }
        assert_true(n < 30);
        assert_int_equal(s.n_message, 100);
        websocket_read_resume(s.w);
        RUN_UNTIL(&loop, s.n_message == 100 + n && c.n_drain > 0);
        /* A peer that leaves while reading is paused: first the messages, then the end. */
        websocket_read_pause(s.w);
        assert_int_equal(websocket_send(c.w, WEBSOCKET_TEXT, "a", 1, NULL, 0), 0);
        assert_int_equal(websocket_send(c.w, WEBSOCKET_TEXT, "b", 1, NULL, 0), 0);
        websocket_close(c.w, 1000, NULL);
        run_pending(&loop);
        end_done(&c);
        run_pending(&loop);
        assert_int_equal(s.n_close, 0);
        buf_clear(&s.in);
        websocket_read_resume(s.w);
        RUN_UNTIL(&loop, s.n_close);
        assert_string_equal(buf_str(&s.in), "T:a;T:b;");
        assert_int_equal(s.code, 1000);
        end_done(&s);
        loop_done(&loop);
}

static void test_send_limit(void **state) {
        (void) state;
        uv_loop_t loop;
        uv_loop_init(&loop);
        struct end s = { 0 }, c = { 0 };
        pair(&loop, &s, &c, WEBSOCKET_MESSAGE_MAX);
        static uint8_t big[1024 * 1024];
        int r = 0, n = 0;
        while (r == 0 && n < 200) {
                r = websocket_send(c.w, WEBSOCKET_BINARY, big, sizeof big, NULL, 0);
                n += r == 0;
        }
        assert_int_equal(r, -ENOBUFS);
        assert_true(n < 70);
        RUN_UNTIL(&loop, s.n_message == n);
        assert_int_equal(websocket_send(c.w, WEBSOCKET_BINARY, big, 1, NULL, 0), 0);
        RUN_UNTIL(&loop, s.n_message == n + 1);
        end_done(&s);
        end_done(&c);
        loop_done(&loop);
}

/* A masked frame (mask 0, so that the payload shows). */
static void frame(struct buf *b, uint8_t first, const void *d, size_t n) {
        uint8_t h[14] = { first, 0 };
        size_t hn = 2;
        if (n < 126)
                h[1] = (uint8_t) (0x80 | n);
        else {
                h[1] = 0x80 | 126;
                h[2] = (uint8_t) (n >> 8);
                h[3] = (uint8_t) n;
                hn = 4;
        }
        buf_append(b, h, hn);
        buf_append(b, "\0\0\0\0", 4);
        buf_append(b, d, n);
}

static void test_raw_frames(void **state) {
        (void) state;
        uv_loop_t loop;
        uv_loop_init(&loop);
        struct end s = { 0 };
        int fd = raw(&loop, &s, WEBSOCKET_SERVER, 1000);
        _cleanup_buf_ struct buf b = { 0 }, got = { 0 };
        frame(&b, 0x01, "frag", 4);
        frame(&b, 0x89, "ping!", 5); /* between fragments */
        frame(&b, 0x00, "men", 3);
        frame(&b, 0x80, "ted", 3);
        frame(&b, 0x8a, "pong", 4);  /* unasked: ignored */
        frame(&b, 0x82, "bin", 3);
        for (size_t i = 0; i < b.len; i++) {
                assert_int_equal(send(fd, buf_data(&b) + i, 1, 0), 1);
                run_pending(&loop);
        }
        assert_string_equal(buf_str(&s.in), "T:fragmented;B:bin;");
        RUN_UNTIL(&loop, hear(fd, &got) && got.len == 7);
        assert_memory_equal(buf_data(&got), "\x8a\x05ping!", 7);
        /* Ours are not masked, and one write each. */
        buf_clear(&got);
        assert_int_equal(websocket_send(s.w, WEBSOCKET_BINARY, "ab", 2, "cd", 2), 0);
        assert_true(hear(fd, &got));
        assert_int_equal(got.len, 6);
        assert_memory_equal(buf_data(&got), "\x82\x04" "abcd", 6);
        close(fd);
        end_done(&s);
        loop_done(&loop);
}

static void test_violations(void **state) {
        (void) state;
        static const struct {
                const char *in;
                size_t n;
                int code;
        } t[] = {
                { "\x81\x02hi", 4, 1002 },                            /* not masked */
                { "\xc1\x80\0\0\0\0", 6, 1002 },                      /* reserved bit */
                { "\x83\x80\0\0\0\0", 6, 1002 },                      /* reserved opcode */
                { "\x09\x80\0\0\0\0", 6, 1002 },                      /* fragmented ping */
                { "\x89\xfe\0\x80\0\0\0\0", 8, 1002 },                /* long ping */
                { "\x80\x80\0\0\0\0", 6, 1002 },                      /* continuation of nothing */
                { "\x01\x80\0\0\0\0\x81\x80\0\0\0\0", 12, 1002 },     /* new message within one */
                { "\x81\x81\0\0\0\0\xff", 7, 1007 },                  /* not UTF-8 */
                { "\x82\xfe\x03\xe9\0\0\0\0x", 9, 1009 },             /* 1001 bytes */
                { "\x82\xff\xff\xff\xff\xff\xff\xff\xff\xff\0\0\0\0", 14, 1002 },
                { "\x82\xff\x7f\xff\xff\xff\xff\xff\xff\xff\0\0\0\0x", 15, 1009 },
                { "\x88\x82\0\0\0\0\x03\xed", 8, 1002 },              /* 1005 on the wire */
        };
        for (size_t i = 0; i < ARRAY_SIZE(t); i++) {
                uv_loop_t loop;
                uv_loop_init(&loop);
                struct end s = { 0 };
                int fd = raw(&loop, &s, WEBSOCKET_SERVER, 1000);
                assert_int_equal(send(fd, t[i].in, t[i].n, 0), t[i].n);
                RUN_UNTIL(&loop, s.n_close);
                if (s.code != t[i].code)
                        fail_msg("case %zu: code %d, not %d", i, s.code, t[i].code);
                assert_int_equal(s.n_message, 0);
                _cleanup_buf_ struct buf got = { 0 };
                hear(fd, &got);
                assert_true(got.len >= 4);
                assert_memory_equal(buf_data(&got), "\x88", 1);
                assert_int_equal(buf_data(&got)[2] << 8 | buf_data(&got)[3], t[i].code);
                close(fd);
                end_done(&s);
                loop_done(&loop);
        }
        /* The client refuses masked frames. */
        uv_loop_t loop;
        uv_loop_init(&loop);
        struct end c = { 0 };
        int fd = raw(&loop, &c, WEBSOCKET_CLIENT, 1000);
        assert_int_equal(send(fd, "\x81\x80\0\0\0\0", 6, 0), 6);
        RUN_UNTIL(&loop, c.n_close);
        assert_int_equal(c.code, 1002);
        close(fd);
        end_done(&c);
        loop_done(&loop);
}

/* Message in very many fragments; joined size over the limit. */
static void test_fragment_limits(void **state) {
        (void) state;
        for (int how = 0; how < 2; how++) {
                uv_loop_t loop;
                uv_loop_init(&loop);
                struct end s = { 0 };
                int fd = raw(&loop, &s, WEBSOCKET_SERVER, 100000);
                _cleanup_buf_ struct buf b = { 0 };
                static char piece[1000];
                size_t n = how ? sizeof piece : 1;
                frame(&b, 0x02, piece, n);
                for (int i = 0; i < 6000 && b.len < 200000; i++)
                        frame(&b, 0x00, piece, n);
                size_t off = 0;
                while (!s.n_close) {
                        ssize_t r = send(fd, buf_data(&b) + off, b.len - off, MSG_NOSIGNAL);
                        off += r > 0 ? (size_t) r : 0;
                        assert_true(off < b.len || s.n_close || how == 0 || off == b.len);
                        uv_run(&loop, UV_RUN_NOWAIT);
                }
                assert_int_equal(s.code, 1009);
                assert_int_equal(s.n_message, 0);
                close(fd);
                end_done(&s);
                loop_done(&loop);
        }
}

/* Pings without end from a peer that reads nothing: the pongs stay bounded. */
static void test_ping_flood(void **state) {
        (void) state;
        uv_loop_t loop;
        uv_loop_init(&loop);
        struct end s = { 0 };
        int fd = raw(&loop, &s, WEBSOCKET_SERVER, 1000);
        _cleanup_buf_ struct buf b = { 0 };
        static char payload[125];
        for (int i = 0; i < 100; i++)
                frame(&b, 0x89, payload, sizeof payload);
        size_t sent = 0, off = 0;
        for (int quiet = 0; quiet < 100 && sent < 20000000;) {
                ssize_t r = send(fd, buf_data(&b) + off, b.len - off, MSG_NOSIGNAL);
                if (r > 0) {
                        sent += (size_t) r;
                        off = (off + (size_t) r) % b.len;
                }
                quiet = r > 0 ? 0 : quiet + 1;
                uv_run(&loop, UV_RUN_NOWAIT);
        }
        assert_true(sent < 4000000);
        assert_true(websocket_queued(s.w) < STREAM_HIGH_WATER + 512 * 1024);
        close(fd);
        end_done(&s);
        loop_done(&loop);
}

static void test_lost(void **state) {
        (void) state;
        uv_loop_t loop;
        uv_loop_init(&loop);
        struct end s = { 0 };
        int fd = raw(&loop, &s, WEBSOCKET_SERVER, 1000);
        _cleanup_buf_ struct buf b = { 0 };
        frame(&b, 0x81, "hello", 5);
        assert_int_equal(send(fd, buf_data(&b), b.len, 0), b.len);
        assert_int_equal(send(fd, "\x81\x85\0\0", 4, 0), 4); /* a frame cut off */
        close(fd);
        RUN_UNTIL(&loop, s.n_close);
        assert_string_equal(buf_str(&s.in), "T:hello;");
        assert_int_equal(s.code, WEBSOCKET_ABNORMAL);
        assert_int_equal(websocket_send(s.w, WEBSOCKET_TEXT, "x", 1, NULL, 0), -EPIPE);
        end_done(&s);
        loop_done(&loop);
}

static void test_keepalive(void **state) {
        (void) state;
        uv_loop_t loop;
        uv_loop_init(&loop);
        /* A peer that answers pings stays. */
        struct end s = { 0 }, c = { 0 };
        pair(&loop, &s, &c, 1000);
        websocket_keepalive(s.w, 40);
        for (int i = 0; i < 3; i++)
                (void) count_rounds(&loop);
        assert_int_equal(s.n_close, 0);
        end_done(&s);
        end_done(&c);
        /* One that is silent is given up; not while we do not listen. */
        struct end q = { 0 };
        int fd = raw(&loop, &q, WEBSOCKET_SERVER, 1000);
        websocket_read_pause(q.w);
        websocket_keepalive(q.w, 20);
        (void) count_rounds(&loop);
        assert_int_equal(q.n_close, 0);
        websocket_read_resume(q.w);
        RUN_UNTIL(&loop, q.n_close);
        assert_int_equal(q.code, WEBSOCKET_ABNORMAL);
        close(fd);
        end_done(&q);
        loop_done(&loop);
}

/* --- through HTTP ----------------------------------------------------------------------- */

static struct end http_end;
static void on_request(void *arg, struct http_x *x) {
        uv_loop_t *loop = arg;
        struct error err = ERROR_INIT;
        struct http_header v = { "Sec-WebSocket-Version", "13" };
        const char *reason;
        int status = websocket_check_request(http_x_head(x), &reason);
        if (status) {
                assert_int_equal(http_x_respond(x, status, &v, 1, reason, strlen(reason)), 0);
                return;
        }
        assert_int_equal(websocket_accept(loop, x, "cspace.v1", 1000, &handler, &http_end, &http_end.w, &err),
                         0);
}
static char call_key[WEBSOCKET_KEY_SIZE];
static struct http_call *call;
static struct end call_end;
static int call_status;
static uv_loop_t *call_loop;
static void c_head(void *arg, const struct http1_head *h) {
        (void) arg;
        call_status = h->status;
        if (h->status != 101)
                return;
        assert_int_equal(websocket_check_answer(h, call_key, NULL), 0);
        assert_string_equal(http1_get(h, "sec-websocket-protocol"), "cspace.v1");
        struct stream *s = http_call_upgrade(call);
        assert_non_null(s);
        http_call_free(STEAL(call));
        assert_int_equal(
                websocket_new(call_loop, WEBSOCKET_CLIENT, s, 1000, &handler, &call_end, &call_end.w, NULL),
                0);
}
static void c_error(void *arg, int err) {
        (void) arg;
        fail_msg("call failed: %d", err);
}
static const struct http_call_ops c_ops = { .on_head = c_head, .on_error = c_error };

static void test_through_http(void **state) {
        (void) state;
        uv_loop_t loop;
        uv_loop_init(&loop);
        call_loop = &loop;
        struct http_server *server = NULL;
        struct http_server_config cfg = { .on_request = on_request, .arg = &loop };
        assert_int_equal(http_server_new(&loop, &cfg, &server, NULL), 0);
        http_end = (struct end){ .echo = true };
        call_end = (struct end){ 0 };
        int fds[2];
        struct stream *a = NULL, *b = NULL;
        assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds), 0);
        assert_int_equal(stream_from_fd(&loop, fds[0], &a, NULL), 0);
        assert_int_equal(stream_from_fd(&loop, fds[1], &b, NULL), 0);
        assert_int_equal(http_server_add(server, a, NULL), 0);
        assert_int_equal(websocket_new_key(call_key), 0);
        struct http_header h[] = { { "Upgrade", "websocket" },
                                   { "Connection", "Upgrade" },
                                   { "Sec-WebSocket-Version", "13" },
                                   { "Sec-WebSocket-Key", call_key } };
        assert_int_equal(http_call_new(&loop, b, "GET", "/ws", h, 4, 0, &c_ops, NULL, &call, NULL), 0);
        RUN_UNTIL(&loop, call_end.w);
        assert_int_equal(websocket_send(call_end.w, WEBSOCKET_TEXT, "hello", 5, NULL, 0), 0);
        RUN_UNTIL(&loop, call_end.n_message);
        assert_string_equal(buf_str(&call_end.in), "T:hello;");
        websocket_close(call_end.w, 1000, "done");
        RUN_UNTIL(&loop, call_end.n_close && http_end.n_close);
        end_done(&call_end);
        end_done(&http_end);

        /* A client that does not wait for the answer: its first frame comes with the request. */
        http_end = (struct end){ 0 };
        assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, fds), 0);
        assert_int_equal(stream_from_fd(&loop, fds[0], &a, NULL), 0);
        assert_int_equal(http_server_add(server, a, NULL), 0);
        _cleanup_buf_ struct buf req = { 0 }, got = { 0 };
        buf_puts(&req, "GET / HTTP/1.1" CRLF UP "Sec-WebSocket-Version: 13" CRLF
                       "Sec-WebSocket-Key: " KEY CRLF CRLF);
        frame(&req, 0x81, "early", 5);
        assert_int_equal(send(fds[1], buf_data(&req), req.len, 0), req.len);
        RUN_UNTIL(&loop, http_end.n_message);
        assert_string_equal(buf_str(&http_end.in), "T:early;");
        hear(fds[1], &got);
        assert_non_null(strstr(buf_str(&got), "Sec-WebSocket-Accept: " ACCEPT CRLF));
        end_done(&http_end);
        close(fds[1]);
        http_server_free(server);
        loop_done(&loop);
}

/* --- another implementation ------------------------------------------------------------- */

static void on_conn(void *arg, struct stream *s, int fd) {
        (void) fd;
        assert_int_equal(http_server_add(arg, s, NULL), 0);
}
static void child_exit(uv_process_t *p, int64_t status, int sig) {
        *(int64_t *) p->data = sig ? 128 + sig : status;
        uv_close((uv_handle_t *) p, NULL);
}

/* The WebSocket of Node, which is the one of browsers in its interface and its strictness. */
static void test_node_client(void **state) {
        (void) state;
        if (system("node --experimental-websocket -e 'process.exit(typeof WebSocket === \"function\" ? 0 : "
                   "1)' >/dev/null 2>&1")) {
                print_message("no node with a WebSocket client is installed\n");
                skip();
        }
        uv_loop_t loop;
        uv_loop_init(&loop);
        struct http_server *server = NULL;
        struct http_server_config cfg = { .on_request = on_request, .arg = &loop };
        assert_int_equal(http_server_new(&loop, &cfg, &server, NULL), 0);
        int fd = -1;
        assert_int_equal(listen_tcp("127.0.0.1", 0, &fd, NULL), 0);
        struct sockaddr_in sa;
        socklen_t len = sizeof sa;
        assert_int_equal(getsockname(fd, (struct sockaddr *) &sa, &len), 0);
        struct listener *l = NULL;
        assert_int_equal(listener_new(&loop, fd, on_conn, server, &l, NULL), 0);
        http_end = (struct end){ .echo = true };
        _cleanup_buf_ struct buf script = { 0 };
        buf_printf(&script,
                   "const w = new WebSocket('ws://127.0.0.1:%u/x', 'cspace.v1');"
                   "w.binaryType = 'arraybuffer';"
                   "const sent = ['hi', '\\u4f60'.repeat(300), new Uint8Array(999).map((_, i) => i * 7)];"
                   "const fail = m => { console.error(m); process.exit(1); };"
                   "let n = 0;"
                   "w.onopen = () => { if (w.protocol !== 'cspace.v1') fail('protocol'); sent.forEach(m => "
                   "w.send(m)); };"
                   "w.onmessage = e => {"
                   "  const want = sent[n++];"
                   "  const same = typeof want === 'string' ? e.data === want : "
                   "Buffer.from(e.data).equals(Buffer.from(want));"
                   "  if (!same) fail('message ' + n);"
                   "  if (n === sent.length) w.close(4000, 'bye');"
                   "};"
                   "w.onerror = e => fail('error ' + e.message);"
                   "w.onclose = e => { if (e.code !== 4000 || !e.wasClean) fail('close ' + e.code); "
                   "process.exit(0); };"
                   "setTimeout(() => fail('too slow'), 100000);",
                   ntohs(sa.sin_port));
        char node[] = "node", flag[] = "--experimental-websocket", e[] = "-e";
        char *argv[] = { node, flag, e, (char *) (uintptr_t) buf_str(&script), NULL };
        int64_t status = -1;
        uv_stdio_container_t io[3] = { { .flags = UV_IGNORE },
                                       { .flags = UV_INHERIT_FD, .data.fd = 2 },
                                       { .flags = UV_INHERIT_FD, .data.fd = 2 } };
        uv_process_options_t o = {
                .file = node, .args = argv, .exit_cb = child_exit, .stdio = io, .stdio_count = 3};
        uv_process_t child = { .data = &status };
        assert_int_equal(uv_spawn(&loop, &child, &o), 0);
        RUN_UNTIL(&loop, status >= 0 && http_end.n_close);
        assert_int_equal(status, 0);
        assert_int_equal(http_end.code, 4000);
        assert_string_equal(http_end.reason, "bye");
        end_done(&http_end);
        listener_free(l);
        http_server_free(server);
        loop_done(&loop);
}

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(test_accept_value),  cmocka_unit_test(test_check_request),
                cmocka_unit_test(test_check_answer),  cmocka_unit_test(test_messages),
                cmocka_unit_test(test_close),         cmocka_unit_test(test_in_callbacks),
                cmocka_unit_test(test_pause),         cmocka_unit_test(test_send_limit),
                cmocka_unit_test(test_raw_frames),    cmocka_unit_test(test_violations),
                cmocka_unit_test(test_fragment_limits), cmocka_unit_test(test_ping_flood),
                cmocka_unit_test(test_lost),          cmocka_unit_test(test_keepalive),
                cmocka_unit_test(test_through_http),  cmocka_unit_test(test_node_client),
        };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
