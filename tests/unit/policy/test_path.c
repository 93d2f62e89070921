/* SPDX-License-Identifier: Apache-2.0 */

/* Paths against patterns (attack catalogue XE26, XE27). */

#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "policy/path.h"
#include "test.h"

static enum path_match ask(const char *pattern, const char *target) {
        char *list[4] = { 0 };
        size_t n = 0;
        _cleanup_free_ char *copy = strdup(pattern);
        struct error err = ERROR_INIT;
        for (char *save, *s = strtok_r(copy, " ", &save); s; s = strtok_r(NULL, " ", &save)) {
                if (path_pattern(s, &list[n], &err) < 0)
                        fail_msg("%s: %s", s, err.msg);
                n++;
        }
        struct path *p = path_read(target);
        assert_non_null(p);
        enum path_match m = path_match(p, (const char *const *) list, n);
        path_free(p);
        for (size_t i = 0; i < n; i++)
                free(list[i]);
        return m;
}

static void test_match(void **state) {
        static const struct {
                const char *pattern, *target;
                enum path_match want;
        } rows[] = {
                { "/a", "/a", PATH_YES },
                { "/a", "/a?b=c", PATH_YES },
                { "/a", "/a?../b", PATH_YES },
                { "/a", "/a/", PATH_NO },
                { "/a", "/ab", PATH_NO },
                { "/a", "/A", PATH_NO },
                { "/a/", "/a/", PATH_YES },
                { "/a/", "/a/b/c", PATH_YES },
                { "/a/", "/a", PATH_NO },
                { "/", "/", PATH_YES },
                { "/", "/x/y", PATH_YES },
                { "/a", "https://h/a", PATH_YES },
                { "/a", "http://h:80/a?x", PATH_YES },
                { "/", "http://h", PATH_YES },
                { "/", "http://h?x", PATH_YES },
                { "/*", "/a", PATH_YES },
                { "/*", "/", PATH_YES },
                { "/*", "/a/b", PATH_NO },
                { "/**", "/a/b", PATH_YES },
                { "/a/*/c", "/a/b/c", PATH_YES },
                { "/a/*/c", "/a/b/b/c", PATH_NO },
                { "/a/**/c", "/a/b/b/c", PATH_YES },
                { "/a*b*c", "/aXbYc", PATH_YES },
                { "/a*b*c", "/aXbY", PATH_NO },
                { "/**x*y", "/a/b/x/xay", PATH_YES },
                { "/**x*y", "/a/b/x/xa/y", PATH_NO },
                { "/**.git", "/a/b.git", PATH_YES },
                { "/*/", "/a/b/c", PATH_YES },
                { "/*/", "/a", PATH_NO },
                { "/a /b", "/b", PATH_YES },
                /* Escapes of what needs none are that byte. */
                { "/abc", "/%61bc", PATH_YES },
                { "/a/", "/%61/x", PATH_YES },
                { "/a+b", "/a+b", PATH_YES },
                { "/b\xc3\xbc", "/b%C3%BC", PATH_YES },
                { "/100%2f", "/100%2F", PATH_AMBIGUOUS },
                /* A question mark that is escaped belongs to the path. */
                { "/a", "/a%3Fb", PATH_NO },
                { "/a*", "/a%3Fb", PATH_YES },
                /* Dot segments, however written. */
                { "/a/", "/a/../b", PATH_AMBIGUOUS },
                { "/a/", "/a/./b", PATH_AMBIGUOUS },
                { "/a/", "/a/..", PATH_AMBIGUOUS },
                { "/a/", "/a/%2e%2e/b", PATH_AMBIGUOUS },
                { "/a/", "/a/%2E./b", PATH_AMBIGUOUS },
                { "/a/", "/a/..;/b", PATH_AMBIGUOUS },
                { "/a/", "/a/..;x=y/b", PATH_AMBIGUOUS },
                { "/a/", "/a/x%2f..%2fb", PATH_AMBIGUOUS },
                { "/a/", "/a/..%2fb", PATH_AMBIGUOUS },
                { "/a/", "/a/...", PATH_YES },
                { "/a/", "/a/..b", PATH_YES },
                { "/a/", "/a/.git", PATH_YES },
                /* Backslashes, doubled escapes, junk. */
                { "/a/", "/a/..\\b", PATH_AMBIGUOUS },
                { "/a/", "/a/%5cb", PATH_AMBIGUOUS },
                { "/a/", "/a/%252e%252e/b", PATH_AMBIGUOUS },
                { "/a/", "/a/%252fb", PATH_AMBIGUOUS },
                { "/a/", "/a/100%25", PATH_YES },
                { "/a/", "/a/%", PATH_AMBIGUOUS },
                { "/a/", "/a/%2", PATH_AMBIGUOUS },
                { "/a/", "/a/%zz", PATH_AMBIGUOUS },
                { "/a/", "/a/%00", PATH_AMBIGUOUS },
                { "/a/", "/a/%0d%0a", PATH_AMBIGUOUS },
                { "/a/", "/a/%7f", PATH_AMBIGUOUS },
                { "/a/", "/a/%c0%ae%c0%ae/b", PATH_AMBIGUOUS },
                { "/a/", "/a/%c0%af", PATH_AMBIGUOUS },
                { "/a/", "/a/%u002e", PATH_AMBIGUOUS },
                { "/a/", "/a/#b", PATH_AMBIGUOUS },
                { "/a/", "*", PATH_AMBIGUOUS },
                { "/a/", "h:443", PATH_AMBIGUOUS },
                { "/a/", "", PATH_AMBIGUOUS },
                /* Empty segments: fine where nothing depends on them. */
                { "/a/", "/a//b", PATH_YES },
                { "/web/", "/web/https://x/y", PATH_YES },
                { "/a/b", "/a//b", PATH_AMBIGUOUS },
                { "/a/b", "//a/b", PATH_AMBIGUOUS },
                { "/a/*", "/a//", PATH_AMBIGUOUS },
                /* Encoded slashes. */
                { "/a/", "/a/b%2fc", PATH_YES },
                { "/a/", "/a%2fb", PATH_AMBIGUOUS },
                { "/a/*", "/a/b%2fc", PATH_AMBIGUOUS },
                { "/a/**", "/a/b%2fc", PATH_YES },
                { "/@org/* /@org%2f*", "/@org%2fpkg", PATH_YES },
                { "/@org/* /@org%2F*", "/@org/pkg", PATH_YES },
                { "/@org/* /@org%2f*", "/@evil%2fpkg", PATH_NO },
                { "/@org%2f*", "/@org%2fpkg", PATH_AMBIGUOUS },
                /* Parameters. */
                { "/a/", "/a/b;x=y", PATH_YES },
                { "/a/b", "/a/b;x", PATH_AMBIGUOUS },
                { "/a/b", "/a;/b", PATH_AMBIGUOUS },
                { "/a/b", "/a/;x/b", PATH_AMBIGUOUS },
                { "/a/b", "/c;x", PATH_NO },
        };
        (void) state;
        for (size_t i = 0; i < ARRAY_SIZE(rows); i++) {
                enum path_match got = ask(rows[i].pattern, rows[i].target);
                if (got != rows[i].want)
                        fail_msg("%s on %s: %d, not %d", rows[i].pattern, rows[i].target, got, rows[i].want);
        }
}

static void test_patterns(void **state) {
        static const char *const bad[] = { "", "a", "*", "//", "/a//b", "/a/../b", "/..", "/./a", "/a/.", "/a?b", "/a#b", "/%61", "/a%",
                                           "/a\\b", "/a\nb", "/a;b", "/***", "/\xff", "/a%2f..", "/\x7f" };
        (void) state;
        for (size_t i = 0; i < ARRAY_SIZE(bad); i++) {
                char *p = NULL;
                struct error err = ERROR_INIT;
                if (path_pattern(bad[i], &p, &err) != -22)
                        fail_msg("\"%s\" was accepted", bad[i]);
                assert_true(err.msg[0] != '\0');
                assert_null(p);
        }
        char longest[PATH_PATTERN_MAX + 2];
        memset(longest, 'a', sizeof longest);
        longest[0] = '/';
        longest[sizeof longest - 1] = '\0';
        char *p = NULL;
        assert_int_equal(path_pattern(longest, &p, NULL), -22);
        longest[PATH_PATTERN_MAX] = '\0';
        assert_int_equal(path_pattern(longest, &p, NULL), 0);
        struct path *t = path_read(longest);
        assert_int_equal(path_match(t, (const char *const *) &p, 1), PATH_YES);
        path_free(t);
        free(p);
}

static void test_long(void **state) {
        char target[PATH_READ_MAX + 2];
        (void) state;
        memset(target, 'a', sizeof target);
        target[0] = '/';
        target[sizeof target - 1] = '\0';
        assert_int_equal(ask("/*", target), PATH_AMBIGUOUS);
        target[PATH_READ_MAX] = '\0';
        assert_int_equal(ask("/*", target), PATH_YES);
        /* What makes backtracking matchers slow. */
        assert_int_equal(ask("/**a**a**a**a**a**a**a**a**b", target), PATH_NO);
        target[PATH_READ_MAX] = '?';
        assert_int_equal(ask("/*", target), PATH_YES);
        /* Several readings, of which each costs time. */
        target[PATH_ODD_MAX + 1] = '\0';
        target[5] = ';';
        assert_int_equal(ask("/*", target), PATH_AMBIGUOUS);
        target[PATH_ODD_MAX] = '\0';
        assert_int_equal(ask("/*", target), PATH_YES);
}

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(test_match),
                cmocka_unit_test(test_patterns),
                cmocka_unit_test(test_long),
        };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
