/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "egress/token_answer.h"

static int read_text(const char *text, size_t n, char *secret, uint64_t *seconds, struct error *e) {
        *e = ERROR_INIT;
        /* A copy of just its length, for the sanitizer. */
        _cleanup_free_ char *copy = malloc(n ? n : 1);
        assert_non_null(copy);
        memcpy(copy, text, n);
        return token_answer_read(copy, n, secret, seconds, e);
}

static void tokens(void **state) {
        char secret[BINDING_SECRET_MAX + 1] = "untouched";
        static const char good[] = "token 3600 10\nabcdefghij\n";
        uint64_t seconds = 7;
        struct error e;
        (void) state;
        assert_int_equal(read_text(good, sizeof good - 1, secret, &seconds, &e), 0);
        assert_string_equal(secret, "abcdefghij");
        assert_int_equal(seconds, 3600);
        for (size_t n = 0; n < sizeof good - 1; n++) { /* cut off anywhere */
                seconds = 7;
                assert_int_equal(read_text(good, n, secret, &seconds, &e), -EIO);
                assert_int_equal(seconds, 7);
                assert_null(strstr(e.msg, "abc"));
        }
}

static void failures(void **state) {
        char secret[BINDING_SECRET_MAX + 1];
        uint64_t seconds;
        struct error e;
        (void) state;
        assert_int_equal(read_text("error it is so\n", 15, secret, &seconds, &e), -EIO);
        assert_string_equal(e.msg, "it is so");
}

static void hostile(void **state) {
        static const char *const bad[] = {
                "\n", "token\n", "token \n", "token 1\n", "token 0 8\nabcdefgh\n", "token 9999999 8\nabcdefgh\n", "token -1 8\nabcdefgh\n",
                "token 60 7\nabcdefg\n", "token 60 8193\nx\n", "token 60 99999999999999999999\nabcdefgh\n", "token 60  8\nabcdefgh\n",
                "token 60 8\nabcd fgh\n", "token 60 8\nabcd\177fgh\n", "token 60 8 \nabcdefgh\n", "error two\nlines\n", "error \x1b[1m\n",
                "error \xc3\xa9\n", "errors\n", "Token 60 8\nabcdefgh\n",
        };
        char secret[BINDING_SECRET_MAX + 1];
        uint64_t seconds;
        struct error e;
        (void) state;
        for (size_t i = 0; i < ARRAY_SIZE(bad); i++) {
                int r = read_text(bad[i], strlen(bad[i]), secret, &seconds, &e);
                if (r != -EPROTO)
                        print_error("%s: %d\n", bad[i], r);
                assert_int_equal(r, -EPROTO);
        }
        static const char more[] = "token 60 8\nabcdefgh\nx", nul[] = "token 60 8\nabc\0efgh\n";
        assert_int_equal(read_text(more, sizeof more - 1, secret, &seconds, &e), -EIO);
        assert_int_equal(read_text(nul, sizeof nul - 1, secret, &seconds, &e), -EPROTO);
}

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(tokens),
                cmocka_unit_test(failures),
                cmocka_unit_test(hostile),
        };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
