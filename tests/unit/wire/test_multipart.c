/* SPDX-License-Identifier: Apache-2.0 */

/* As in test_http1.c: each input whole, byte by byte and in random pieces, one transcript. */

#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/cleanup.h"
#include "test.h"
#include "wire/multipart.h"

#define CRLF "\r\n"
#define TYPE "multipart/form-data; boundary=B"
#define CD "Content-Disposition: form-data; "
#define PART(x) "--B" CRLF CD x CRLF CRLF
#define CLOSE CRLF "--B--" CRLF

struct script {
        struct buf text;
        const char *reason;
};

static bool feed(struct script *s, struct multipart_parser *p, const uint8_t *d, size_t n) {
        for (;;) {
                struct multipart_event ev;
                size_t used;
                multipart_parse(p, d, n, &used, &ev);
                assert_true(used <= n);
                d += used;
                n -= used;
                switch (ev.type) {
                case MULTIPART_NEED_DATA:
                        assert_int_equal(n, 0);
                        return true;
                case MULTIPART_PART:
                        buf_printf(&s->text, "<%s", ev.part->name);
                        if (ev.part->filename)
                                buf_printf(&s->text, "|%s", ev.part->filename);
                        if (ev.part->content_type)
                                buf_printf(&s->text, "|%s", ev.part->content_type);
                        buf_puts(&s->text, ":");
                        assert_true((ev.part->filename == NULL) == (ev.part->filename_raw == NULL));
                        break;
                case MULTIPART_DATA:
                        assert_true(ev.n > 0);
                        buf_append(&s->text, ev.data, ev.n);
                        break;
                case MULTIPART_PART_END:
                        buf_puts(&s->text, ">");
                        break;
                case MULTIPART_END:
                        buf_puts(&s->text, "end");
                        break;
                case MULTIPART_ERROR:
                        assert_non_null(ev.reason);
                        s->reason = ev.reason;
                        buf_puts(&s->text, "error");
                        return false;
                default:
                        fail();
                }
        }
}

static void run(struct script *s, const char *type, const char *d, size_t n, size_t max_piece) {
        struct multipart_parser *p = NULL;
        assert_int_equal(multipart_new(type, &p, NULL), 0);
        bool alive = true;
        while (alive && n > 0) {
                size_t take = max_piece == 0 ? n : max_piece == 1 ? 1 : 1 + (size_t) rand() % max_piece;
                if (take > n)
                        take = n;
                uint8_t *copy = malloc(take);
                assert_non_null(copy);
                memcpy(copy, d, take);
                alive = feed(s, p, copy, take);
                free(copy);
                d += take;
                n -= take;
        }
        if (alive && multipart_eof(p) < 0)
                buf_puts(&s->text, "cut");
        if (!alive)
                assert_int_equal(multipart_eof(p), -EPROTO);
        multipart_free(p);
}

static char *transcript(const char *type, const char *d, size_t n, const char **reason) {
        static const size_t pieces[] = { 0, 1, 2, 3, 5, 11, 40 };
        char *first = NULL;
        for (size_t i = 0; i < ARRAY_SIZE(pieces); i++) {
                struct script s = { 0 };
                run(&s, type, d, n, pieces[i]);
                char *t = strdup(buf_str(&s.text));
                assert_non_null(t);
                buf_done(&s.text);
                if (reason)
                        *reason = s.reason;
                if (first)
                        assert_string_equal(t, first);
                else
                        first = STEAL(t);
                free(t);
        }
        return first;
}

static void expect_type(const char *type, const char *in, size_t n, const char *want) {
        _cleanup_free_ char *got = transcript(type, in, n, NULL);
        assert_string_equal(got, want);
}
#define MP(in, want) expect_type(TYPE, in, sizeof(in) - 1, want)

static void test_parts(void **state) {
        (void) state;
        MP(PART("name=\"a\"") "hello" CLOSE, "<a:hello>end");
        MP(PART("name=a") "hello" CLOSE, "<a:hello>end");
        MP(PART("name=\"a\"") CLOSE, "<a:>end");
        MP(PART("name=\"a\"") "1" CRLF PART("name=\"b\"") "2" CLOSE, "<a:1><b:2>end");
        MP("--B" CRLF CD "name=\"file\"; filename=\"x.bin\"" CRLF
           "Content-Type: application/octet-stream" CRLF "X-Other: y" CRLF CRLF "data" CLOSE,
           "<file|x.bin|application/octet-stream:data>end");
        MP("--B--", "end");
        MP("--B--" CRLF "epilogue", "end");
        MP("preamble" CRLF PART("name=\"a\"") "x" CLOSE, "<a:x>end");
        MP(CRLF PART("name=\"a\"") "x" CLOSE, "<a:x>end");
        /* White space after a delimiter. */
        MP("--B \t" CRLF CD "name=\"a\"" CRLF CRLF "x" CLOSE, "<a:x>end");
        /* Without the closing delimiter nothing is complete. */
        MP("", "cut");
        MP("--B", "cut");
        MP("--B-", "cut");
        MP(PART("name=\"a\"") "hello", "<a:hellocut");
        MP(PART("name=\"a\"") "hello" CRLF "--B", "<a:hellocut");
        MP(PART("name=\"a\"") "hello" CRLF "--B" CRLF, "<a:hello>cut");
}

static void test_content_like_delimiter(void **state) {
        (void) state;
        MP(PART("name=\"a\"") CRLF CRLF "-" CRLF "--" CRLF "--b" CRLF "--A--" CLOSE,
           "<a:" CRLF CRLF "-" CRLF "--" CRLF "--b" CRLF "--A-->end");
        MP(PART("name=\"a\"") "x--B--y" CLOSE, "<a:x--B--y>end");
        MP(PART("name=\"a\"") "\n--B--" CLOSE, "<a:\n--B-->end");
        MP(PART("name=\"a\"") "\r\r\n--B--", "<a:\r>end");
        MP(PART("name=\"a\"") "\r\n\r\n--B--", "<a:\r\n>end");
        MP(PART("name=\"a\"") "\r\n-\r\n--\r\n--B--", "<a:\r\n-\r\n-->end");
        /* The delimiter and then something else. */
        MP(PART("name=\"a\"") "1\r\n--BB" CLOSE, "<a:1\r\n--BB>end");
        MP(PART("name=\"a\"") "1\r\n--B-x" CLOSE, "<a:1\r\n--B-x>end");
        MP(PART("name=\"a\"") "1\r\n--B\rx" CLOSE, "<a:1\r\n--B\rx>end");
        MP(PART("name=\"a\"") "1\r\n--B\r\r\n--B--", "<a:1\r\n--B\r>end");
        MP(PART("name=\"a\"") "1\r\n--B-\r\n--B--", "<a:1\r\n--B->end");
        MP(PART("name=\"a\"") "1\r\n--B\n" CLOSE, "<a:1\r\n--B\n>end");
        MP("--Bx" CRLF PART("name=\"a\"") "y" CLOSE, "<a:y>end");
        MP(PART("name=\"a\"") "1\r\n--B x" CLOSE, "<a:1error");
        MP(PART("name=\"a\"") "1\r\n--B \rx" CLOSE, "<a:1error");
}

static void test_names(void **state) {
        (void) state;
        MP(PART("name=\"file\"; filename=\"dir/sub/a b.txt\"") CLOSE, "<file|dir/sub/a b.txt:>end");
        MP(PART("name=\"file\"; filename=\"\xe4\xbd\xa0\xe5\xa5\xbd.txt\"") CLOSE,
           "<file|\xe4\xbd\xa0\xe5\xa5\xbd.txt:>end");
        /* Browsers: quotes and line ends only. */
        MP(PART("name=\"file\"; filename=\"a%22b%0D%0a%20%41%\"") CLOSE, "<file|a\"b\r\n%20%41%:>end");
        /* Others. */
        MP(PART("name=\"file\"; filename=\"a\\\"b\\\\c\"") CLOSE, "<file|a\"b\\c:>end");
        MP(PART("name=\"file\"; filename=\"C:\\dir\\x\"") CLOSE, "<file|C:\\dir\\x:>end");
        MP(PART("name=\"file\"; filename=\"a;b=c\"") CLOSE, "<file|a;b=c:>end");
        MP(PART("name=\"file\"; filename=\"\"") CLOSE, "<file|:>end");
        MP(PART("name=\"file\"; filename=plain.txt; x=y") CLOSE, "<file|plain.txt:>end");
        MP(PART("filename=\"x\"; name=\"n\"") CLOSE, "<n|x:>end");
        MP(PART("NAME=\"n\" ; FileName = \"x\"") CLOSE, "error");
        MP(PART("NAME=\"n\" ;\t FileName=\"x\";") CLOSE, "<n|x:>end");
        MP(PART("name=\"n\"; filename=\"a\"; filename*=UTF-8''b") CLOSE, "<n|a:>end");
        MP(PART("name=\"\"") CLOSE, "<:>end");

        struct multipart_parser *p = NULL;
        assert_int_equal(multipart_new(TYPE, &p, NULL), 0);
        static const char in[] = PART("name=\"f\"; filename=\"a%22b\"");
        struct multipart_event ev;
        size_t used;
        multipart_parse(p, (const uint8_t *) in, sizeof in - 1, &used, &ev);
        assert_int_equal(ev.type, MULTIPART_PART);
        assert_string_equal(ev.part->filename_raw, "a%22b");
        assert_string_equal(ev.part->filename, "a\"b");
        multipart_free(p);
        multipart_free(NULL);
}

static void test_refused(void **state) {
        (void) state;
        static const char *const bad[] = {
                "--B" CRLF CRLF "x" CLOSE,
                "--B" CRLF "Content-Type: a" CRLF CRLF "x" CLOSE,
                "--B" CRLF "Content-Disposition: attachment; name=\"a\"" CRLF CRLF "x" CLOSE,
                "--B" CRLF "Content-Disposition: form-data" CRLF CRLF "x" CLOSE,
                PART("filename=\"x\"") CLOSE,
                PART("name=\"a\"; name=\"b\"") CLOSE,
                PART("name=\"a\"; filename=\"b\"; filename=\"c\"") CLOSE,
                PART("name=\"a") CLOSE,
                PART("name=\"a\" x") CLOSE,
                PART("name=a b") CLOSE,
                PART("name=") CLOSE,
                PART("=\"a\"") CLOSE,
                PART("name") CLOSE,
                PART("name=\"a\x01\"") CLOSE,
                "--B" CRLF CD "name=\"a\"" CRLF CD "name=\"a\"" CRLF CRLF CLOSE,
                "--B" CRLF CD "name=\"a\"" CRLF "Content-Transfer-Encoding: base64" CRLF CRLF CLOSE,
                "--B" CRLF CD "name=\"a\"\n\r\n" CLOSE,
                "--B" CRLF CD "name=\"a\";" CRLF " filename=\"b\"" CRLF CRLF CLOSE,
                "--B" CRLF "bad header" CRLF CRLF CLOSE,
        };
        for (size_t i = 0; i < ARRAY_SIZE(bad); i++) {
                _cleanup_free_ char *t = transcript(TYPE, bad[i], strlen(bad[i]), NULL);
                if (strcmp(t, "error") != 0)
                        fail_msg("not refused: %s\n-> %s", bad[i], t);
        }
        MP("--B" CRLF CD "name=\"a\0\"" CRLF CRLF CLOSE, "error");
        MP("--B" CRLF CD "name=\"a\"" CRLF "Content-Transfer-Encoding: Binary" CRLF CRLF CLOSE, "<a:>end");
}

static void test_limits(void **state) {
        (void) state;
        _cleanup_buf_ struct buf b = { 0 };
        for (size_t i = 0; i <= MULTIPART_PREAMBLE_MAX; i++)
                buf_puts(&b, "x");
        expect_type(TYPE, (const char *) buf_data(&b), b.len, "error");
        buf_puts(&b, CRLF PART("name=\"a\"") CLOSE);
        expect_type(TYPE, (const char *) buf_data(&b), b.len, "error");

        buf_clear(&b);
        buf_puts(&b, "--B--");
        for (size_t i = 0; i <= MULTIPART_PREAMBLE_MAX; i++)
                buf_puts(&b, "x");
        expect_type(TYPE, (const char *) buf_data(&b), b.len, "enderror");

        const char *reason;
        buf_clear(&b);
        buf_puts(&b, "--B" CRLF CD "name=\"");
        for (size_t i = 0; i < MULTIPART_HEAD_MAX; i++)
                buf_puts(&b, "n");
        _cleanup_free_ char *t = transcript(TYPE, (const char *) buf_data(&b), b.len, &reason);
        assert_string_equal(t, "error");
        assert_string_equal(reason, "a part's header lines are too long");

        buf_clear(&b);
        buf_puts(&b, "--B" CRLF CD "name=\"a\"" CRLF);
        for (size_t i = 0; i < MULTIPART_HEADERS_MAX; i++)
                buf_puts(&b, "X: y" CRLF);
        buf_puts(&b, CRLF CLOSE);
        _cleanup_free_ char *u = transcript(TYPE, (const char *) buf_data(&b), b.len, &reason);
        assert_string_equal(u, "error");
        assert_string_equal(reason, "a part has too many header lines");

        buf_clear(&b);
        for (size_t i = 0; i <= MULTIPART_PARTS_MAX; i++)
                buf_puts(&b, CRLF PART("name=a"));
        struct script s = { 0 };
        run(&s, TYPE, (const char *) buf_data(&b), b.len, 0);
        assert_string_equal(s.reason, "too many parts");
        buf_done(&s.text);
}

static void check_type(const char *type, int want) {
        struct multipart_parser *p = NULL;
        struct error err = ERROR_INIT;
        int r = multipart_new(type, &p, &err);
        if (r != want)
                fail_msg("%s: %d, not %d", type, r, want);
        if (r < 0)
                assert_true(err.msg[0] != '\0');
        multipart_free(p);
}

static void test_content_type(void **state) {
        (void) state;
        check_type("multipart/form-data; boundary=x", 0);
        check_type("Multipart/Form-Data;charset=utf-8;BOUNDARY=\"x y\"", 0);
        check_type("multipart/form-data; boundary=----WebKitFormBoundaryABC", 0);
        check_type("multipart/form-data; "
                   "boundary=0123456789012345678901234567890123456789012345678901234567890123456789",
                   0);
        check_type("multipart/form-data; "
                   "boundary=01234567890123456789012345678901234567890123456789012345678901234567890",
                   -EINVAL);
        check_type("multipart/form-data", -EINVAL);
        check_type("multipart/form-data; boundary=", -EINVAL);
        check_type("multipart/form-data; boundary=\"\"", -EINVAL);
        check_type("multipart/form-data; boundary=\"x \"", -EINVAL);
        check_type("multipart/form-data; boundary=\"x\xc3\xa4\"", -EINVAL);
        check_type("multipart/form-data; boundary=a; boundary=b", -EINVAL);
        check_type("multipart/form-data; boundary=\"a", -EINVAL);
        check_type("multipart/form-data boundary=a", -EINVAL);
        check_type("multipart/mixed; boundary=a", -EINVAL);
        check_type("multipart/form-datax; boundary=a", -EINVAL);
        check_type("application/json", -EINVAL);
        check_type("", -EINVAL);
        expect_type(
                "multipart/form-data; boundary=\"a b'()+_,-./:=?c\"",
                "--a b'()+_,-./:=?c" CRLF CD "name=x" CRLF CRLF "1" CRLF "--a b'()+_,-./:=?c--",
                0 + sizeof("--a b'()+_,-./:=?c" CRLF CD "name=x" CRLF CRLF "1" CRLF "--a b'()+_,-./:=?c--") -
                        1,
                "<x:1>end");
}

/* Every byte value, at every offset from a delimiter look-alike. */
static void test_binary(void **state) {
        (void) state;
        for (unsigned seed = 0; seed < 50; seed++) {
                srand(seed);
                uint8_t content[400];
                for (size_t i = 0; i < sizeof content; i++)
                        content[i] = (uint8_t) (rand() % 3 ? "\r\n-Bx"[rand() % 5] : rand());
                _cleanup_buf_ struct buf in = { 0 }, got = { 0 };
                buf_puts(&in, PART("name=\"a\""));
                buf_append(&in, content, sizeof content);
                buf_puts(&in, CLOSE);
                /* Only where the content has no real delimiter. */
                bool real = false;
                for (size_t i = 0; i + 7 <= sizeof content; i++)
                        real = real ||
                               (memcmp(content + i, "\r\n--B", 5) == 0 && strchr("\r- \t", content[i + 5]));
                if (real)
                        continue;
                for (size_t piece = 1; piece < 12; piece++) {
                        struct multipart_parser *p = NULL;
                        assert_int_equal(multipart_new(TYPE, &p, NULL), 0);
                        buf_clear(&got);
                        bool ended = false;
                        for (size_t off = 0; off < in.len; off += piece) {
                                const uint8_t *d = buf_data(&in) + off;
                                size_t n = in.len - off < piece ? in.len - off : piece, used;
                                struct multipart_event ev;
                                do {
                                        multipart_parse(p, d, n, &used, &ev);
                                        d += used;
                                        n -= used;
                                        assert_int_not_equal(ev.type, MULTIPART_ERROR);
                                        if (ev.type == MULTIPART_DATA)
                                                buf_append(&got, ev.data, ev.n);
                                        ended = ended || ev.type == MULTIPART_END;
                                } while (ev.type != MULTIPART_NEED_DATA);
                        }
                        assert_true(ended);
                        assert_int_equal(got.len, sizeof content);
                        assert_memory_equal(buf_data(&got), content, sizeof content);
                        multipart_free(p);
                }
        }
}

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(test_parts),  cmocka_unit_test(test_content_like_delimiter),
                cmocka_unit_test(test_names),  cmocka_unit_test(test_refused),
                cmocka_unit_test(test_limits), cmocka_unit_test(test_content_type),
                cmocka_unit_test(test_binary),
        };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
