/* SPDX-License-Identifier: Apache-2.0 */

#include <errno.h>
#include <string.h>

#include "base/cleanup.h"
#include "test.h"
#include "wire/connect.h"

static void test_frames(void **state) {
        (void) state;
        _cleanup_buf_ struct buf out = { 0 };
        assert_int_equal(connect_write_frame(&out, 0, "{\"a\":1}", 7), 0);
        assert_int_equal(connect_write_frame(&out, CONNECT_FLAG_END, NULL, 0), 0);
        assert_int_equal(out.len, 5 + 7 + 5);
        assert_memory_equal(buf_data(&out), "\0\0\0\0\x07{\"a\":1}\x02\0\0\0\0", 17);

        struct connect_reader r = { .max = 7 };
        uint8_t flags = 9;
        const uint8_t *d = NULL;
        size_t n = 0;
        for (size_t i = 0; i < 12; i++) {
                assert_int_equal(connect_reader_peek(&r, &flags, &d, &n), 0);
                assert_int_equal(flags, 9); /* untouched until there is a frame */
                assert_int_equal(buf_append(&r.in, buf_data(&out) + i, 1), 0);
        }
        for (int again = 0; again < 2; again++) {
                assert_int_equal(connect_reader_peek(&r, &flags, &d, &n), 1);
                assert_int_equal(flags, 0);
                assert_int_equal(n, 7);
                assert_memory_equal(d, "{\"a\":1}", 7);
        }
        assert_int_equal(buf_append(&r.in, buf_data(&out) + 12, 5), 0);
        connect_reader_next(&r);
        assert_int_equal(connect_reader_peek(&r, &flags, &d, &n), 1);
        assert_int_equal(flags, CONNECT_FLAG_END);
        assert_int_equal(n, 0);
        connect_reader_next(&r);
        assert_int_equal(connect_reader_peek(&r, &flags, &d, &n), 0);
        connect_reader_next(&r); /* nothing there: nothing happens */
        buf_done(&r.in);
}

/* Refused by what is announced, before it has arrived. */
static void test_limit(void **state) {
        (void) state;
        struct connect_reader r = { .max = 100 };
        uint8_t flags;
        const uint8_t *d;
        size_t n;
        assert_int_equal(buf_append(&r.in, "\0\0\0\0\x65", 5), 0);
        assert_int_equal(connect_reader_peek(&r, &flags, &d, &n), -EMSGSIZE);
        buf_clear(&r.in);
        assert_int_equal(buf_append(&r.in, "\0\xff\xff\xff\xff", 5), 0);
        assert_int_equal(connect_reader_peek(&r, &flags, &d, &n), -EMSGSIZE);
        buf_done(&r.in);

        struct buf out = BUF_INIT(8);
        assert_int_equal(connect_write_frame(&out, 0, "12345", 5), -ENOBUFS);
        assert_int_equal(out.len, 0);
        buf_done(&out);
}

static void test_codes(void **state) {
        (void) state;
        assert_string_equal(connect_code_name(CONNECT_NOT_FOUND), "not_found");
        assert_int_equal(connect_code_http(CONNECT_NOT_FOUND), 404);
        assert_int_equal(connect_code_http(CONNECT_FAILED_PRECONDITION), 400);
        assert_int_equal(connect_code_http(CONNECT_CANCELED), 499);
        for (unsigned c = CONNECT_OK + 1; c < CONNECT_CODE_MAX_; c++)
                assert_int_equal(connect_code_from_name(connect_code_name((enum connect_code) c)), c);
        assert_int_equal(connect_code_from_name("nonsense"), CONNECT_UNKNOWN);
        assert_int_equal(connect_code_from_name("ok"), CONNECT_UNKNOWN); /* no error is called so */
        assert_string_equal(connect_code_name((enum connect_code) 99), "unknown");
        assert_int_equal(connect_code_http((enum connect_code) 99), 500);
}

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(test_frames),
                cmocka_unit_test(test_limit),
                cmocka_unit_test(test_codes),
        };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
