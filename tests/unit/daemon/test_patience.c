/* SPDX-License-Identifier: Apache-2.0 */
#include "peers/patience.h"

#include <errno.h>

#include "test.h"

static void test_not_there(void **state) {
        (void) state;
        struct patience p = { 0 };
        assert_true(patience_lasts(&p, -ENOTCONN, 5000));
        assert_true(patience_lasts(&p, -ENOTCONN, 5000 + PATIENCE_MS - 1));
        assert_false(patience_lasts(&p, -ENOTCONN, 5000 + PATIENCE_MS));
}

/* What an operation has taken before does not count. */
static void test_each_end_by_itself(void **state) {
        (void) state;
        struct patience p = { 0 };
        assert_true(patience_lasts(&p, -ENOTCONN, 5000));
        patience_answered(&p);
        const uint64_t minutes = 5000 + 20 * PATIENCE_MS;
        assert_true(patience_lasts(&p, -ECONNRESET, minutes));
        assert_true(patience_lasts(&p, -ENOTCONN, minutes + PATIENCE_MS - 1));
        assert_false(patience_lasts(&p, -ENOTCONN, minutes + PATIENCE_MS));
        patience_answered(&p);
        assert_true(patience_lasts(&p, -ENOTCONN, 2 * minutes));
}

static void test_it_ends_again_and_again(void **state) {
        (void) state;
        struct patience p = { 0 };
        for (unsigned i = 0; i < PATIENCE_ENDS_MAX; i++) {
                assert_true(patience_lasts(&p, -ECONNRESET, 5000));
                patience_answered(&p);
        }
        assert_false(patience_lasts(&p, -ECONNRESET, 5000));
}

static void test_of_no_matter(void **state) {
        (void) state;
        struct patience p = { 0 };
        assert_false(patience_lasts(&p, -ENOSPC, 5000));
        assert_false(patience_lasts(&p, -ETIMEDOUT, 5000));
}

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(test_not_there),
                cmocka_unit_test(test_each_end_by_itself),
                cmocka_unit_test(test_it_ends_again_and_again),
                cmocka_unit_test(test_of_no_matter),
        };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
