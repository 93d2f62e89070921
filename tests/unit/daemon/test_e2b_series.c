/* SPDX-License-Identifier: Apache-2.0 */

/* Metrics as a guest may report them, and a series that never ends. */

#include "test.h"

#include <errno.h>
#include <string.h>

#include "proxy/e2b_series.h"

#define GOOD "{\"ts\":1,\"cpu_count\":2,\"cpu_used_pct\":12.5,\"mem_total\":100,\"mem_used\":50,\"mem_cache\":7," \
             "\"mem_total_mib\":0,\"mem_used_mib\":0,\"disk_used\":3,\"disk_total\":9}"

static int parse(const char *body, struct e2b_sample *ret) {
        return e2b_sample_parse(body, strlen(body), 1700000000123, ret);
}

static void test_parse(void **state) {
        struct e2b_sample s;

        (void) state;
        assert_int_equal(parse(GOOD, &s), 0);
        json_t *j = e2b_sample_json(&s);
        assert_string_equal(json_string_value(json_object_get(j, "timestamp")), "2023-11-14T22:13:20.123Z");
        assert_int_equal(json_integer_value(json_object_get(j, "timestampUnix")), 1700000000);
        assert_int_equal(json_integer_value(json_object_get(j, "cpuCount")), 2);
        assert_true(json_real_value(json_object_get(j, "cpuUsedPct")) == 12.5);
        assert_int_equal(json_integer_value(json_object_get(j, "memUsed")), 50);
        assert_int_equal(json_integer_value(json_object_get(j, "memTotal")), 100);
        assert_int_equal(json_integer_value(json_object_get(j, "memCache")), 7);
        assert_int_equal(json_integer_value(json_object_get(j, "diskUsed")), 3);
        assert_int_equal(json_integer_value(json_object_get(j, "diskTotal")), 9);
        json_decref(j);
}

static void test_hostile(void **state) {
        static const char *const bad[] = {
                "", "[]", "null", "{}", "{\"cpu_count\":1}", "<html>",
                "{\"cpu_count\":\"2\",\"cpu_used_pct\":1,\"mem_total\":1,\"mem_used\":1,\"disk_used\":1,\"disk_total\":1}",
                "{\"cpu_count\":1,\"cpu_used_pct\":-1,\"mem_total\":1,\"mem_used\":1,\"disk_used\":1,\"disk_total\":1}",
                "{\"cpu_count\":1,\"cpu_used_pct\":1,\"mem_total\":-1,\"mem_used\":1,\"disk_used\":1,\"disk_total\":1}",
                "{\"cpu_count\":1,\"cpu_used_pct\":1,\"mem_total\":1,\"mem_used\":null,\"disk_used\":1,\"disk_total\":1}",
        };
        struct e2b_sample s = { .unix_ms = 7 };

        (void) state;
        for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
                assert_int_equal(parse(bad[i], &s), -EINVAL);
        assert_int_equal(s.unix_ms, 7);

        /* Out of all proportion: cut to what a machine can have, never beyond an integer. */
        assert_int_equal(parse("{\"cpu_count\":1e300,\"cpu_used_pct\":1e300,\"mem_total\":1e300,\"mem_used\":9e18,"
                               "\"disk_used\":1,\"disk_total\":1}", &s), 0);
        assert_true(s.cpus >= 1 && s.cpus <= 1024);
        assert_true(s.cpu_pct <= 100.0 * s.cpus);
        assert_int_equal(s.mem_total, 1LL << 60);
        assert_int_equal(s.mem_used, 1LL << 60);
}

static void test_bounded(void **state) {
        struct e2b_series series = { 0 };
        struct e2b_sample s = { .cpus = 1 };
        const int n = 100000;

        (void) state;
        for (int i = 0; i < n; i++) {
                s.unix_ms = i * 5000LL;
                assert_int_equal(e2b_series_add(&series, &s), 0);
                assert_true(series.n <= E2B_SERIES_MAX && series.n > 0);
        }
        /* From the beginning to nearly the end, evenly. */
        assert_int_equal(series.samples[0].unix_ms, 0);
        int64_t step = series.samples[1].unix_ms - series.samples[0].unix_ms;
        assert_true(series.samples[series.n - 1].unix_ms > s.unix_ms - 2 * step);
        assert_true(series.n > E2B_SERIES_MAX / 3);
        for (size_t i = 1; i < series.n; i++)
                assert_true(series.samples[i].unix_ms > series.samples[i - 1].unix_ms &&
                            series.samples[i].unix_ms - series.samples[i - 1].unix_ms <= 2 * step);
        e2b_series_done(&series);
}

static void test_range(void **state) {
        struct e2b_series series = { 0 };
        struct e2b_sample s = { .cpus = 1 };

        (void) state;
        for (int i = 0; i < 10; i++) {
                s.unix_ms = 1000LL * i + 500;
                assert_int_equal(e2b_series_add(&series, &s), 0);
        }
        json_t *j = e2b_series_json(&series, 3, 5);
        assert_int_equal(json_array_size(j), 3);
        json_decref(j);
        j = e2b_series_json(&series, 100, 200);
        assert_int_equal(json_array_size(j), 0);
        json_decref(j);
        e2b_series_done(&series);
}

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(test_parse),
                cmocka_unit_test(test_hostile),
                cmocka_unit_test(test_bounded),
                cmocka_unit_test(test_range),
        };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
