/* SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "escape.h"
#include "test.h"

static int helped;

static void print(const char *text) {
        helped++;
        assert_non_null(strstr(text, "detaches"));
}

/* Feeds input in pieces of n bytes; what comes out, or NULL after a detach. */
static const char *feed(const char *input, size_t n, const char *setting) {
        static char out[256];
        struct escape e;
        size_t len = 0, total = strlen(input);

        assert_int_equal(escape_init(&e, setting, print, NULL), 0);
        helped = 0;
        for (size_t at = 0; at < total; at += n) {
                uint8_t piece[64];
                size_t give = n < total - at ? n : total - at;

                memcpy(piece, input + at, give);
                ssize_t r = escape_filter(&e, piece, give);
                if (r < 0)
                        return NULL;
                assert_true((size_t) r <= give + 1);
                memcpy(out + len, piece, (size_t) r);
                len += (size_t) r;
        }
        out[len] = '\0';
        return out;
}

static void both(const char *input, const char *setting, const char *output) {
        for (size_t n = 1; n < 32; n++) {
                const char *got = feed(input, n, setting);

                if (!output)
                        assert_null(got);
                else
                        assert_string_equal(got, output);
        }
}

static void test_filter(void **state) {
        (void) state;
        both("hello ~. x", NULL, "hello ~. x");
        both("~.", NULL, NULL);
        both("ls\r~.", NULL, NULL);
        both("ls\n~.", NULL, NULL);
        both("~~.", NULL, "~.");
        both("~~~.", NULL, "~~.");
        both("~x", NULL, "~x");
        both("~xyz\r~ab", NULL, "~xyz\r~ab");
        both("~\r~.", NULL, NULL); /* the line ends after a literal one */
        both("a\r\r~?b\r", NULL, "a\r\rb\r");
        assert_int_equal(helped, 1);
        both("~?~.", NULL, NULL);
}

static void test_settings(void **state) {
        (void) state;
        struct escape e;

        both("~.", "none", "~.");
        both("~.", "%", "~.");
        both("%.", "%", NULL);
        assert_true(escape_init(&e, "ab", print, NULL) < 0);
        assert_true(escape_init(&e, "", print, NULL) < 0);
        assert_true(escape_init(&e, " ", print, NULL) < 0);
        assert_true(escape_init(&e, ".", print, NULL) < 0);
        assert_true(escape_init(&e, "\x80", print, NULL) < 0);
}

int main(void) {
        const struct CMUnitTest tests[] = { cmocka_unit_test(test_filter), cmocka_unit_test(test_settings) };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
