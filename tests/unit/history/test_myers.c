/* SPDX-License-Identifier: Apache-2.0 */
#include "test.h"

#include <stdlib.h>
#include <string.h>

#include "myers.h"

#define MAX 40

static uint32_t seed = 1;

static uint32_t next(uint32_t below) {
        seed = seed * 1664525 + 1013904223;
        return (seed >> 8) % below;
}

/* Length of the longest common subsequence, the plain way. */
static size_t common(const uint32_t *a, size_t an, const uint32_t *b, size_t bn) {
        size_t best[MAX + 1][MAX + 1] = { { 0 } };

        for (size_t i = 1; i <= an; i++)
                for (size_t k = 1; k <= bn; k++) {
                        size_t up = best[i - 1][k], left = best[i][k - 1];
                        best[i][k] = a[i - 1] == b[k - 1] ? best[i - 1][k - 1] + 1 : up > left ? up : left;
                }
        return best[an][bn];
}

/* What stays of a must be what stays of b. Returns how many lines stay. */
static size_t check_stays(const uint32_t *a, size_t an, const bool *gone, const uint32_t *b, size_t bn, const bool *came) {
        size_t i = 0, k = 0, n = 0;

        for (;;) {
                while (i < an && gone[i])
                        i++;
                while (k < bn && came[k])
                        k++;
                if (i == an || k == bn)
                        break;
                assert_int_equal(a[i], b[k]);
                i++;
                k++;
                n++;
        }
        assert_int_equal(i, an);
        assert_int_equal(k, bn);
        return n;
}

static void is_the_shortest_way(void **state) {
        uint32_t a[MAX], b[MAX];
        bool gone[MAX], came[MAX];

        (void) state;
        for (int round = 0; round < 20000; round++) {
                size_t an = next(MAX + 1), bn = next(MAX + 1);
                uint32_t letters = 1 + next(6);
                for (size_t i = 0; i < an; i++)
                        a[i] = next(letters);
                for (size_t i = 0; i < bn; i++)
                        b[i] = next(letters);
                assert_int_equal(myers_diff(a, an, b, bn, 2 * MAX, gone, came), 0);
                assert_int_equal(check_stays(a, an, gone, b, bn, came), common(a, an, b, bn));
        }
}

static void a_longer_way_than_allowed_replaces_the_middle(void **state) {
        uint32_t a[30], b[30];
        bool gone[30], came[30];

        (void) state;
        for (uint32_t i = 0; i < 30; i++) {
                a[i] = i;
                b[i] = i < 5 || i >= 25 ? i : i % 2 ? i : 100 + i; /* ten lines differ: twenty edits */
        }
        assert_int_equal(myers_diff(a, 30, b, 30, 19, gone, came), 0);
        assert_int_equal(check_stays(a, 30, gone, b, 30, came), 6 + 5);
        for (size_t i = 6; i < 25; i++)
                assert_true(gone[i] && came[i]);
        assert_int_equal(myers_diff(a, 30, b, 30, 20, gone, came), 0);
        assert_int_equal(check_stays(a, 30, gone, b, 30, came), 20);
}

static void nothing_at_all(void **state) {
        bool gone[1] = { true }, came[1] = { true };
        uint32_t one[1] = { 7 };

        (void) state;
        assert_int_equal(myers_diff(one, 0, one, 0, 10, gone, came), 0);
        assert_int_equal(myers_diff(one, 1, one, 1, 10, gone, came), 0);
        assert_false(gone[0] || came[0]);
        assert_int_equal(myers_diff(one, 1, one, 0, 10, gone, came), 0);
        assert_true(gone[0]);
        assert_int_equal(myers_diff(one, 0, one, 1, 0, gone, came), 0);
        assert_true(came[0]);
}

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(is_the_shortest_way),
                cmocka_unit_test(a_longer_way_than_allowed_replaces_the_middle),
                cmocka_unit_test(nothing_at_all),
        };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
