/* SPDX-License-Identifier: Apache-2.0 */
#include "test.h"

#include <string.h>

#include "http_cond.h"

#define ETAG "\"abc\""
#define MTIME 784111777 /* Sun, 06 Nov 1994 08:49:37 GMT */

static struct http1_field fields[4];

static const struct http1_head *head(const char *n1, const char *v1, const char *n2, const char *v2) {
        static struct http1_head h;
        fields[0] = (struct http1_field){ n1, v1 };
        fields[1] = (struct http1_field){ n2, v2 };
        h = (struct http1_head){ .fields = fields, .n_fields = n2 ? 2 : n1 ? 1 : 0 };
        return &h;
}

static void dates(void **state) {
        (void) state;
        char out[HTTP_DATE_SIZE];
        time_t t = 0;
        http_date(MTIME, out);
        assert_string_equal(out, "Sun, 06 Nov 1994 08:49:37 GMT");
        assert_int_equal(http_parse_date(out, &t), 0);
        assert_int_equal(t, MTIME);
        assert_true(http_parse_date("yesterday", &t) < 0);
        assert_true(http_parse_date("Sun, 06 Xyz 1994 08:49:37 GMT", &t) < 0);
        assert_true(http_parse_date("Sun, 06 Nov 1994 08:49:37 GMT+1", &t) < 0);
}

static void conditions(void **state) {
        (void) state;
        static const struct {
                const char *name, *value;
                int want;
        } v[] = {
                { "If-None-Match", ETAG, 304 }, { "If-None-Match", "W/" ETAG, 304 }, { "If-None-Match", "\"x\", " ETAG, 304 },
                { "If-None-Match", "\"x\"", 0 }, { "If-None-Match", "*", 304 }, { "If-Match", ETAG, 0 },
                { "If-Match", "W/" ETAG, 412 }, { "If-Match", "\"x\"", 412 }, { "If-Match", "*", 0 },
                { "If-Modified-Since", "Sun, 06 Nov 1994 08:49:37 GMT", 304 },
                { "If-Modified-Since", "Sun, 06 Nov 1994 08:49:36 GMT", 0 }, { "If-Modified-Since", "junk", 0 },
                { "If-Unmodified-Since", "Sun, 06 Nov 1994 08:49:36 GMT", 412 },
                { "If-Unmodified-Since", "Sun, 06 Nov 1994 08:49:37 GMT", 0 },
        };
        for (size_t i = 0; i < sizeof v / sizeof v[0]; i++)
                assert_int_equal(http_check_conditions(head(v[i].name, v[i].value, NULL, NULL), ETAG, MTIME), v[i].want);
        /* The entity tag counts more than the date. */
        assert_int_equal(http_check_conditions(head("If-None-Match", "\"x\"", "If-Modified-Since",
                                                    "Sun, 06 Nov 1994 08:49:37 GMT"), ETAG, MTIME), 0);
}

static void ranges(void **state) {
        (void) state;
        static const struct {
                const char *range;
                uint64_t size;
                enum http_range want;
                uint64_t first, last;
        } v[] = {
                { "bytes=0-0", 10, HTTP_RANGE_PART, 0, 0 }, { "bytes=2-", 10, HTTP_RANGE_PART, 2, 9 },
                { "bytes=-3", 10, HTTP_RANGE_PART, 7, 9 }, { "bytes=-30", 10, HTTP_RANGE_PART, 0, 9 },
                { "bytes=5-99", 10, HTTP_RANGE_PART, 5, 9 }, { "bytes=10-", 10, HTTP_RANGE_BAD, 0, 0 },
                { "bytes=-0", 10, HTTP_RANGE_BAD, 0, 0 }, { "bytes=0-", 0, HTTP_RANGE_BAD, 0, 0 },
                { "bytes=5-2", 10, HTTP_RANGE_NONE, 0, 0 }, { "bytes=0-1,3-4", 10, HTTP_RANGE_NONE, 0, 0 },
                { "bytes=-", 10, HTTP_RANGE_NONE, 0, 0 }, { "lines=1-2", 10, HTTP_RANGE_NONE, 0, 0 },
                { "bytes=99999999999999999999-", 10, HTTP_RANGE_NONE, 0, 0 }, { "bytes= 1-2", 10, HTTP_RANGE_NONE, 0, 0 },
        };
        for (size_t i = 0; i < sizeof v / sizeof v[0]; i++) {
                uint64_t first = 0, last = 0;
                assert_int_equal(http_read_range(head("Range", v[i].range, NULL, NULL), ETAG, MTIME, v[i].size, &first, &last),
                                 v[i].want);
                assert_int_equal(first, v[i].first);
                assert_int_equal(last, v[i].last);
        }
        uint64_t a, b;
        assert_int_equal(http_read_range(head("Range", "bytes=0-1", "If-Range", ETAG), ETAG, MTIME, 9, &a, &b), HTTP_RANGE_PART);
        assert_int_equal(http_read_range(head("Range", "bytes=0-1", "If-Range", "\"x\""), ETAG, MTIME, 9, &a, &b),
                         HTTP_RANGE_NONE);
        assert_int_equal(http_read_range(head(NULL, NULL, NULL, NULL), ETAG, MTIME, 9, &a, &b), HTTP_RANGE_NONE);
}

static void codings(void **state) {
        (void) state;
        static const struct {
                const char *value;
                enum http_coding want;
        } v[] = {
                { NULL, HTTP_IDENTITY }, { "", HTTP_IDENTITY }, { "gzip", HTTP_GZIP }, { "GZIP;q=0.5", HTTP_GZIP },
                { "gzip, deflate", HTTP_IDENTITY }, { "gzip, deflate, br", HTTP_IDENTITY }, { "gzip;q=0", HTTP_IDENTITY },
                { "identity;q=0, gzip", HTTP_GZIP }, { "*;q=0", HTTP_NONE }, { "identity;q=0", HTTP_NONE },
                { "identity;q=0, *", HTTP_GZIP }, { "gzip;q=0.5, identity", HTTP_IDENTITY }, { "br", HTTP_IDENTITY },
                { "gzip;q=1.0, *;q=0", HTTP_GZIP },
        };
        for (size_t i = 0; i < sizeof v / sizeof v[0]; i++)
                assert_int_equal(http_choose_coding(v[i].value), v[i].want);
}

int main(void) {
        const struct CMUnitTest tests[] = { cmocka_unit_test(dates), cmocka_unit_test(conditions), cmocka_unit_test(ranges),
                                            cmocka_unit_test(codings) };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
