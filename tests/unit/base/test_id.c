/* SPDX-License-Identifier: Apache-2.0 */
#include "test.h"

#include <string.h>

#include "base/id.h"

static void ids(void **state) {
        (void) state;
        char a[ID_SIZE], b[ID_SIZE];
        assert_int_equal(id_new(a), 0);
        assert_int_equal(id_new(b), 0);
        assert_true(id_valid(a));
        assert_string_not_equal(a, b);
        a[3] = 'A';
        assert_false(id_valid(a));
        assert_false(id_valid(""));
        assert_false(id_valid(NULL));
        assert_false(id_valid("../../../../etc/passwd1234"));
        assert_false(id_valid("abcdefghijklmnopqrstuvwxyzz"));
}

static void digests(void **state) {
        (void) state;
        assert_true(digest_valid("e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"));
        assert_false(digest_valid("E3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"));
        assert_false(digest_valid("e3b0"));
}

static void names(void **state) {
        (void) state;
        assert_true(template_name_valid("base", 4));
        assert_true(template_name_valid("py-3.11_x", 9));
        assert_false(template_name_valid("", 0));
        assert_false(template_name_valid("-x", 2));
        assert_false(template_name_valid("a/b", 3));
        assert_false(template_name_valid("Base", 4));
        char longest[TEMPLATE_NAME_MAX + 2];
        memset(longest, 'a', sizeof longest);
        assert_true(template_name_valid(longest, TEMPLATE_NAME_MAX));
        assert_false(template_name_valid(longest, TEMPLATE_NAME_MAX + 1));
}

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(ids),
                cmocka_unit_test(digests),
                cmocka_unit_test(names),
        };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
