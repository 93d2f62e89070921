/* SPDX-License-Identifier: Apache-2.0 */
#include "test.h"

#include <errno.h>
#include <string.h>

#include "base/buf.h"

static void queue_order(void **state) {
        (void) state;
        struct buf b = BUF_INIT(0);
        uint8_t next_in = 0, next_out = 0;
        /* Appends and consumes different amounts, so that the live part moves and wraps to the front. */
        for (int round = 0; round < 1000; round++) {
                uint8_t piece[97];
                size_t n = (size_t) (round * 7 % 97);
                for (size_t i = 0; i < n; i++)
                        piece[i] = next_in++;
                assert_int_equal(buf_append(&b, piece, n), 0);
                size_t take = (size_t) (round * 5 % 90);
                if (take > b.len)
                        take = b.len;
                for (size_t i = 0; i < take; i++)
                        assert_int_equal(buf_data(&b)[i], next_out++);
                buf_consume(&b, take);
        }
        assert_int_equal(b.len, (uint8_t) (next_in - next_out) % 256 + (b.len & ~(size_t) 255));
        buf_done(&b);
}

static void limit_holds(void **state) {
        (void) state;
        struct buf b = BUF_INIT(10);
        assert_int_equal(buf_append(&b, "0123456789", 10), 0);
        assert_int_equal(buf_append(&b, "x", 1), -ENOBUFS);
        assert_int_equal(b.len, 10);
        buf_consume(&b, 4);
        assert_int_equal(buf_append(&b, "abcd", 4), 0);
        assert_memory_equal(buf_data(&b), "456789abcd", 10);
        uint8_t *to;
        assert_int_equal(buf_reserve(&b, SIZE_MAX, &to), -ENOBUFS);
        buf_done(&b);
}

static void nothing(void **state) {
        (void) state;
        struct buf b = BUF_INIT(0);
        uint8_t *to = NULL;
        assert_int_equal(buf_reserve(&b, 0, &to), 0);
        buf_commit(&b, 0);
        assert_int_equal(buf_append(&b, NULL, 0), 0);
        assert_int_equal(b.len, 0);
        buf_done(&b);
}

static void text(void **state) {
        (void) state;
        struct buf b = BUF_INIT(0);
        assert_string_equal(buf_str(&b), "");
        assert_int_equal(buf_puts(&b, "a="), 0);
        assert_int_equal(buf_printf(&b, "%d,%s", 42, "xyz"), 0);
        assert_string_equal(buf_str(&b), "a=42,xyz");
        assert_int_equal(b.len, 8);
        buf_consume(&b, 100);
        assert_int_equal(b.len, 0);
        buf_done(&b);
        buf_done(NULL);
}

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(queue_order),
                cmocka_unit_test(limit_holds),
                cmocka_unit_test(nothing),
                cmocka_unit_test(text),
        };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
