/* SPDX-License-Identifier: Apache-2.0 */
#include "test.h"

#include <errno.h>
#include <string.h>

#include "path.h"

static void clean(void **state) {
        (void) state;
        static const char *const vectors[][2] = {
                { "/", "/" }, { "", "/" }, { "///", "/" }, { "/a", "/a" }, { "/a/", "/a" }, { "//a//b", "/a/b" },
                { "/a/./b/.", "/a/b" }, { "/a/../b", "/b" }, { "/../../a", "/a" }, { "/a/b/../..", "/" },
                { "/..a", "/..a" }, { "/a..", "/a.." }, { "/...", "/..." }, { "/a/\xff\n b", "/a/\xff\n b" },
        };
        for (size_t i = 0; i < sizeof vectors / sizeof vectors[0]; i++) {
                char out[PATH_MAX];
                assert_int_equal(path_clean(vectors[i][0], out), 0);
                assert_string_equal(out, vectors[i][1]);
        }
        char out[PATH_MAX], longest[PATH_MAX + 10];
        memset(longest, 'a', sizeof longest);
        longest[0] = '/';
        longest[PATH_MAX] = '\0';
        assert_int_equal(path_clean(longest, out), -ENAMETOOLONG);
        longest[PATH_MAX - 1] = '\0';
        assert_int_equal(path_clean(longest, out), 0);
        assert_string_equal(out, longest);
}

static void resolve(void **state) {
        (void) state;
        static const char *const vectors[][3] = {
                { "", NULL, "/home/u" }, { "", "/work", "/work" }, { "", "~/w", "/home/u/w" }, { "~", "/work", "/home/u" },
                { "~/x/../y", NULL, "/home/u/y" }, { "a", "/work", "/home/u/a" }, { "./a", NULL, "/home/u/a" },
                { "../..", NULL, "/" }, { "/etc//x", NULL, "/etc/x" }, { "a~", NULL, "/home/u/a~" },
        };
        for (size_t i = 0; i < sizeof vectors / sizeof vectors[0]; i++) {
                char out[PATH_MAX];
                assert_int_equal(path_resolve(vectors[i][0], "/home/u", vectors[i][1], out, NULL), 0);
                assert_string_equal(out, vectors[i][2]);
        }
        char in[PATH_MAX];
        assert_int_equal(path_resolve_in("a", "/home/u", "/srv", in, NULL), 0);
        assert_string_equal(in, "/srv/a");
        assert_int_equal(path_resolve_in("a", "/home/u", NULL, in, NULL), 0);
        assert_string_equal(in, "/home/u/a");
        assert_int_equal(path_resolve_in("~/a", "/home/u", "/srv", in, NULL), 0);
        assert_string_equal(in, "/home/u/a");
        char out[PATH_MAX] = "kept";
        struct error e = ERROR_INIT;
        assert_int_equal(path_resolve("~root/x", "/home/u", NULL, out, &e), -EINVAL);
        assert_string_equal(out, "kept");
        assert_non_null(strstr(e.msg, "~root/x"));
}

static void parts(void **state) {
        (void) state;
        char out[PATH_MAX];
        assert_string_equal(path_base("/a/b"), "b");
        assert_string_equal(path_base("/"), "/");
        assert_int_equal(path_dir("/a/b", out), 0);
        assert_string_equal(out, "/a");
        assert_int_equal(path_dir("/a", out), 0);
        assert_string_equal(out, "/");
        assert_int_equal(path_join("/", "x", out), 0);
        assert_string_equal(out, "/x");
        assert_true(path_is_below("/a/b", "/a"));
        assert_true(path_is_below("/a", "/a"));
        assert_true(path_is_below("/a", "/"));
        assert_false(path_is_below("/ab", "/a"));
}

int main(void) {
        const struct CMUnitTest tests[] = { cmocka_unit_test(clean), cmocka_unit_test(resolve), cmocka_unit_test(parts) };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
