/* SPDX-License-Identifier: Apache-2.0 */
#include "test.h"

#include <string.h>

#include "base/json.h"
#include "describe.h"

static void installed_packages_only(void **state) {
        _cleanup_json_ json_t *list = json_object();

        (void) state;
        describe_packages("Package: bash\nStatus: install ok installed\nVersion: 5.2\nDescription: shell\n Package: not this\n\n"
                          "Package: gone\nStatus: deinstall ok config-files\nVersion: 1\n\n"
                          "Package: half\nStatus: install ok half-installed\nVersion: 1\n\n"
                          "Package: noversion\nStatus: install ok installed\n\n\n"
                          "Package: last\nStatus: hold ok installed\nVersion: 1:2.3~rc1-1",
                          list);
        assert_int_equal(json_object_size(list), 2);
        assert_string_equal(json_string_value(json_object_get(list, "bash")), "5.2");
        assert_string_equal(json_string_value(json_object_get(list, "last")), "1:2.3~rc1-1");
}

static void no_status_no_packages(void **state) {
        _cleanup_json_ json_t *list = json_object();

        (void) state;
        describe_packages("", list);
        describe_packages("\n\n\n", list);
        describe_packages("Package: a", list);
        assert_int_equal(json_object_size(list), 0);
}

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(installed_packages_only),
                cmocka_unit_test(no_status_no_packages),
        };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
