/* SPDX-License-Identifier: Apache-2.0 */
#include "test.h"

#include <errno.h>

#include "base/clock.h"

static void format(void **state) {
        (void) state;
        char s[RFC3339_SIZE];
        clock_rfc3339(0, s);
        assert_string_equal(s, "1970-01-01T00:00:00.000Z");
        clock_rfc3339(1767323045678, s);
        assert_string_equal(s, "2026-01-02T03:04:05.678Z");
        clock_rfc3339(-1, s);
        assert_string_equal(s, "1969-12-31T23:59:59.999Z");
}

static void parse(void **state) {
        (void) state;
        static const struct {
                const char *s;
                int64_t ms;
        } good[] = {
                { "2026-01-02T03:04:05.678Z", 1767323045678 },
                { "2026-01-02T03:04:05Z", 1767323045000 },
                { "2026-01-02T05:04:05.678901234+02:00", 1767323045678 },
                { "2026-01-01T22:04:05.6-05:00", 1767323045600 },
                { "2024-02-29T00:00:00Z", 1709164800000 },
        };
        for (size_t i = 0; i < sizeof good / sizeof good[0]; i++) {
                int64_t ms = 0;
                assert_int_equal(clock_parse_rfc3339(good[i].s, &ms), 0);
                assert_int_equal(ms, good[i].ms);
        }
        static const char *const bad[] = {
                "", "2026", "2026-01-02", "2026-01-02T03:04:05", "2026-13-02T03:04:05Z", "2026-02-30T03:04:05Z",
                "2023-02-29T00:00:00Z", "2026-01-02T24:00:00Z", "2026-01-02T03:04:05.Z", "2026-01-02T03:04:05Zx",
                "2026-01-02T03:04:05+2:00", "+026-01-02T03:04:05Z", "2026-01-02T03:04:05+24:00",
        };
        for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
                int64_t ms = 7;
                assert_int_equal(clock_parse_rfc3339(bad[i], &ms), -EINVAL);
                assert_int_equal(ms, 7);
        }
}

static void monotonic(void **state) {
        (void) state;
        uint64_t a = clock_mono_us(), b = clock_mono_us();
        assert_true(b >= a);
        assert_true(clock_real_ns() / 1000000 - clock_real_ms() < 1000);
}

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(format),
                cmocka_unit_test(parse),
                cmocka_unit_test(monotonic),
        };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
