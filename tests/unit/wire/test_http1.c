/* SPDX-License-Identifier: Apache-2.0 */

/*
 * The HTTP/1.1 codec. Each input is parsed whole, byte by byte and in random pieces, and must give
 * the same transcript each time: "GET /x body end" and so on, "error 400" at the end if refused.
 */

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/cleanup.h"
#include "test.h"
#include "wire/http1.h"

#define CRLF "\r\n"

struct script {
        enum http1_role role;
        bool no_body; /* as after a HEAD request */
        struct buf text;
        const char *reason;
        bool in_body;
};

static void note_head(struct script *s, const struct http1_head *h) {
        if (h->is_request)
                buf_printf(&s->text, "%s %s 1.%d", h->method, h->target, h->minor);
        else
                buf_printf(&s->text, "%d [%s] 1.%d", h->status, h->reason, h->minor);
        for (size_t i = 0; i < h->n_fields; i++)
                buf_printf(&s->text, " %s=[%s]", h->fields[i].name, h->fields[i].value);
        buf_printf(&s->text, " cl=%lld%s%s%s%s", (long long) h->content_length, h->chunked ? " chunked" : "",
                   h->keep_alive ? " ka" : "", h->upgrade ? " up" : "", h->expect_continue ? " cont" : "");
}

/* Feeds one piece; false when the parser is dead. */
static bool feed(struct script *s, struct http1_parser *p, const char *d, size_t n) {
        for (;;) {
                struct http1_event ev;
                size_t used;
                http1_parse(p, (const uint8_t *) d, n, &used, &ev);
                assert_true(used <= n);
                d += used;
                n -= used;
                switch (ev.type) {
                case HTTP1_NEED_DATA:
                        assert_int_equal(n, 0);
                        return true;
                case HTTP1_HEAD:
                        note_head(s, ev.head);
                        s->in_body = false;
                        if (s->no_body)
                                http1_parser_no_body(p);
                        break;
                case HTTP1_BODY:
                        assert_true(ev.n > 0);
                        if (!s->in_body)
                                buf_puts(&s->text, " body:");
                        s->in_body = true;
                        buf_append(&s->text, ev.data, ev.n);
                        break;
                case HTTP1_END:
                        buf_puts(&s->text, " end;");
                        break;
                case HTTP1_ERROR:
                        assert_non_null(ev.reason);
                        s->reason = ev.reason;
                        buf_printf(&s->text, "error %d", ev.status);
                        /* Dead means dead. */
                        http1_parse(p, (const uint8_t *) "GET", 3, &used, &ev);
                        assert_int_equal(ev.type, HTTP1_ERROR);
                        assert_int_equal(used, 0);
                        return false;
                default:
                        fail();
                }
        }
}

static void finish(struct script *s, struct http1_parser *p) {
        int r = http1_parser_eof(p);
        if (r < 0) {
                assert_int_equal(r, -EPROTO);
                buf_puts(&s->text, " cut");
                return;
        }
        (void) feed(s, p, "", 0);
}

/* max_piece 0: whole. */
static void run(struct script *s, const char *d, size_t n, size_t max_piece) {
        struct http1_parser *p = http1_parser_new(s->role);
        assert_non_null(p);
        bool alive = true;
        while (alive && n > 0) {
                size_t take = max_piece == 0 ? n : max_piece == 1 ? 1 : 1 + (size_t) rand() % max_piece;
                if (take > n)
                        take = n;
                /* A copy of its own size, so that a sanitizer sees a read beyond the piece. */
                char *copy = malloc(take);
                assert_non_null(copy);
                memcpy(copy, d, take);
                alive = feed(s, p, copy, take);
                free(copy);
                d += take;
                n -= take;
        }
        if (alive)
                finish(s, p);
        http1_parser_free(p);
}

static char *transcript(enum http1_role role, bool no_body, const char *d, size_t n, const char **reason) {
        static const size_t pieces[] = { 0, 1, 2, 3, 7, 16, 64 };
        char *first = NULL;
        for (size_t i = 0; i < ARRAY_SIZE(pieces); i++) {
                struct script s = { .role = role, .no_body = no_body };
                run(&s, d, n, pieces[i]);
                char *t = strdup(buf_str(&s.text));
                assert_non_null(t);
                buf_done(&s.text);
                if (reason)
                        *reason = s.reason;
                if (first)
                        assert_string_equal(t, first);
                if (!first)
                        first = STEAL(t);
                free(t);
        }
        return first;
}

static void expect_n(enum http1_role role, bool no_body, const char *in, size_t n, const char *want) {
        _cleanup_free_ char *got = transcript(role, no_body, in, n, NULL);
        assert_string_equal(got, want);
}

#define REQ(in, want) expect_n(HTTP1_REQUESTS, false, in, sizeof(in) - 1, want)
#define RES(in, want) expect_n(HTTP1_RESPONSES, false, in, sizeof(in) - 1, want)
#define RES_HEAD(in, want) expect_n(HTTP1_RESPONSES, true, in, sizeof(in) - 1, want)

#define GET "GET / HTTP/1.1" CRLF
#define POST "POST / HTTP/1.1" CRLF
#define HOST "Host: a" CRLF

static void test_requests(void **state) {
        (void) state;
        REQ(GET HOST CRLF, "GET / 1.1 Host=[a] cl=-1 ka end;");
        REQ("", "");
        REQ(CRLF CRLF GET HOST CRLF, "GET / 1.1 Host=[a] cl=-1 ka end;");
        REQ("GET /a?b=c%20d HTTP/1.1" CRLF "hOST:\t a:80 \t" CRLF "X:" CRLF CRLF,
            "GET /a?b=c%20d 1.1 hOST=[a:80] X=[] cl=-1 ka end;");
        REQ("GET / HTTP/1.0" CRLF CRLF, "GET / 1.0 cl=-1 end;");
        REQ("GET / HTTP/1.0" CRLF "Connection: Keep-Alive" CRLF CRLF,
            "GET / 1.0 Connection=[Keep-Alive] cl=-1 ka end;");
        REQ(GET HOST "Connection: foo , Close" CRLF CRLF,
            "GET / 1.1 Host=[a] Connection=[foo , Close] cl=-1 end;");
        REQ(POST HOST "Content-Length: 5" CRLF CRLF "hello",
            "POST / 1.1 Host=[a] Content-Length=[5] cl=5 ka body:hello end;");
        REQ(POST HOST "Content-Length: 0" CRLF CRLF, "POST / 1.1 Host=[a] Content-Length=[0] cl=0 ka end;");
        REQ(POST HOST "Content-Length: 5" CRLF CRLF "hell",
            "POST / 1.1 Host=[a] Content-Length=[5] cl=5 ka body:hell cut");
        REQ(POST HOST "Content-Length: 5" CRLF "Expect: 100-Continue" CRLF CRLF "hello",
            "POST / 1.1 Host=[a] Content-Length=[5] Expect=[100-Continue] cl=5 ka cont body:hello end;");
        /* Nothing to wait for. */
        REQ(GET HOST "Expect: 100-continue" CRLF CRLF,
            "GET / 1.1 Host=[a] Expect=[100-continue] cl=-1 ka end;");
        REQ("GET /w HTTP/1.1" CRLF HOST "Connection: keep-alive, Upgrade" CRLF "Upgrade: websocket" CRLF CRLF,
            "GET /w 1.1 Host=[a] Connection=[keep-alive, Upgrade] Upgrade=[websocket] cl=-1 ka up end;");
        REQ(GET HOST "X-Utf8: \xc3\xa4" CRLF CRLF, "GET / 1.1 Host=[a] X-Utf8=[\xc3\xa4] cl=-1 ka end;");
        REQ("GET http://a/x HTTP/1.1" CRLF "Host: A" CRLF CRLF, "GET http://a/x 1.1 Host=[A] cl=-1 ka end;");
        REQ("OPTIONS * HTTP/1.1" CRLF HOST CRLF, "OPTIONS * 1.1 Host=[a] cl=-1 ka end;");
        REQ("CONNECT a:443 HTTP/1.1" CRLF "Host: a:443" CRLF CRLF,
            "CONNECT a:443 1.1 Host=[a:443] cl=-1 ka end;");
        REQ(GET "Host: [::1]:80" CRLF CRLF, "GET / 1.1 Host=[[::1]:80] cl=-1 ka end;");
        REQ(GET "Host:" CRLF CRLF, "GET / 1.1 Host=[] cl=-1 ka end;");
        /* Pipelined. */
        REQ(POST HOST "Content-Length: 2" CRLF CRLF "hi" GET HOST CRLF,
            "POST / 1.1 Host=[a] Content-Length=[2] cl=2 ka body:hi end;GET / 1.1 Host=[a] cl=-1 ka end;");
}

static void test_chunked(void **state) {
        (void) state;
#define CH POST HOST "Transfer-Encoding: Chunked" CRLF CRLF
#define CH_OK "POST / 1.1 Host=[a] Transfer-Encoding=[Chunked] cl=-1 chunked ka"
        REQ(CH "5" CRLF "hello" CRLF "0" CRLF CRLF, CH_OK " body:hello end;");
        REQ(CH "1" CRLF "h" CRLF "00a" CRLF "0123456789" CRLF "A" CRLF "0123456789" CRLF "000" CRLF CRLF,
            CH_OK " body:h01234567890123456789 end;");
        REQ(CH "0" CRLF CRLF GET HOST CRLF, CH_OK " end;GET / 1.1 Host=[a] cl=-1 ka end;");
        REQ(CH "2;a=b;c=\"d\"" CRLF "hi" CRLF "0;x" CRLF CRLF, CH_OK " body:hi end;");
        /* Trailers are checked and dropped. */
        REQ(CH "0" CRLF "X-A: b" CRLF "X-C: d" CRLF CRLF, CH_OK " end;");
        REQ(CH "0" CRLF "X A: b" CRLF CRLF, CH_OK "error 400");
        REQ(CH "0" CRLF "X-A: b" CRLF " folded" CRLF CRLF, CH_OK "error 400");
        REQ(CH "0" CRLF "X-A: b\n" CRLF, CH_OK "error 400");
        REQ(CH "0" CRLF "Content-Length: 5" CRLF CRLF, CH_OK " end;");
        REQ(CH "0" CRLF, CH_OK " cut");
        REQ(CH "5" CRLF "hel", CH_OK " body:hel cut");
        REQ(CH, CH_OK " cut");
        /* Sizes. */
        REQ(CH "7fffffffffffffff" CRLF "x", CH_OK " body:x cut");
        REQ(CH "8000000000000000" CRLF "x", CH_OK "error 400");
        REQ(CH "ffffffffffffffff" CRLF "x", CH_OK "error 400");
        REQ(CH "10000000000000000" CRLF "x", CH_OK "error 400");
        REQ(CH "00000000000000005" CRLF "hello" CRLF, CH_OK "error 400");
        REQ(CH "0x5" CRLF "hello" CRLF, CH_OK "error 400");
        REQ(CH "-1" CRLF "hello" CRLF, CH_OK "error 400");
        REQ(CH "+5" CRLF "hello" CRLF, CH_OK "error 400");
        REQ(CH " 5" CRLF "hello" CRLF, CH_OK "error 400");
        REQ(CH "5 " CRLF "hello" CRLF, CH_OK "error 400");
        REQ(CH "5 ;a" CRLF "hello" CRLF, CH_OK "error 400");
        REQ(CH "g" CRLF, CH_OK "error 400");
        REQ(CH CRLF, CH_OK "error 400");
        REQ(CH ";a" CRLF, CH_OK "error 400");
        /* Line ends. */
        REQ(CH "5\n" "hello" CRLF, CH_OK "error 400");
        REQ(CH "5\r" "hello" CRLF, CH_OK "error 400");
        REQ(CH "5;a\rb" CRLF "hello" CRLF, CH_OK "error 400");
        REQ(CH "5;\0" CRLF "hello" CRLF, CH_OK "error 400");
        REQ(CH "5" CRLF "hello\n" "0" CRLF CRLF, CH_OK " body:helloerror 400");
        REQ(CH "5" CRLF "hello\r0" CRLF CRLF, CH_OK " body:helloerror 400");
        REQ(CH "4" CRLF "hello" CRLF "0" CRLF CRLF, CH_OK " body:hellerror 400");
        REQ(CH "5" CRLF "hello0" CRLF CRLF, CH_OK " body:helloerror 400");
}

static void test_chunk_limits(void **state) {
        (void) state;
        _cleanup_buf_ struct buf b = { 0 };
        for (int over = 0; over < 2; over++) {
                buf_clear(&b);
                buf_puts(&b, CH "1;");
                for (int i = 1; i < HTTP1_CHUNK_EXT_MAX + over; i++)
                        buf_puts(&b, "e");
                buf_puts(&b, CRLF "x" CRLF "0" CRLF CRLF);
                expect_n(HTTP1_REQUESTS, false, (const char *) buf_data(&b), b.len,
                         over ? CH_OK "error 400" : CH_OK " body:x end;");
        }
        /* Many extensions, each of them short enough. */
        buf_clear(&b);
        buf_puts(&b, CH);
        for (unsigned i = 0; i < HTTP1_CHUNK_EXT_TOTAL / 4 + 1; i++)
                buf_puts(&b, "1;abc" CRLF "x" CRLF);
        buf_puts(&b, "0" CRLF CRLF);
        const char *reason;
        _cleanup_free_ char *t =
                transcript(HTTP1_REQUESTS, false, (const char *) buf_data(&b), b.len, &reason);
        assert_non_null(strstr(t, "error 400"));
        assert_string_equal(reason, "chunk extensions are too long");
        /* Endless trailers. */
        buf_clear(&b);
        buf_puts(&b, CH "0" CRLF);
        for (int i = 0; i <= LIMIT_HTTP_HEADERS; i++)
                buf_puts(&b, "A: b" CRLF);
        expect_n(HTTP1_REQUESTS, false, (const char *) buf_data(&b), b.len, CH_OK "error 431");
        buf_clear(&b);
        buf_puts(&b, CH "0" CRLF "A: ");
        for (size_t i = 0; i < LIMIT_HTTP_HEAD; i++)
                buf_puts(&b, "b");
        expect_n(HTTP1_REQUESTS, false, (const char *) buf_data(&b), b.len, CH_OK "error 431");
}

/* No line too long, not too many of them, but too much together. */
static void test_trailers_together(void **state) {
        (void) state;
        _cleanup_buf_ struct buf b = { 0 };
        buf_puts(&b, CH "0" CRLF);
        size_t start = b.len;
        while (b.len - start <= LIMIT_HTTP_HEAD) {
                buf_puts(&b, "A: ");
                for (int i = 0; i < 1000; i++)
                        buf_puts(&b, "b");
                buf_puts(&b, CRLF);
        }
        buf_puts(&b, CRLF);
        expect_n(HTTP1_REQUESTS, false, (const char *) buf_data(&b), b.len, CH_OK "error 431");
}

static void test_smuggling(void **state) {
        (void) state;
        static const char *const refused[] = {
                /* CL.TE, TE.CL, TE.TE */
                POST HOST "Content-Length: 5" CRLF "Transfer-Encoding: chunked" CRLF CRLF "0" CRLF CRLF,
                POST HOST "Transfer-Encoding: chunked" CRLF "Content-Length: 5" CRLF CRLF "0" CRLF CRLF,
                POST HOST "Transfer-Encoding: chunked" CRLF "Transfer-Encoding: chunked" CRLF CRLF,
                POST HOST "Transfer-Encoding: chunked" CRLF "Transfer-Encoding: identity" CRLF CRLF,
                /* Lengths that parsers read differently. */
                POST HOST "Content-Length: 5" CRLF "Content-Length: 5" CRLF CRLF "hello",
                POST HOST "Content-Length: 5" CRLF "Content-Length: 6" CRLF CRLF "hello",
                POST HOST "Content-Length: 5, 5" CRLF CRLF "hello",
                POST HOST "Content-Length: +5" CRLF CRLF "hello",
                POST HOST "Content-Length: -5" CRLF CRLF "hello",
                POST HOST "Content-Length: 0x5" CRLF CRLF "hello",
                POST HOST "Content-Length: 5 5" CRLF CRLF "hello",
                POST HOST "Content-Length: 5a" CRLF CRLF "hello",
                POST HOST "Content-Length: 5.0" CRLF CRLF "hello",
                POST HOST "Content-Length:" CRLF CRLF "hello",
                POST HOST "Content-Length: 9223372036854775808" CRLF CRLF "hello",
                POST HOST "Content-Length: 99999999999999999999" CRLF CRLF "hello",
                POST HOST "Content-Length: 00000000000000000005" CRLF CRLF "hello",
                /* White space where names are read differently. */
                POST HOST "Content-Length : 5" CRLF CRLF "hello",
                POST HOST "Transfer-Encoding : chunked" CRLF CRLF,
                POST HOST " Content-Length: 5" CRLF CRLF "hello",
                POST " Host: a" CRLF CRLF,
                POST HOST "X: a" CRLF " b" CRLF CRLF,
                POST HOST "X: a" CRLF "\tb" CRLF CRLF,
                POST HOST "Transfer-Encoding:\x0b" "chunked" CRLF CRLF,
                POST HOST "Transfer-Encoding: chunked\x0c" CRLF CRLF,
                /* Line ends. */
                "GET / HTTP/1.1\n" HOST CRLF,
                GET "Host: a\n" CRLF,
                GET HOST "\n",
                GET HOST "X: a\rb" CRLF CRLF,
                GET HOST "X: a\r" CRLF CRLF,
                GET HOST "X: a\n\r\n",
                "GET / HTTP/1.1\r\r\n" HOST CRLF,
                "\n" GET HOST CRLF,
                "\r" GET HOST CRLF,
                CRLF CRLF CRLF CRLF CRLF GET HOST CRLF,
                /* Names and values. */
                GET HOST ": a" CRLF CRLF,
                GET HOST "X" CRLF CRLF,
                GET HOST "X(: a" CRLF CRLF,
                GET HOST "X\x80: a" CRLF CRLF,
                GET HOST "X: a\x01" CRLF CRLF,
                GET HOST "X: a\x7f" CRLF CRLF,
                /* Host. */
                GET CRLF,
                GET HOST HOST CRLF,
                GET HOST "host: b" CRLF CRLF,
                "GET / HTTP/1.0" CRLF HOST HOST CRLF,
                GET "Host: a b" CRLF CRLF,
                GET "Host: a/b" CRLF CRLF,
                GET "Host: u@a" CRLF CRLF,
                GET "Host: a:b" CRLF CRLF,
                GET "Host: a:" CRLF CRLF,
                GET "Host: :80" CRLF CRLF,
                GET "Host: a:123456" CRLF CRLF,
                GET "Host: [::1" CRLF CRLF,
                GET "Host: [::1]x" CRLF CRLF,
                GET "Host: a, b" CRLF CRLF,
                "GET http://b/ HTTP/1.1" CRLF HOST CRLF,
                /* Request lines. */
                "GET  / HTTP/1.1" CRLF HOST CRLF,
                "GET /  HTTP/1.1" CRLF HOST CRLF,
                "GET / HTTP/1.1 " CRLF HOST CRLF,
                " GET / HTTP/1.1" CRLF HOST CRLF,
                "GET\t/ HTTP/1.1" CRLF HOST CRLF,
                "GET /" CRLF HOST CRLF,
                "GET / HTTP/1.1x" CRLF HOST CRLF,
                "GET / http/1.1" CRLF HOST CRLF,
                "GET / HTTPS/1.1" CRLF HOST CRLF,
                "GET / HTTP/11" CRLF HOST CRLF,
                "G@T / HTTP/1.1" CRLF HOST CRLF,
                "GET /a b HTTP/1.1" CRLF HOST CRLF,
                "GET /#x HTTP/1.1" CRLF HOST CRLF,
                "GET /\xc3\xa4 HTTP/1.1" CRLF HOST CRLF,
                "GET /\x7f HTTP/1.1" CRLF HOST CRLF,
                "GET x HTTP/1.1" CRLF HOST CRLF,
                "GET * HTTP/1.1" CRLF HOST CRLF,
                "GET ftp://a/ HTTP/1.1" CRLF HOST CRLF,
                "GET http:///x HTTP/1.1" CRLF HOST CRLF,
                "GET http://u@a/ HTTP/1.1" CRLF HOST CRLF,
                "CONNECT / HTTP/1.1" CRLF HOST CRLF,
                "CONNECT a HTTP/1.1" CRLF HOST CRLF,
                "CONNECT [::1] HTTP/1.1" CRLF HOST CRLF,
                "POST / HTTP/1.0" CRLF "Transfer-Encoding: chunked" CRLF CRLF "0" CRLF CRLF,
                "CONNECT a:1 HTTP/1.1" CRLF HOST "Content-Length: 5" CRLF CRLF "hello",
                "CONNECT a:1 HTTP/1.1" CRLF HOST "Content-Length: 0" CRLF CRLF,
                "CONNECT a:1 HTTP/1.1" CRLF HOST "Transfer-Encoding: chunked" CRLF CRLF "0" CRLF CRLF,
        };
        for (size_t i = 0; i < ARRAY_SIZE(refused); i++) {
                const char *reason;
                _cleanup_free_ char *t =
                        transcript(HTTP1_REQUESTS, false, refused[i], strlen(refused[i]), &reason);
                if (strcmp(t, "error 400") != 0)
                        fail_msg("not refused: %s\n-> %s", refused[i], t);
        }
        /* NUL bytes, which a C string cannot show. */
        REQ("GET /\0 HTTP/1.1" CRLF HOST CRLF, "error 400");
        REQ(GET "Host: a\0" CRLF CRLF, "error 400");
        REQ(GET HOST "X\0: a" CRLF CRLF, "error 400");
        REQ("\0" GET HOST CRLF, "error 400");
}

static void test_other_statuses(void **state) {
        (void) state;
        REQ(POST HOST "Transfer-Encoding: gzip, chunked" CRLF CRLF, "error 501");
        REQ(POST HOST "Transfer-Encoding: xchunked" CRLF CRLF, "error 501");
        REQ(POST HOST "Transfer-Encoding: chunked, chunked" CRLF CRLF, "error 501");
        REQ(POST HOST "Transfer-Encoding:" CRLF CRLF, "error 501");
        REQ("GET / HTTP/1.2" CRLF HOST CRLF, "error 505");
        REQ("GET / HTTP/2.0" CRLF HOST CRLF, "error 505");
        REQ("PRI * HTTP/2.0" CRLF CRLF "SM" CRLF CRLF, "error 505");
        REQ(POST HOST "Content-Length: 1" CRLF "Expect: tea" CRLF CRLF, "error 417");
        /* TLS on a plain port. */
        REQ("\x16\x03\x01\x02\x00\x01", "error 400");
}

static void test_head_limits(void **state) {
        (void) state;
        _cleanup_buf_ struct buf b = { 0 };
        buf_puts(&b, "GET /");
        for (size_t i = 0; i < LIMIT_HTTP_HEAD; i++)
                buf_puts(&b, "x");
        expect_n(HTTP1_REQUESTS, false, (const char *) buf_data(&b), b.len, "error 414");

        buf_clear(&b);
        buf_puts(&b, GET HOST "X: ");
        for (size_t i = 0; i < LIMIT_HTTP_HEAD; i++)
                buf_puts(&b, "x");
        expect_n(HTTP1_REQUESTS, false, (const char *) buf_data(&b), b.len, "error 431");

        /* Exactly the limit passes. */
        buf_clear(&b);
        buf_puts(&b, GET HOST "X: ");
        while (b.len < LIMIT_HTTP_HEAD - 4)
                buf_puts(&b, "x");
        buf_puts(&b, CRLF CRLF);
        assert_int_equal(b.len, LIMIT_HTTP_HEAD);
        _cleanup_free_ char *t = transcript(HTTP1_REQUESTS, false, (const char *) buf_data(&b), b.len, NULL);
        assert_null(strstr(t, "error"));

        for (int over = 0; over < 2; over++) {
                buf_clear(&b);
                buf_puts(&b, GET HOST);
                for (int i = 1; i < LIMIT_HTTP_HEADERS + over; i++)
                        buf_puts(&b, "X: y" CRLF);
                buf_puts(&b, CRLF);
                _cleanup_free_ char *u =
                        transcript(HTTP1_REQUESTS, false, (const char *) buf_data(&b), b.len, NULL);
                if (over)
                        assert_string_equal(u, "error 431");
                else
                        assert_null(strstr(u, "error"));
        }
}

static void test_responses(void **state) {
        (void) state;
        RES("HTTP/1.1 200 OK" CRLF "Content-Length: 2" CRLF CRLF "hi",
            "200 [OK] 1.1 Content-Length=[2] cl=2 ka body:hi end;");
        RES("HTTP/1.1 200 " CRLF "Content-Length: 0" CRLF CRLF, "200 [] 1.1 Content-Length=[0] cl=0 ka end;");
        RES("HTTP/1.1 200" CRLF "Content-Length: 0" CRLF CRLF, "200 [] 1.1 Content-Length=[0] cl=0 ka end;");
        /* Until the connection closes. */
        RES("HTTP/1.1 200 OK" CRLF CRLF "all of it", "200 [OK] 1.1 cl=-1 ka body:all of it end;");
        RES("HTTP/1.0 200 OK" CRLF CRLF, "200 [OK] 1.0 cl=-1 end;");
        RES("HTTP/1.1 200 OK" CRLF "Transfer-Encoding: chunked" CRLF CRLF "2" CRLF "hi" CRLF "0" CRLF CRLF,
            "200 [OK] 1.1 Transfer-Encoding=[chunked] cl=-1 chunked ka body:hi end;");
        RES("HTTP/1.1 200 OK" CRLF "Content-Length: 5" CRLF CRLF "hi",
            "200 [OK] 1.1 Content-Length=[5] cl=5 ka body:hi cut");
        RES("HTTP/1.1 200 OK" CRLF, " cut");
        /* Without a body whatever the fields say. */
        RES("HTTP/1.1 100 Continue" CRLF CRLF "HTTP/1.1 204 No Content" CRLF CRLF,
            "100 [Continue] 1.1 cl=-1 ka end;204 [No Content] 1.1 cl=-1 ka end;");
        RES("HTTP/1.1 304 Not Modified" CRLF "Content-Length: 5" CRLF CRLF,
            "304 [Not Modified] 1.1 Content-Length=[5] cl=5 ka end;");
        RES("HTTP/1.1 101 Switching Protocols" CRLF "Connection: Upgrade" CRLF "Upgrade: x" CRLF CRLF,
            "101 [Switching Protocols] 1.1 Connection=[Upgrade] Upgrade=[x] cl=-1 ka up end;");
        RES_HEAD("HTTP/1.1 200 OK" CRLF "Content-Length: 5" CRLF CRLF,
                 "200 [OK] 1.1 Content-Length=[5] cl=5 ka end;");
        RES_HEAD("HTTP/1.1 200 OK" CRLF "Transfer-Encoding: chunked" CRLF CRLF,
                 "200 [OK] 1.1 Transfer-Encoding=[chunked] cl=-1 chunked ka end;");
        RES_HEAD("HTTP/1.1 200 OK" CRLF CRLF, "200 [OK] 1.1 cl=-1 ka end;");
        /* Two on one connection. */
        RES("HTTP/1.1 200 OK" CRLF "Content-Length: 1" CRLF CRLF "a"
            "HTTP/1.1 404 Not Found" CRLF "Content-Length: 1" CRLF CRLF "b",
            "200 [OK] 1.1 Content-Length=[1] cl=1 ka body:a end;404 [Not Found] 1.1 Content-Length=[1] cl=1 "
            "ka body:b end;");

        static const char *const refused[] = {
                "HTTP/2 200 OK" CRLF CRLF,
                "HTTP/1.1 20 OK" CRLF CRLF,
                "HTTP/1.1 2000 OK" CRLF CRLF,
                "HTTP/1.1 099 OK" CRLF CRLF,
                "HTTP/1.1 600 OK" CRLF CRLF,
                "HTTP/1.1  200 OK" CRLF CRLF,
                "HTTP/1.1 200 O\x01K" CRLF CRLF,
                "HTTP/1.1 200 OK\nContent-Length: 0" CRLF CRLF,
                "ICY 200 OK" CRLF CRLF,
                CRLF "HTTP/1.1 200 OK" CRLF CRLF,
                "HTTP/1.1 200 OK" CRLF "Content-Length: 1" CRLF "Content-Length: 1" CRLF CRLF "a",
                "HTTP/1.1 200 OK" CRLF "Content-Length: 1" CRLF "Transfer-Encoding: chunked" CRLF CRLF "a",
                "HTTP/1.1 200 OK" CRLF "Transfer-Encoding: gzip" CRLF CRLF "a",
                "HTTP/1.0 200 OK" CRLF "Transfer-Encoding: chunked" CRLF CRLF "0" CRLF CRLF,
                "HTTP/1.1 200 OK" CRLF "X : a" CRLF CRLF,
        };
        for (size_t i = 0; i < ARRAY_SIZE(refused); i++) {
                _cleanup_free_ char *t =
                        transcript(HTTP1_RESPONSES, false, refused[i], strlen(refused[i]), NULL);
                if (strcmp(t, "error 502") != 0)
                        fail_msg("not refused: %s\n-> %s", refused[i], t);
        }
}

/* After HTTP1_END the parser stops: what follows belongs to another protocol. */
static void test_stops_at_end(void **state) {
        (void) state;
        static const char in[] = GET HOST "Connection: upgrade" CRLF "Upgrade: x" CRLF CRLF "\x00\x01other";
        struct http1_parser *p = http1_parser_new(HTTP1_REQUESTS);
        struct http1_event ev;
        size_t used, off = 0;
        do {
                http1_parse(p, (const uint8_t *) in + off, sizeof in - 1 - off, &used, &ev);
                off += used;
        } while (ev.type == HTTP1_HEAD);
        assert_int_equal(ev.type, HTTP1_END);
        assert_memory_equal(in + off, "\x00\x01other", 7);
        http1_parser_free(p);
        http1_parser_free(NULL);
}

static void test_fields(void **state) {
        (void) state;
        struct http1_field f[] = {
                {"Accept", "a"}, {"accept", "b"}, {"TE", " , gzip ,x ,, trailers"}, {"E", ""}};
        struct http1_head h = { .fields = f, .n_fields = ARRAY_SIZE(f) };
        assert_string_equal(http1_get(&h, "ACCEPT"), "a");
        assert_null(http1_get(&h, "Accep"));
        assert_true(http1_has_token(&h, "accept", "B"));
        assert_true(http1_has_token(&h, "te", "Gzip"));
        assert_true(http1_has_token(&h, "te", "x"));
        assert_true(http1_has_token(&h, "te", "trailers"));
        assert_false(http1_has_token(&h, "te", "gzi"));
        assert_false(http1_has_token(&h, "te", ""));
        assert_false(http1_has_token(&h, "e", "x"));
}

static void test_writers(void **state) {
        (void) state;
        _cleanup_buf_ struct buf b = { 0 };
        assert_int_equal(http1_write_request(&b, "GET", "/a?b"), 0);
        assert_int_equal(http1_write_field(&b, "Host", "x"), 0);
        assert_int_equal(http1_write_field(&b, "Empty", ""), 0);
        assert_int_equal(http1_write_end_of_head(&b), 0);
        assert_string_equal(buf_str(&b), "GET /a?b HTTP/1.1" CRLF "Host: x" CRLF "Empty: " CRLF CRLF);
        buf_clear(&b);
        assert_int_equal(http1_write_status(&b, 404), 0);
        assert_int_equal(http1_write_chunk(&b, "hello world, 16!", 16), 0);
        assert_int_equal(http1_write_chunk(&b, "", 0), 0);
        assert_int_equal(http1_write_last_chunk(&b), 0);
        assert_string_equal(buf_str(&b),
                            "HTTP/1.1 404 Not Found" CRLF "10" CRLF "hello world, 16!" CRLF "0" CRLF CRLF);
        assert_string_equal(http1_reason(599), "Unknown");

        buf_clear(&b);
        static const struct {
                const char *name, *value;
        } bad[] = { { "", "x" }, { "A b", "x" }, { "A:", "x" }, { "A\r\nB", "x" }, { "A", "x\r\nB: y" },
                    { "A", "x\n" }, { "A", "\x01" }, { "A", "x\x7f" } };
        for (size_t i = 0; i < ARRAY_SIZE(bad); i++)
                assert_int_equal(http1_write_field(&b, bad[i].name, bad[i].value), -EINVAL);
        assert_int_equal(http1_write_request(&b, "GET", "/a b"), -EINVAL);
        assert_int_equal(http1_write_request(&b, "GET", "/\r\nX: y"), -EINVAL);
        assert_int_equal(http1_write_request(&b, "GET", ""), -EINVAL);
        assert_int_equal(http1_write_request(&b, "G ET", "/"), -EINVAL);
        assert_int_equal(http1_write_status(&b, 99), -EINVAL);
        assert_int_equal(http1_write_status(&b, 1000), -EINVAL);
        assert_int_equal(b.len, 0);
        assert_int_equal(http1_write_field(&b, "A", "tab\tand \xc3\xa4"), 0);
}

static void check_path(const char *target, const char *want) {
        _cleanup_buf_ struct buf b = { 0 };
        int r = http1_path_of(target, &b);
        if (!want) {
                assert_int_equal(r, -EINVAL);
                return;
        }
        assert_int_equal(r, 0);
        assert_string_equal(buf_str(&b), want);
}

static void check_query(const char *target, const char *key, int ret, const char *want) {
        _cleanup_buf_ struct buf b = { 0 };
        assert_int_equal(http1_query_get(target, key, &b), ret);
        if (ret == 1)
                assert_string_equal(buf_str(&b), want);
}

static void test_targets(void **state) {
        (void) state;
        check_path("/a%2Fb?c", "/a%2Fb");
        check_path("/", "/");
        check_path("/?", "/");
        check_path("*", "*");
        check_path("http://h:1/x?y", "/x");
        check_path("HTTPS://h", "/");
        check_path("http://h?y", "/");
        check_path("host:80", NULL);

        check_query("/?a=1&b=2", "a", 1, "1");
        check_query("/?a=1&b=2", "b", 1, "2");
        check_query("/?a=1&b=2", "c", 0, NULL);
        check_query("/?a=1&a=2", "a", 1, "1");
        check_query("/?a", "a", 1, "");
        check_query("/?a=", "a", 1, "");
        check_query("/?ab=1", "a", 0, NULL);
        check_query("/", "a", 0, NULL);
        check_query("/?", "a", 0, NULL);
        check_query("/?%61=x%20y+z%2Bw", "a", 1, "x y z+w");
        check_query("/?a=b=c", "a", 1, "b=c");
        check_query("/?p=%E4%BD%A0", "p", 1, "\xe4\xbd\xa0");
        check_query("/?a=%", "a", -EINVAL, NULL);
        check_query("/?a=%4", "a", -EINVAL, NULL);
        check_query("/?a=%zz", "a", -EINVAL, NULL);
        check_query("/?a=%00", "a", -EINVAL, NULL);
        check_query("/?x=%zz&a=1", "a", 1, "1");

        _cleanup_buf_ struct buf b = { 0 };
        assert_int_equal(http1_percent_decode("a+b%2f", 6, false, &b), 0);
        assert_string_equal(buf_str(&b), "a+b/");
        assert_int_equal(http1_percent_decode("%41%", 4, false, &b), -EINVAL);
        assert_string_equal(buf_str(&b), "a+b/"); /* untouched on failure */
}

int main(void) {
        srand(1);
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(test_requests),       cmocka_unit_test(test_chunked),
                cmocka_unit_test(test_chunk_limits),   cmocka_unit_test(test_trailers_together),
                  cmocka_unit_test(test_smuggling),
                cmocka_unit_test(test_other_statuses), cmocka_unit_test(test_head_limits),
                cmocka_unit_test(test_responses),      cmocka_unit_test(test_stops_at_end),
                cmocka_unit_test(test_fields),         cmocka_unit_test(test_writers),
                cmocka_unit_test(test_targets),
        };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
