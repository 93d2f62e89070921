/* SPDX-License-Identifier: Apache-2.0 */

#include <string.h>

#include "base/buf.h"
#include "base/cleanup.h"
#include "test.h"
#include "wire/client_hello.h"

/* ---- making hellos ------------------------------------------------------------------------- */

static void put(struct buf *b, const void *data, size_t n) {
        assert_int_equal(buf_append(b, data, n), 0);
}

static void put_uint(struct buf *b, size_t v, size_t width) {
        for (size_t i = width; i-- > 0;) {
                uint8_t c = (uint8_t) (v >> (8 * i));
                put(b, &c, 1);
        }
}

static void put_ext(struct buf *b, unsigned type, const void *data, size_t n) {
        put_uint(b, type, 2);
        put_uint(b, n, 2);
        put(b, data, n);
}

static void put_name(struct buf *b, const char *name, size_t n) {
        struct buf e = { 0 };
        put_uint(&e, n + 3, 2);
        put_uint(&e, 0, 1);
        put_uint(&e, n, 2);
        put(&e, name, n);
        put_ext(b, 0, buf_data(&e), e.len);
        buf_done(&e);
}

/* The message around the extensions. */
static void message_of(struct buf *out, const struct buf *ext) {
        struct buf m = { 0 };
        put_uint(&m, 0x0303, 2);
        put(&m, "0123456789abcdef0123456789abcdef", 32);
        put_uint(&m, 0, 1);
        put(&m, "\0\x02\x13\x01", 4);
        put(&m, "\x01\0", 2);
        put_uint(&m, ext->len, 2);
        put(&m, buf_data(ext), ext->len);
        put_uint(out, 1, 1);
        put_uint(out, m.len, 3);
        put(out, buf_data(&m), m.len);
        buf_done(&m);
}

/* Records of at most `piece` bytes each. */
static void records_of(struct buf *out, const struct buf *m, size_t piece) {
        for (size_t i = 0; i < m->len; i += piece) {
                size_t n = m->len - i < piece ? m->len - i : piece;
                put(out, "\x16\x03\x01", 3);
                put_uint(out, n, 2);
                put(out, buf_data(m) + i, n);
        }
}

static enum client_hello_result feed_all(const struct buf *in, size_t piece, struct client_hello *h, const char **why) {
        struct client_hello_parser *p = client_hello_parser_new();
        enum client_hello_result r = CLIENT_HELLO_MORE;
        for (size_t i = 0; i < in->len && r == CLIENT_HELLO_MORE; i += piece)
                r = client_hello_feed(p, buf_data(in) + i, in->len - i < piece ? in->len - i : piece, h, why);
        client_hello_parser_free(p);
        return r;
}

static enum client_hello_result parse_ext(const struct buf *ext, struct client_hello *h, const char **why) {
        _cleanup_buf_ struct buf m = { 0 }, in = { 0 };
        message_of(&m, ext);
        records_of(&in, &m, 4096);
        return feed_all(&in, in.len, h, why);
}

static void refused_name(const char *name, size_t n) {
        _cleanup_buf_ struct buf ext = { 0 };
        struct client_hello h = { .name = "untouched" };
        const char *why = NULL;
        put_name(&ext, name, n);
        assert_int_equal(parse_ext(&ext, &h, &why), CLIENT_HELLO_ERROR);
        assert_non_null(why);
        assert_string_equal(h.name, "untouched");
}

/* ---- tests --------------------------------------------------------------------------------- */

static void test_hello(void **state) {
        (void) state;
        _cleanup_buf_ struct buf ext = { 0 }, m = { 0 };
        put_name(&ext, "API.Example.com", 15);
        put_ext(&ext, 16, "\0\x0c\x02h2\x08http/1.1", 14);
        put_ext(&ext, 43, "\x06\x7a\x7a\x03\x04\x03\x03", 7);
        put_ext(&ext, 0x4a4a, "", 0);
        message_of(&m, &ext);
        static const size_t sizes[] = { 1, 2, 3, 7, 100, 4096 };
        for (size_t r = 2; r < ARRAY_SIZE(sizes); r++)
                for (size_t i = 0; i < ARRAY_SIZE(sizes); i++) {
                        _cleanup_buf_ struct buf in = { 0 };
                        struct client_hello h = { 0 };
                        const char *why = "none";
                        records_of(&in, &m, sizes[r]);
                        assert_int_equal(feed_all(&in, sizes[i], &h, &why), CLIENT_HELLO_DONE);
                        assert_string_equal(h.name, "api.example.com");
                        assert_true(h.has_alpn && h.alpn_h2 && h.alpn_http11);
                        assert_int_equal(h.version, 0x0304);
                        assert_false(h.encrypted);
                }
}

static void test_plain(void **state) {
        (void) state;
        _cleanup_buf_ struct buf ext = { 0 };
        struct client_hello h;
        const char *why;
        assert_int_equal(parse_ext(&ext, &h, &why), CLIENT_HELLO_DONE);
        assert_string_equal(h.name, "");
        assert_int_equal(h.version, 0x0303);
        assert_false(h.has_alpn);
}

static void test_encrypted(void **state) {
        (void) state;
        static const unsigned types[] = { 0xfe0d, 0xffce };
        for (size_t i = 0; i < ARRAY_SIZE(types); i++) {
                _cleanup_buf_ struct buf ext = { 0 };
                struct client_hello h;
                const char *why;
                put_ext(&ext, types[i], "\0junk", 5);
                assert_int_equal(parse_ext(&ext, &h, &why), CLIENT_HELLO_DONE);
                assert_true(h.encrypted);
        }
}

static void test_names(void **state) {
        (void) state;
        char label[65], name[256];
        memset(label, 'a', sizeof label);
        memset(name, 'a', sizeof name);
        for (size_t i = 50; i < sizeof name; i += 50)
                name[i] = '.';
        refused_name("", 0);
        refused_name("a\0b", 3);
        refused_name("a.b.", 4);
        refused_name(".a", 2);
        refused_name("a..b", 4);
        refused_name("a b", 3);
        refused_name("a/b", 3);
        refused_name("::1", 3);
        refused_name("b\xc3\xbc" "cher.example", 14);
        refused_name(label, 64);
        refused_name(name, 254);

        _cleanup_buf_ struct buf two = { 0 }, doubled = { 0 }, kind = { 0 };
        struct client_hello h;
        const char *why;
        put_ext(&two, 0, "\0\x08\0\0\x01" "a\0\0\x01" "b", 10);
        assert_int_equal(parse_ext(&two, &h, &why), CLIENT_HELLO_ERROR);
        put_name(&doubled, "a.example", 9);
        put_name(&doubled, "b.example", 9);
        assert_int_equal(parse_ext(&doubled, &h, &why), CLIENT_HELLO_ERROR);
        put_ext(&kind, 0, "\0\x04\x01\0\x01" "a", 6);
        assert_int_equal(parse_ext(&kind, &h, &why), CLIENT_HELLO_ERROR);
}

static void test_limits(void **state) {
        (void) state;
        struct client_hello h;
        const char *why;
        _cleanup_buf_ struct buf ext = { 0 }, m = { 0 }, fine = { 0 }, many = { 0 }, behind = { 0 }, longer = { 0 };
        put_name(&ext, "a.example", 9);
        message_of(&m, &ext);

        /* as many records as are taken, and one more */
        size_t piece = (m.len + CLIENT_HELLO_RECORDS_MAX - 1) / CLIENT_HELLO_RECORDS_MAX;
        records_of(&fine, &m, piece);
        assert_int_equal(feed_all(&fine, fine.len, &h, &why), CLIENT_HELLO_DONE);
        for (size_t i = 0; i <= CLIENT_HELLO_RECORDS_MAX; i++)
                put(&many, i == 0 ? "\x16\x03\x01\0\x01\x01" : "\x16\x03\x01\0\x01\0", 6);
        assert_int_equal(feed_all(&many, many.len, &h, &why), CLIENT_HELLO_ERROR);

        put(&m, "x", 1);
        records_of(&behind, &m, 4096);
        assert_int_equal(feed_all(&behind, 1, &h, &why), CLIENT_HELLO_ERROR);

        /* by its announced length alone */
        put(&longer, "\x16\x03\x01\0\x04\x01\0\x40\0", 9);
        assert_int_equal(feed_all(&longer, 1, &h, &why), CLIENT_HELLO_ERROR);
        assert_string_equal(why, "the ClientHello is too long");
}

/* Every prefix waits, and no single wrong byte in a length is read as something else unnoticed. */
static void test_cut_and_bent(void **state) {
        (void) state;
        _cleanup_buf_ struct buf ext = { 0 }, m = { 0 }, in = { 0 };
        struct client_hello h;
        const char *why;
        put_name(&ext, "a.example", 9);
        put_ext(&ext, 43, "\x02\x03\x04", 3);
        message_of(&m, &ext);
        records_of(&in, &m, 4096);
        for (size_t n = 0; n < in.len; n++) {
                struct buf part = { .data = in.data, .start = in.start, .len = n };
                assert_int_equal(feed_all(&part, n ? n : 1, &h, &why), CLIENT_HELLO_MORE);
        }
        size_t at = in.start + in.len - (9 + 9 + 7); /* the length of the extensions, and behind it */
        for (size_t i = at - 2; i < at + 9; i++)
                for (int d = -1; d <= 1; d += 2) {
                        uint8_t was = in.data[i];
                        in.data[i] = (uint8_t) (was + d);
                        h = (struct client_hello){ 0 };
                        if (feed_all(&in, in.len, &h, &why) == CLIENT_HELLO_DONE)
                                assert_string_equal(h.name, ""); /* another extension's number */
                        in.data[i] = was;
                }
}

static void test_not_tls(void **state) {
        (void) state;
        struct client_hello h;
        const char *why;
        static const char *const other[] = { "GET / HTTP/1.1\r\n", "SSH-2.0-x\r\n", "\x16\x02", "\x80\x2e\x01",
                                             "\x16\x03\x01\xff\xff", "\x16\x03\x01\x01\x01\x02" };
        for (size_t i = 0; i < ARRAY_SIZE(other); i++) {
                struct buf b = { .data = (uint8_t *) (uintptr_t) other[i], .len = strlen(other[i]) };
                assert_int_equal(feed_all(&b, 1, &h, &why), CLIENT_HELLO_ERROR);
        }
        assert_int_equal(client_hello_is_tls((const uint8_t *) "G", 1), 0);
        assert_int_equal(client_hello_is_tls((const uint8_t *) "\x16", 1), -1);
        assert_int_equal(client_hello_is_tls((const uint8_t *) "\x16\x03", 2), 1);
        assert_int_equal(client_hello_is_tls((const uint8_t *) "\x16\x04", 2), 0);
}

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(test_hello),   cmocka_unit_test(test_plain),
                cmocka_unit_test(test_encrypted), cmocka_unit_test(test_names),
                cmocka_unit_test(test_limits),  cmocka_unit_test(test_cut_and_bent),
                cmocka_unit_test(test_not_tls),
        };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
