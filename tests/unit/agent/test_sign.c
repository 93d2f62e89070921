/* SPDX-License-Identifier: Apache-2.0 */
#include "test.h"

#include <string.h>

#include "sign.h"

static void known_value(void **state) {
        (void) state;
        char out[SIGNATURE_SIZE];
        sign_files("hello.txt", "read", "user", "0tQG31xiMp0IOQfaz9dcwi72L1CPo8e0", NULL, out);
        assert_string_equal(out, "v1_gUtH/s9YCJWgCizjfUxuWfhFE4QSydOWEIIvfLwDr6E");
}

static void check(void **state) {
        (void) state;
        char out[SIGNATURE_SIZE];
        sign_files("/a", "write", "", "token", "1700000000", out);
        assert_true(sign_check(out, "/a", "write", "", "token", "1700000000"));
        assert_false(sign_check(out, "/a", "read", "", "token", "1700000000"));
        assert_false(sign_check(out, "/a", "write", "", "token", "1700000001"));
        assert_false(sign_check(out, "/a", "write", "", "token", NULL));
        assert_false(sign_check(out, "/b", "write", "", "token", "1700000000"));
        assert_false(sign_check(out, "/a", "write", "u", "token", "1700000000"));
        assert_false(sign_check(out, "/a", "write", "", "other", "1700000000"));
        assert_false(sign_check("", "/a", "write", "", "token", "1700000000"));
        out[strlen(out) - 1] ^= 1;
        assert_false(sign_check(out, "/a", "write", "", "token", "1700000000"));
}

int main(void) {
        const struct CMUnitTest tests[] = { cmocka_unit_test(known_value), cmocka_unit_test(check) };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
