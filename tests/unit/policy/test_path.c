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
                { "/a/", "/a/%25%32%65%25%32%65/b", PATH_AMBIGUOUS },
                { "/a/", "/a/%252%65/b", PATH_AMBIGUOUS },
                { "/a/", "/a/%25u002e/b", PATH_AMBIGUOUS },
                { "/a/", "/a/%25un/b", PATH_YES },
                { "/a/", "/a/%ef%bc%8e%ef%bc%8e/b", PATH_AMBIGUOUS },
                { "/a/", "/a\xef\xbc\x8f" "b", PATH_AMBIGUOUS },
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

/* --- against plain models ----------------------------------------------------------------- */

/* Patterns by the words of docs/egress.md, without a thought for speed. */
static bool plain_glob(const char *p, const char *s) {
        if (*p == '\0')
                return *s == '\0';
        if (p[0] == '/' && p[1] == '\0' && *s == '/')
                return true;
        if (p[0] == '*' && p[1] == '*')
                return plain_glob(p + 2, s) || (*s && plain_glob(p, s + 1));
        if (*p == '*')
                return plain_glob(p + 1, s) || (*s && *s != '/' && plain_glob(p, s + 1));
        return *s == *p && plain_glob(p + 1, s + 1);
}

/* Next text over an alphabet, shortest first; false after the last of the longest. */
static bool next_text(char *s, const char *alphabet, size_t longest) {
        size_t n = strlen(s);
        for (size_t i = n; i-- > 1;) {
                const char *c = strchr(alphabet, s[i]);
                if (c[1]) {
                        s[i] = c[1];
                        return true;
                }
                s[i] = alphabet[0];
        }
        if (n == longest)
                return false;
        s[n] = alphabet[0];
        s[n + 1] = '\0';
        return true;
}

static void test_every_small_glob(void **state) {
        char pattern[8] = "/";
        unsigned compared = 0;
        (void) state;
        do {
                char *compiled = NULL;
                if (path_pattern(pattern, &compiled, NULL) < 0)
                        continue; /* "//", "***" */
                char target[8] = "/";
                do {
                        if (strstr(target, "//"))
                                continue;
                        struct path *p = path_read(target);
                        bool want = plain_glob(pattern, target);
                        if (path_match(p, (const char *const *) &compiled, 1) != (want ? PATH_YES : PATH_NO))
                                fail_msg("%s on %s is not %d", pattern, target, want);
                        path_free(p);
                        compared++;
                } while (next_text(target, "/ab", 6));
                free(compiled);
        } while (next_text(pattern, "/a*", 6));
        assert_true(compared > 20000);
}

/* What servers do to a path before they look at it, in any combination. */
enum {
        ONCE_MORE = 1,      /* decode twice */
        SLASHES_FIRST = 2,  /* decode before splitting into segments */
        BACKSLASH = 4,      /* is a slash */
        PARAMS = 8,         /* ";..." is no part of a segment */
        MERGE = 16,         /* empty segments vanish */
        DOTS = 32,          /* are resolved */
        MODELS = 64
};

static int nibble(char c) {
        return c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
}

static void lenient_decode(char *s, bool keep_slash) {
        char *to = s;
        for (; *s; s++) {
                int hi = *s == '%' ? nibble(s[1]) : -1, lo = hi >= 0 ? nibble(s[2]) : -1;
                char c = lo < 0 ? *s : (char) (hi << 4 | lo);
                if (lo < 0 || (keep_slash && c == '/')) {
                        *to++ = *s;
                        continue;
                }
                *to++ = c;
                s += 2;
        }
        *to = '\0';
}

static void as_server(const char *raw, unsigned model, char *out) {
        char text[256];
        char *segments[128];
        size_t n = 0;
        strcpy(text, raw);
        lenient_decode(text, !(model & SLASHES_FIRST));
        if (model & ONCE_MORE)
                lenient_decode(text, !(model & SLASHES_FIRST));
        for (char *c = text; model & BACKSLASH && *c; c++)
                *c = *c == '\\' ? '/' : *c;
        for (char *s = text + 1, *end; s; s = end ? end + 1 : NULL) {
                end = strchr(s, '/');
                if (end)
                        *end = '\0';
                if (model & PARAMS)
                        s[strcspn(s, ";")] = '\0';
                if (*s == '\0' && end && model & MERGE)
                        continue;
                if (model & DOTS && (strcmp(s, ".") == 0 || strcmp(s, "..") == 0)) {
                        if (s[1] && n > 0)
                                n--;
                        if (end)
                                continue;
                        s = text + strlen(text); /* "/a/.." is "/" of what is left */
                        *s = '\0';
                }
                segments[n++] = s;
        }
        *out = '\0';
        for (size_t i = 0; i < n; i++)
                out = stpcpy(stpcpy(out, "/"), segments[i]);
        if (n == 0)
                strcpy(out, "/");
}

/* Whatever a server makes of a path: if the rule says yes, it is what the rule means; if it says no, it is not. */
static void test_as_servers_read(void **state) {
        static const char *const pieces[] = { "/", "/", "/", "a", "b", "a", "..", ".", "%2e", "%2e%2e", "%2f", "%2F", ";", ";a", "//", "%25", "%", "\\",
                                              "%5c", "%61", "%3b", "%252e", "%252f", "c", "%32", "%65", "2e" };
        static const char *const patterns[] = { "/a/", "/a", "/a/*", "/a/**", "/a/b", "/*/b", "/**/b", "/**a", "/" };
        unsigned x = 1, yes = 0, no = 0;
        (void) state;
        for (unsigned round = 0; round < 100000; round++) {
                char raw[128] = "/", seen[256];
                x = x * 1664525 + 1013904223;
                for (unsigned i = 0, n = 1 + (x >> 16) % 8; i < n; i++) {
                        x = x * 1664525 + 1013904223;
                        strcat(raw, pieces[(x >> 16) % ARRAY_SIZE(pieces)]);
                }
                const char *pattern = patterns[round % ARRAY_SIZE(patterns)];
                enum path_match m = ask(pattern, raw);
                if (m == PATH_AMBIGUOUS)
                        continue;
                yes += m == PATH_YES ? 1 : 0;
                no += m == PATH_NO ? 1 : 0;
                for (unsigned model = 0; model < MODELS; model++) {
                        as_server(raw, model, seen);
                        /* An encoded slash that is none is a character of its segment. */
                        for (char *c; (c = strcasestr(seen, "%2f"));) {
                                *c = '_';
                                memmove(c + 1, c + 3, strlen(c + 3) + 1);
                        }
                        if (plain_glob(pattern, seen) != (m == PATH_YES))
                                fail_msg("%s on %s is %d, but a server (%u) sees %s", pattern, raw, m, model, seen);
                }
        }
        assert_true(yes > 1000 && no > 1000);
}

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(test_match),
                cmocka_unit_test(test_patterns),
                cmocka_unit_test(test_long),
                cmocka_unit_test(test_every_small_glob),
                cmocka_unit_test(test_as_servers_read),
        };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
