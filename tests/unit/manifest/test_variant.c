/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <string.h>

#include "manifest/variant.h"

static void names(void **state) {
        (void) state;
        char name[VARIANT_NAME_MAX + 1], again[VARIANT_NAME_MAX + 1];
        variant_name("fake", 512, 1, name);
        assert_string_equal(name, "fake-512m-1c");

        static const char prefix[] = "qemu-tcg-65536m-32c-";
        variant_name("qemu-tcg", 65536, 32, name);
        assert_memory_equal(name, prefix, strlen(prefix));
        assert_int_equal(strspn(name + strlen(prefix), "0123456789abcdef"), 8);
        assert_int_equal(strlen(name), strlen(prefix) + 8);
        variant_name("qemu-tcg", 65536, 32, again);
        assert_string_equal(name, again);

        variant_name("qemu-tcg", UINT32_MAX, UINT32_MAX, name); /* the longest there can be */
        assert_true(strlen(name) <= VARIANT_NAME_MAX);
}

int main(void) {
        const struct CMUnitTest tests[] = { cmocka_unit_test(names) };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
