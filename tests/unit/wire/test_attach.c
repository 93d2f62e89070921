/* SPDX-License-Identifier: Apache-2.0 */

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "test.h"
#include "wire/attach.h"

static void test_frames(void **state) {
        (void) state;
        _cleanup_buf_ struct buf out = { 0 };
        uint8_t offset[8];
        attach_put_u64(offset, 0x0102030405060708u);
        assert_memory_equal(offset, "\1\2\3\4\5\6\7\10", 8);
        assert_true(attach_get_u64(offset) == 0x0102030405060708u);
        attach_put_u64(offset, UINT64_MAX);
        assert_true(attach_get_u64(offset) == UINT64_MAX);

        assert_int_equal(attach_write(&out, ATTACH_STDOUT, offset, 8, "hi", 2), 0);
        assert_int_equal(attach_write(&out, ATTACH_STDIN_EOF, NULL, 0, NULL, 0), 0);
        assert_memory_equal(buf_data(&out), "\x11\0\0\0\x0a\xff\xff\xff\xff\xff\xff\xff\xffhi\x02\0\0\0\0",
                            20);

        struct attach_reader r = { 0 };
        uint8_t type = 0;
        const uint8_t *d;
        size_t n;
        for (size_t i = 0; i < 15; i++) {
                assert_int_equal(attach_reader_peek(&r, &type, &d, &n), 0);
                assert_int_equal(buf_append(&r.in, buf_data(&out) + i, 1), 0);
        }
        assert_int_equal(attach_reader_peek(&r, &type, &d, &n), 1);
        assert_int_equal(type, ATTACH_STDOUT);
        assert_int_equal(n, 10);
        assert_memory_equal(d + 8, "hi", 2);
        assert_int_equal(buf_append(&r.in, buf_data(&out) + 15, 5), 0);
        attach_reader_next(&r);
        assert_int_equal(attach_reader_peek(&r, &type, &d, &n), 1);
        assert_int_equal(type, ATTACH_STDIN_EOF);
        assert_int_equal(n, 0);
        attach_reader_next(&r);
        assert_int_equal(attach_reader_peek(&r, &type, &d, &n), 0);
        attach_reader_next(&r);
        buf_done(&r.in);
}

static void test_limits(void **state) {
        (void) state;
        _cleanup_buf_ struct buf out = { 0 };
        _cleanup_free_ char *big = calloc(1, ATTACH_PAYLOAD_MAX + 1);
        assert_non_null(big);
        assert_int_equal(attach_write(&out, ATTACH_STDIN, big, ATTACH_PAYLOAD_MAX, NULL, 0), 0);
        buf_clear(&out);
        assert_int_equal(attach_write(&out, ATTACH_STDIN, big, ATTACH_PAYLOAD_MAX + 1, NULL, 0), -EMSGSIZE);
        assert_int_equal(attach_write(&out, ATTACH_STDIN, big, 1, big, ATTACH_PAYLOAD_MAX), -EMSGSIZE);
        assert_int_equal(attach_write(&out, ATTACH_STDIN, big, 0, big, SIZE_MAX), -EMSGSIZE);
        assert_int_equal(out.len, 0);

        struct attach_reader r = { 0 };
        uint8_t type;
        const uint8_t *d;
        size_t n;
        assert_int_equal(buf_append(&r.in, "\x01\x00\x04\x00\x00", 5), 0);
        assert_int_equal(attach_reader_peek(&r, &type, &d, &n), 0);
        buf_clear(&r.in);
        assert_int_equal(buf_append(&r.in, "\x01\x00\x04\x00\x01", 5), 0);
        assert_int_equal(attach_reader_peek(&r, &type, &d, &n), -EMSGSIZE);
        buf_done(&r.in);
}

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(test_frames),
                cmocka_unit_test(test_limits),
        };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
