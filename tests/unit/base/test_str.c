/* SPDX-License-Identifier: Apache-2.0 */
#include "test.h"

#include <errno.h>
#include <string.h>

#include "base/str.h"

static void numbers(void **state) {
        (void) state;
        uint64_t v = 5;
        assert_int_equal(str_to_u64("18446744073709551615", UINT64_MAX, &v), 0);
        assert_true(v == UINT64_MAX);
        assert_int_equal(str_to_u64("18446744073709551616", UINT64_MAX, &v), -ERANGE);
        assert_int_equal(str_to_u64("11", 10, &v), -ERANGE);
        static const char *const bad[] = { "", "-1", "+1", " 1", "1 ", "0x1", "1.5", "1e3" };
        for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
                assert_int_equal(str_to_u64(bad[i], UINT64_MAX, &v), -EINVAL);
        assert_int_equal(str_to_size("512M", &v), 0);
        assert_int_equal(v, 512u << 20);
        assert_int_equal(str_to_size("2G", &v), 0);
        assert_true(v == 2ull << 30);
        assert_int_equal(str_to_size("17179869184G", &v), -ERANGE);
        assert_int_equal(str_to_size("1X", &v), -EINVAL);
        assert_int_equal(str_to_seconds("2h", &v), 0);
        assert_int_equal(v, 7200);
        assert_int_equal(str_to_seconds("1.5h", &v), -EINVAL);
}

static void base64(void **state) {
        (void) state;
        /* RFC 4648 section 10 */
        static const char *const vectors[][2] = {
                { "", "" },         { "f", "Zg==" },         { "fo", "Zm8=" },         { "foo", "Zm9v" },
                { "foob", "Zm9vYg==" }, { "fooba", "Zm9vYmE=" }, { "foobar", "Zm9vYmFy" },
        };
        for (size_t i = 0; i < sizeof vectors / sizeof vectors[0]; i++) {
                char text[16];
                uint8_t raw[16];
                size_t n = strlen(vectors[i][0]);
                base64_encode(vectors[i][0], n, text);
                assert_string_equal(text, vectors[i][1]);
                assert_int_equal(base64_encoded_len(n), strlen(text));
                assert_int_equal(base64_decode(text, strlen(text), raw), n);
                assert_memory_equal(raw, vectors[i][0], n);
                size_t bare = strcspn(text, "=");
                assert_int_equal(base64_decode(text, bare, raw), n);
        }
        uint8_t raw[16];
        static const char *const bad[] = { "Z", "Zg=", "Z===", "Zg==Zg==", "Zm9v\n", "Zh==", "====", "=", "Z g=" };
        for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
                assert_int_equal(base64_decode(bad[i], strlen(bad[i]), raw), -EINVAL);
        uint8_t all[256], back[260];
        char text[400];
        for (int i = 0; i < 256; i++)
                all[i] = (uint8_t) i;
        base64_encode(all, 256, text);
        assert_int_equal(base64_decode(text, strlen(text), back), 256);
        assert_memory_equal(all, back, 256);
}

static void utf8(void **state) {
        (void) state;
        static const char *const good[] = { "", "ascii", "\xc3\xa9", "\xe2\x82\xac", "\xf0\x9f\x98\x80", "\xed\x9f\xbf", "\xf4\x8f\xbf\xbf" };
        static const char *const bad[] = { "\x80", "\xc0\xaf", "\xc3", "\xe0\x80\xaf", "\xed\xa0\x80", "\xf4\x90\x80\x80", "\xf8\x88\x80\x80\x80", "a\xff" };
        for (size_t i = 0; i < sizeof good / sizeof good[0]; i++)
                assert_true(str_is_utf8(good[i], strlen(good[i])));
        for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
                assert_false(str_is_utf8(bad[i], strlen(bad[i])));
        static const char *const made[][2] = {
                { "", "" },
                { "caf\xc3\xa9", "caf\xc3\xa9" },
                { "\xff\xe2\x82\xac\x80 b", "?\xe2\x82\xac? b" },
                { "cut \xe2\x82", "cut ??" },
                { "\xed\xa0\x80", "???" },
        };
        for (size_t i = 0; i < sizeof made / sizeof made[0]; i++) {
                char s[16];
                assert_int_equal(str_copy(s, sizeof s, made[i][0]), 0);
                str_make_utf8(s);
                assert_string_equal(s, made[i][1]);
        }
}

static void comparing(void **state) {
        (void) state;
        assert_true(str_case_eq_n("Content-LENGTH:", 14, "content-length"));
        assert_false(str_case_eq_n("Content", 7, "content-length"));
        assert_true(str_eq(NULL, NULL));
        assert_false(str_eq(NULL, ""));
        assert_true(str_has_prefix("abc", "ab"));
        assert_false(str_has_suffix("c", "bc"));
        assert_true(mem_eq_ct("same", "same", 4));
        assert_false(mem_eq_ct("same", "samf", 4));
        char small[4] = "old";
        assert_int_equal(str_copy(small, sizeof small, "long"), -ENAMETOOLONG);
        assert_string_equal(small, "old");
        char hex[9];
        uint8_t raw[4];
        str_hex("\x00\x7f\x80\xff", 4, hex);
        assert_string_equal(hex, "007f80ff");
        assert_int_equal(str_unhex(hex, 8, raw), 0);
        assert_memory_equal(raw, "\x00\x7f\x80\xff", 4);
        assert_int_equal(str_unhex("0g", 2, raw), -EINVAL);
        assert_int_equal(str_unhex("abc", 3, raw), -EINVAL);
}

static void units_and_plurals(void **state) {
        (void) state;
        static const struct {
                uint64_t v;
                const char *size, *time;
        } cases[] = {
                { 0, "0", "0s" },
                { 1, "1", "1s" },
                { 60, "60", "1m" },
                { 1024, "1K", "1024s" },
                { 5400, "5400", "90m" },
                { 1536ULL << 20, "1536M", "1610612736s" },
                { 1ULL << 44, "16T", NULL },
                { 86400 * 30, "2592000", "30d" },
                { UINT64_MAX, "18446744073709551615", "18446744073709551615s" },
        };
        char out[STR_UNIT_SIZE];
        uint64_t back;
        for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
                assert_string_equal(str_from_size(cases[i].v, out), cases[i].size);
                assert_int_equal(str_to_size(out, &back), 0);
                assert_true(back == cases[i].v);
                str_from_seconds(cases[i].v, out);
                if (cases[i].time)
                        assert_string_equal(out, cases[i].time);
                assert_int_equal(str_to_seconds(out, &back), 0);
                assert_true(back == cases[i].v);
        }
        assert_string_equal(str_s(0), "s");
        assert_string_equal(str_s(1), "");
        assert_string_equal(str_s(2), "s");
}

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(numbers),
                cmocka_unit_test(base64),
                cmocka_unit_test(utf8),
                cmocka_unit_test(comparing),
                cmocka_unit_test(units_and_plurals),
        };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
