/* SPDX-License-Identifier: Apache-2.0 */
#include "test.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"

static json_t *parse(const char *s) {
        json_t *j = NULL;
        struct error e = ERROR_INIT;
        assert_int_equal(json_parse(s, strlen(s), 4096, &j, &e), 0);
        return j;
}

static void refuses(void **state) {
        (void) state;
        static const char *const bad[] = { "", "{", "{}x", "{\"a\":1,\"a\":2}", "\"\\u0000\"", "nul", "[1,]" };
        for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
                json_t *j = NULL;
                struct error e = ERROR_INIT;
                assert_int_equal(json_parse(bad[i], strlen(bad[i]), 4096, &j, &e), -EINVAL);
                assert_null(j);
                assert_true(strlen(e.msg) > 0);
        }
        json_t *j = NULL;
        struct error e = ERROR_INIT;
        assert_int_equal(json_parse("[1,2,3]", 7, 6, &j, &e), -EFBIG);
}

static void depth(void **state) {
        (void) state;
        char s[2 * (JSON_DEPTH_MAX + 1) + 1];
        struct error e = ERROR_INIT;
        for (int levels = JSON_DEPTH_MAX; levels <= JSON_DEPTH_MAX + 1; levels++) {
                memset(s, '[', (size_t) levels);
                memset(s + levels, ']', (size_t) levels);
                json_t *j = NULL;
                int r = json_parse(s, 2 * (size_t) levels, sizeof s, &j, &e);
                assert_int_equal(r, levels <= JSON_DEPTH_MAX ? 0 : -EINVAL);
                json_decrefp(&j);
        }
        /* Brackets within strings do not count. */
        json_t *j = parse("\"[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[\\\"[[[[[[[[[[[[\"");
        json_decref(j);
}

static void readers(void **state) {
        (void) state;
        _cleanup_json_ json_t *j =
                parse("{\"s\":\"text\",\"n\":7,\"neg\":-1,\"b\":true,\"o\":{\"k\":\"v\"},\"a\":[1,2],\"z\":null,\"bad\":{\"k\":1}}");
        struct error e = ERROR_INIT;
        const char *s = "before";
        uint64_t n = 99;
        bool b = false;
        json_t *v = NULL;
        assert_int_equal(json_read_str(j, "s", true, 4, &s, &e), 0);
        assert_string_equal(s, "text");
        assert_int_equal(json_read_str(j, "s", true, 3, &s, &e), -EINVAL);
        assert_non_null(strstr(e.msg, "the limit is 3"));
        s = "before";
        assert_int_equal(json_read_str(j, "missing", false, 4, &s, &e), 0);
        assert_int_equal(json_read_str(j, "z", false, 4, &s, &e), 0);
        assert_string_equal(s, "before");
        assert_int_equal(json_read_str(j, "missing", true, 4, &s, &e), -EINVAL);
        assert_int_equal(json_read_str(j, "n", true, 4, &s, &e), -EINVAL);
        assert_string_equal(e.msg, "\"n\" must be a string, not a number");
        assert_int_equal(json_read_u64(j, "n", true, 1, 7, &n, &e), 0);
        assert_int_equal(n, 7);
        assert_int_equal(json_read_u64(j, "n", true, 8, 9, &n, &e), -EINVAL);
        assert_int_equal(json_read_u64(j, "neg", true, 0, 9, &n, &e), -EINVAL);
        assert_int_equal(n, 7);
        assert_int_equal(json_read_bool(j, "b", true, &b, &e), 0);
        assert_true(b);
        assert_int_equal(json_read_array(j, "a", true, 1, &v, &e), -EINVAL);
        assert_int_equal(json_read_array(j, "a", true, 2, &v, &e), 0);
        assert_int_equal(json_read_str_map(j, "o", 1, 1, 1, &v, &e), 0);
        assert_int_equal(json_object_size(v), 1);
        assert_int_equal(json_read_str_map(j, "bad", 1, 1, 1, &v, &e), -EINVAL);
        static const char *const keys[] = { "s", "n", "neg", "b", "o", "a", "z", NULL };
        assert_int_equal(json_only_keys(j, keys, &e), -EINVAL);
        assert_string_equal(e.msg, "unknown member \"bad\"");
        char *text = json_to_str(v);
        assert_string_equal(text, "{\"k\":\"v\"}");
        free(text);
}

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(refuses),
                cmocka_unit_test(depth),
                cmocka_unit_test(readers),
        };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
