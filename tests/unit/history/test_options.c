/* SPDX-License-Identifier: Apache-2.0 */
#include "test.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/str.h"
#include "bounds.h"
#include "options.h"

static struct options o;
static char *kept;

static int parse(const char *const *words) {
        char *argv[12] = { strdup("cspace-history") };
        struct error err = ERROR_INIT;
        int argc = 1;

        while (words[argc - 1]) {
                argv[argc] = strdup(words[argc - 1]);
                argc++;
        }
        int r = options_parse(argc, argv, &o, &err);
        assert_true(r == 0 || err.msg[0]);
        /* Nothing but the path may still point to what the caller has. */
        free(kept);
        kept = NULL;
        for (int i = 0; i < argc; i++)
                if (argv[i] == o.path)
                        kept = argv[i];
                else
                        free(argv[i]);
        return r;
}

#define PARSE(...) parse((const char *const[]){ __VA_ARGS__, NULL })

static void defaults(void **state) {
        (void) state;
        assert_int_equal(PARSE("diff"), 0);
        assert_int_equal(o.verb, VERB_DIFF);
        assert_int_equal(o.limit, HISTORY_LIMIT_DEFAULT);
        assert_string_equal(o.prefix, "/");
        assert_string_equal(o.cursor, "");
        assert_false(o.patch);
}

static void prefixes_are_cleaned(void **state) {
        (void) state;
        assert_int_equal(PARSE("diff", "--prefix", "//a///b/"), 0);
        assert_string_equal(o.prefix, "/a/b");
        assert_int_equal(PARSE("diff", "--prefix", "///"), 0);
        assert_string_equal(o.prefix, "/");
        assert_int_equal(PARSE("diff", "--prefix", "/a/./b"), -EINVAL);
        assert_int_equal(PARSE("diff", "--prefix", "/.."), -EINVAL);
        assert_int_equal(PARSE("diff", "--prefix", "/..a/.b"), 0);
}

static void longest_paths(void **state) {
        static char path[LIMIT_PATH + 1];
        static char text[2 * LIMIT_PATH];

        (void) state;
        memset(path, 'x', sizeof path - 1);
        path[0] = '/';
        assert_int_equal(PARSE("cat", "--path", path), -EINVAL);
        path[LIMIT_PATH - 1] = '\0';
        assert_int_equal(PARSE("cat", "--path", path), 0);
        assert_string_equal(o.path, path);
        assert_int_equal(PARSE("diff", "--prefix", path), 0);
        assert_string_equal(o.prefix, path);
        base64_encode(path, LIMIT_PATH - 1, text);
        assert_int_equal(PARSE("diff", "--cursor", text), 0);
        assert_string_equal(o.cursor, path);
        memset(path, '/', LIMIT_PATH - 1);
        assert_int_equal(PARSE("diff", "--prefix", path), 0);
        assert_string_equal(o.prefix, "/");
        base64_encode(path, LIMIT_PATH, text); /* one too long, and with a NUL */
        assert_int_equal(PARSE("diff", "--cursor", text), -EINVAL);
}

static void refused(void **state) {
        (void) state;
        assert_int_equal(PARSE("nothing"), -EINVAL);
        assert_int_equal(PARSE("cat"), -EINVAL);
        assert_int_equal(PARSE("cat", "--path"), -EINVAL);
        assert_int_equal(PARSE("cat", "--path", "relative"), -EINVAL);
        assert_int_equal(PARSE("cat", "--path", "/", "--patch"), -EINVAL);
        assert_int_equal(PARSE("cat", "--path", "/", "--no-follow"), -EINVAL);
        assert_int_equal(PARSE("diff", "--no-follow"), -EINVAL);
        assert_int_equal(PARSE("diff", "--limit", "0"), -EINVAL);
        assert_int_equal(PARSE("diff", "--limit", "-1"), -EINVAL);
        assert_int_equal(PARSE("diff", "--limit", "100001"), -EINVAL);
        assert_int_equal(PARSE("stat", "--path", "/", "--max-bytes", "1"), -EINVAL);
        assert_int_equal(PARSE("diff", "--cursor", "not base64!"), -EINVAL);
        assert_int_equal(PARSE("diff", "--cursor", "YWJj"), -EINVAL); /* no path */
}

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(defaults),
                cmocka_unit_test(prefixes_are_cleaned),
                cmocka_unit_test(longest_paths),
                cmocka_unit_test(refused),
        };
        int r = cmocka_run_group_tests(tests, NULL, NULL);
        free(kept);
        return r;
}
