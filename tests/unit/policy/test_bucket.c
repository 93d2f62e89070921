/* SPDX-License-Identifier: Apache-2.0 */

#include <stdint.h>

#include "base/cleanup.h"
#include "policy/bucket.h"
#include "test.h"

static unsigned take_all(struct bucket *b, uint64_t rate, uint64_t burst, uint64_t now) {
        unsigned n = 0;
        while (n < 100000 && bucket_take(b, rate, burst, now))
                n++;
        return n;
}

static void test_rate(void **state) {
        struct bucket b = { 0 };
        (void) state;
        assert_int_equal(take_all(&b, 60, 5, 0), 5);
        assert_int_equal(take_all(&b, 60, 5, 999), 0);
        assert_int_equal(take_all(&b, 60, 5, 1000), 1);
        assert_int_equal(take_all(&b, 60, 5, 3500), 2);
        assert_int_equal(take_all(&b, 60, 5, 4000), 1); /* the half is not lost */
        assert_int_equal(take_all(&b, 60, 5, 1000000), 5);
        assert_int_equal(take_all(&b, 60, 5, 0), 0);
        assert_int_equal(take_all(&b, 60, 5, 1000999), 0);
        assert_int_equal(take_all(&b, 60, 5, 1001000), 1);
        assert_int_equal(take_all(&b, 0, 5, 100000000), 0); /* never refilled */
        assert_int_equal(take_all(&b, 60, 0, 200000000), 0);
}

/* One a minute, asked each millisecond: fractions add up exactly. */
static void test_slow(void **state) {
        struct bucket b = { 0 };
        unsigned n = 0;
        (void) state;
        for (uint64_t t = 0; t < 600000; t++)
                n += bucket_take(&b, 1, 1, t) ? 1 : 0;
        assert_int_equal(n, 10);
}

static void test_extremes(void **state) {
        struct bucket b = { 0 };
        (void) state;
        assert_true(bucket_take(&b, UINT64_MAX, UINT64_MAX, UINT64_MAX));
        assert_true(bucket_take(&b, UINT64_MAX, UINT64_MAX, 0));
        b = (struct bucket){ 0 };
        for (unsigned i = 0; i < 1000; i++)
                assert_true(bucket_take(&b, 1, UINT64_MAX, 0));
        assert_true(bucket_take(&b, BUCKET_RATE_MAX, 1, UINT64_MAX));
        assert_false(bucket_take(&b, BUCKET_RATE_MAX, 1, UINT64_MAX));
}

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(test_rate),
                cmocka_unit_test(test_slow),
                cmocka_unit_test(test_extremes),
        };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
