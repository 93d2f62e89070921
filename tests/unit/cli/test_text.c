/* SPDX-License-Identifier: Apache-2.0 */
#include <locale.h>
#include <stdlib.h>
#include <string.h>

#include "table.h"
#include "test.h"
#include "text.h"

static void safe(const char *in, size_t n, const char *out) {
        char *got = text_safe_n(in, n);

        assert_string_equal(got, out);
        free(got);
}
#define SAFE(in, out) safe(in, sizeof in - 1, out)

static void test_safe(void **state) {
        (void) state;
        SAFE("plain \xc3\xa9 \xf0\x9f\x98\x80", "plain \xc3\xa9 \xf0\x9f\x98\x80");
        SAFE("\x1b[31m\a\r\b\x7f", "\\x1b[31m\\x07\\x0d\\x08\\x7f");
        SAFE("a\nb\tc\0d", "a\\nb\\tc\\x00d");
        SAFE("\xc2\x9b"
             "31m",
             "\\u{9b}31m"); /* CSI as one character */
        SAFE("\xe2\x80\xae\xe2\x80\x8b\xef\xbb\xbf", "\\u{202e}\\u{200b}\\u{feff}");
        SAFE("\xf3\xa0\x81\x81", "\\u{e0041}");
        SAFE("\xff\xfe", "\\xff\\xfe");
        SAFE("\xc0\xaf", "\\xc0\\xaf");                   /* overlong */
        SAFE("\xed\xa0\x80", "\\xed\\xa0\\x80");          /* surrogate */
        SAFE("\xf4\x90\x80\x80", "\\xf4\\x90\\x80\\x80"); /* beyond Unicode */
        SAFE("\xe2\x82", "\\xe2\\x82");                   /* cut short */
        SAFE("\xe2"
             "a",
             "\\xe2a");
        SAFE("", "");
}

static void test_relative(void **state) {
        (void) state;
        static const struct {
                int64_t ago_ms;
                const char *text;
        } cases[] = {
                { 0, "just now" },
                { 999, "just now" },
                { 1000, "1 second ago" },
                { 59999, "59 seconds ago" },
                { 60000, "1 minute ago" },
                { 7200000, "2 hours ago" },
                { 86400000LL * 400, "400 days ago" },
                { -500, "in a moment" },
                { -58000, "in 1 minute" }, /* asked for two seconds ago */
                { -56000, "in 56 seconds" },
                { -3599000, "in 1 hour" },
                { -3400000, "in 56 minutes" },
                { -86390000, "in 1 day" },
                { -(30 * 86400000LL - 2000), "in 30 days" },
                { -60000, "in 1 minute" },
                { -7200000, "in 2 hours" },
        };
        char out[TEXT_SIZE];

        for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
                text_relative(1000000000 - cases[i].ago_ms, 1000000000, out);
                assert_string_equal(out, cases[i].text);
        }
        text_relative_rfc3339(NULL, out);
        assert_string_equal(out, "-");
        text_relative_rfc3339("\x1bnope, and this is longer than what fits", out);
        assert_int_equal(strncmp(out, "\\x1bnope", 8), 0);
}

static void test_size(void **state) {
        (void) state;
        static const struct {
                uint64_t bytes;
                const char *text;
        } cases[] = {
                { 0, "0 B" },
                { 1023, "1023 B" },
                { 1024, "1 KiB" },
                { 1536, "1.5 KiB" },
                { 512ULL << 20, "512 MiB" },
                { (1ULL << 30) - 1, "1.0 GiB" },
                { 1ULL << 30, "1 GiB" },
                { UINT64_MAX, "16 EiB" },
        };
        char out[TEXT_SIZE];

        for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
                text_size(cases[i].bytes, out);
                assert_string_equal(out, cases[i].text);
        }
        text_duration(0, out);
        assert_string_equal(out, "0 s");
        text_duration(2000, out);
        assert_string_equal(out, "2 s");
        text_duration(215, out);
        assert_string_equal(out, "0.21 s");
        text_duration(65000, out);
        assert_string_equal(out, "1 min 5 s");
        text_duration(3700000, out);
        assert_string_equal(out, "1 h 1 min");
        text_duration(60000, out);
        assert_string_equal(out, "1 min");
        text_duration(UINT64_MAX, out);
        assert_string_equal(out, "5124095576030 h 25 min");
}

static char *printed(void (*fn)(FILE *f)) {
        char *s = NULL;
        size_t n;
        FILE *f = open_memstream(&s, &n);

        assert_non_null(f);
        fn(f);
        fclose(f);
        return s;
}

static void wrap(FILE *f) {
        text_wrap(f, "one two\nthree four\n\n  as it stands, however long it is\nlast averyveryverylongword x",
                  2, 12);
}

static void test_wrap(void **state) {
        (void) state;
        char *s = printed(wrap);

        assert_string_equal(
                s,
                "  one two\n  three four\n\n    as it stands, however long it is\n  last\n  averyveryverylongword\n  x\n");
        free(s);
}

static void table(FILE *f) {
        static const char *const headers[] = { "A", "LONG", "C", NULL };
        struct table *t = table_new(headers);

        table_cell(t, "\xe6\xbc\xa2\xe5\xad\x97"); /* two columns a character */
        table_cell(t, NULL);
        table_cell(t, "x");
        table_cellf(t, "%d", 12);
        table_cell(t, "a\x1b");
        table_cell(t, "");
        table_print(t, f);
        table_free(t);
        table_free(NULL);
}

static void test_table(void **state) {
        (void) state;
        char *s = printed(table);

        assert_string_equal(s, "A      LONG    C\n\xe6\xbc\xa2\xe5\xad\x97   -       x\n12     a\\x1b   -\n");
        free(s);
}

static void test_fit(void **state) {
        (void) state;
        assert_int_equal(text_fit("abc", 10), 3);
        assert_int_equal(text_fit("abc", 2), 2);
        assert_int_equal(text_fit("abc", 0), 0);
        assert_int_equal(text_fit("\xc3\xa9\xc3\xa9z", 2), 4);
        assert_int_equal(text_fit("\xff\xff", 1), 1);
}

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(test_safe), cmocka_unit_test(test_relative), cmocka_unit_test(test_size),
                cmocka_unit_test(test_wrap), cmocka_unit_test(test_table), cmocka_unit_test(test_fit),
        };
        setlocale(LC_CTYPE, "C.UTF-8");
        return cmocka_run_group_tests(tests, NULL, NULL);
}
