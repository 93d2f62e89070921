/* SPDX-License-Identifier: Apache-2.0 */
#include "test.h"

#include <stdlib.h>
#include <string.h>

#include "outlog.h"

static void order_and_channels(void **state) {
        (void) state;
        struct outlog l = { 0 };
        uint8_t ch = 9;
        const uint8_t *p;
        assert_int_equal(outlog_peek(&l, 0, &ch, &p), 0);
        assert_int_equal(outlog_append(&l, 0, "out", 3), 0);
        assert_int_equal(outlog_append(&l, 0, "put", 3), 0);
        assert_int_equal(outlog_append(&l, 1, "err", 3), 0);
        assert_int_equal(outlog_append(&l, 0, "x", 1), 0);
        assert_int_equal(l.end, 10);
        assert_int_equal(outlog_peek(&l, 0, &ch, &p), 6);
        assert_memory_equal(p, "output", 6);
        assert_int_equal(ch, 0);
        assert_int_equal(outlog_peek(&l, 4, &ch, &p), 2);
        assert_int_equal(outlog_peek(&l, 6, &ch, &p), 3);
        assert_int_equal(ch, 1);
        assert_int_equal(outlog_peek(&l, 9, &ch, &p), 1);
        assert_int_equal(outlog_peek(&l, 10, &ch, &p), 0);
        outlog_ack(&l, 5);
        assert_int_equal(outlog_kept(&l), 5);
        assert_int_equal(outlog_peek(&l, 4, &ch, &p), 0);
        assert_int_equal(outlog_peek(&l, 5, &ch, &p), 1);
        assert_memory_equal(p, "t", 1);
        outlog_ack(&l, 3); /* an old acknowledgement changes nothing */
        assert_int_equal(l.base, 5);
        outlog_ack(&l, 1000);
        assert_int_equal(l.base, 10);
        assert_int_equal(l.chunks, 0);
        outlog_done(&l);
}

/* Against a flat copy, with random sizes and acknowledgements. */
static void random_walk(void **state) {
        (void) state;
        enum { TOTAL = 2 * 1024 * 1024 };
        uint8_t *flat = malloc(TOTAL);
        assert_non_null(flat);
        struct outlog l = { 0 };
        srand(1);
        size_t n = 0;
        while (n < TOTAL) {
                size_t m = 1 + (size_t) rand() % 70000;
                if (m > TOTAL - n)
                        m = TOTAL - n;
                for (size_t i = 0; i < m; i++)
                        flat[n + i] = (uint8_t) rand();
                assert_int_equal(outlog_append(&l, (uint8_t) (rand() % 2), flat + n, m), 0);
                n += m;
                if (rand() % 3 == 0)
                        outlog_ack(&l, l.base + (uint64_t) rand() % (outlog_kept(&l) + 1));
                uint64_t off = l.base;
                while (off < l.end) {
                        uint8_t ch;
                        const uint8_t *p;
                        size_t got = outlog_peek(&l, off, &ch, &p);
                        assert_true(got > 0);
                        assert_memory_equal(p, flat + off, got);
                        off += got;
                }
        }
        outlog_done(&l);
        free(flat);
}

int main(void) {
        const struct CMUnitTest tests[] = { cmocka_unit_test(order_and_channels), cmocka_unit_test(random_walk) };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
