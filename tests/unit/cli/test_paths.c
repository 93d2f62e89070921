/* SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>
#include <string.h>

#include "client.h"
#include "copy.h"
#include "mem.h"
#include "signals.h"
#include "test.h"
#include "unpack.h"

static void same(char *got, const char *want) {
        assert_string_equal(got, want);
        free(got);
}

static void test_names(void **state) {
        (void) state;
        same(copy_basename("a"), "a");
        same(copy_basename("a/b"), "b");
        same(copy_basename("a/b///"), "b");
        same(copy_basename("/a"), "a");
        same(copy_basename("/"), "");
        same(copy_basename("."), "");
        same(copy_basename(".."), "");
        same(copy_basename("a/."), "");
        same(copy_basename("a/./"), "");
        same(copy_basename("a/.."), "");
        same(copy_basename("..a"), "..a");
        same(copy_basename("..."), "...");
        same(copy_dirname("a"), ".");
        same(copy_dirname("a/"), ".");
        same(copy_dirname("a/b"), "a");
        same(copy_dirname("/a"), "/");
        same(copy_dirname("/a/b/"), "/a");
        same(copy_join("a", "b"), "a/b");
        same(copy_join("a/", "b"), "a/b");
        same(copy_join("/", "b"), "/b");
        same(copy_join("a", ""), "a");
}

static void clean(const char *name, const char *want) {
        struct error err = ERROR_INIT;
        char *out = mem_new(strlen(name) + 1);
        int r = unpack_clean_name(name, out, &err);

        if (!want) {
                assert_true(r < 0);
                assert_non_null(strstr(err.msg, "refused"));
        } else {
                assert_int_equal(r, 0);
                assert_string_equal(out, want);
        }
        free(out);
}

static void test_clean_name(void **state) {
        (void) state;
        char deep[2 * UNPACK_DEPTH_MAX + 3] = "";

        clean("a/b", "a/b");
        clean("./a//./b/", "a/b");
        clean("./", "");
        clean(".", "");
        clean("", "");
        clean("..a/b..", "..a/b..");
        clean("/a", NULL);
        clean("//", NULL);
        clean("..", NULL);
        clean("a/..", NULL);
        clean("a/../b", NULL);
        clean("./../b", NULL);
        for (unsigned i = 0; i < UNPACK_DEPTH_MAX; i++)
                strcat(deep, "d/");
        deep[strlen(deep) - 1] = '\0';
        clean(deep, deep);
        strcat(deep, "/x");
        clean(deep, NULL);
}

static void test_escape(void **state) {
        (void) state;
        same(client_escape("aZ09-._~"), "aZ09-._~");
        same(client_escape("a/b?c#d e%\xc3\xa9&+"), "a%2Fb%3Fc%23d%20e%25%C3%A9%26%2B");
        same(client_escape(""), "");
}

static void test_signals(void **state) {
        (void) state;
        assert_int_equal(signals_number("SIGKILL"), 9);
        assert_int_equal(signals_number("TERM"), 15);
        assert_int_equal(signals_number("SIGNOPE"), -1);
        assert_int_equal(signals_number(""), -1);
}

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(test_names),
                cmocka_unit_test(test_clean_name),
                cmocka_unit_test(test_escape),
                cmocka_unit_test(test_signals),
        };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
