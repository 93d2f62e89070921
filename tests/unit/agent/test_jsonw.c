/* SPDX-License-Identifier: Apache-2.0 */
#include "test.h"

#include <string.h>

#include "base/json.h"
#include "jsonw.h"

/* What is written must be JSON to a real parser, and mean the same. */
static void strings(void **state) {
        (void) state;
        static const char *const same[] = { "", "plain", "\"\\/\b\f\n\r\t", "\x01\x1f\x7f", "\xc3\xa9 \xf0\x9f\x98\x80", "a\"b" };
        for (size_t i = 0; i < sizeof same / sizeof same[0]; i++) {
                _cleanup_buf_ struct buf b = BUF_INIT(0);
                assert_int_equal(buf_puts(&b, "["), 0);
                assert_int_equal(jsonw_cstr(&b, same[i]), 0);
                assert_int_equal(buf_puts(&b, "]"), 0);
                _cleanup_json_ json_t *j = NULL;
                assert_int_equal(json_parse(buf_data(&b), b.len, 4096, &j, NULL), 0);
                assert_string_equal(json_string_value(json_array_get(j, 0)), same[i]);
        }
}

static void broken_utf8(void **state) {
        (void) state;
        static const char *const vectors[][2] = {
                { "\xff", "\"\xef\xbf\xbd\"" },
                { "a\xc3", "\"a\xef\xbf\xbd\"" },
                { "\xe2\x82z", "\"\xef\xbf\xbd\xef\xbf\xbdz\"" },
                { "\xed\xa0\x80", "\"\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd\"" },
        };
        for (size_t i = 0; i < sizeof vectors / sizeof vectors[0]; i++) {
                _cleanup_buf_ struct buf b = BUF_INIT(0);
                assert_int_equal(jsonw_cstr(&b, vectors[i][0]), 0);
                assert_string_equal(buf_str(&b), vectors[i][1]);
        }
}

static void binary(void **state) {
        (void) state;
        _cleanup_buf_ struct buf b = BUF_INIT(0);
        assert_int_equal(jsonw_base64(&b, "\0\xff\x10", 3), 0);
        assert_string_equal(buf_str(&b), "\"AP8Q\"");
        _cleanup_buf_ struct buf small = BUF_INIT(4);
        assert_true(jsonw_base64(&small, "abcdef", 6) < 0);
}

int main(void) {
        const struct CMUnitTest tests[] = { cmocka_unit_test(strings), cmocka_unit_test(broken_utf8), cmocka_unit_test(binary) };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
