/* SPDX-License-Identifier: Apache-2.0 */
#include "test.h"

#include <errno.h>
#include <string.h>

#include "base/error.h"

static void set_and_wrap(void **state) {
        (void) state;
        struct error e = ERROR_INIT;
        assert_int_equal(error_set(&e, -EINVAL, "size %d is too small", 3), -EINVAL);
        assert_string_equal(e.msg, "size 3 is too small");
        assert_int_equal(error_wrap(&e, "template \"%s\"", "base"), -EINVAL);
        assert_string_equal(e.msg, "template \"base\": size 3 is too small");
        assert_int_equal(error_errno(&e, ENOENT, "cannot open \"%s\"", "x"), -ENOENT);
        assert_string_equal(e.msg, "cannot open \"x\": No such file or directory");
}

static void never_success(void **state) {
        (void) state;
        struct error e = ERROR_INIT;
        assert_true(error_set(&e, 0, "no reason") < 0);
        assert_true(error_set(NULL, EPERM, "no object") == -EPERM);
        assert_true(error_wrap(NULL, "no object") < 0);
        struct error empty = ERROR_INIT;
        assert_true(error_wrap(&empty, "nothing recorded") < 0);
}

static void long_texts_are_cut(void **state) {
        (void) state;
        char big[2 * ERROR_MSG_MAX];
        memset(big, 'a', sizeof big - 1);
        big[sizeof big - 1] = '\0';
        struct error e = ERROR_INIT;
        error_set(&e, -EIO, "%s", big);
        assert_int_equal(strlen(e.msg), ERROR_MSG_MAX - 1);
        error_wrap(&e, "%s", big);
        assert_int_equal(strlen(e.msg), ERROR_MSG_MAX - 1);
        error_errno(&e, EIO, "%s", big);
        assert_int_equal(strlen(e.msg), ERROR_MSG_MAX - 1);
}

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(set_and_wrap),
                cmocka_unit_test(never_success),
                cmocka_unit_test(long_texts_are_cut),
        };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
