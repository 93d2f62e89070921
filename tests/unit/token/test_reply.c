/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/cleanup.h"
#include "reply.h"

static struct token token;
static struct error error;

static int oauth2(const char *text) {
        error = ERROR_INIT;
        return reply_read_oauth2(text, strlen(text), &token, &error);
}

static int command(const char *text) {
        error = ERROR_INIT;
        return reply_read_command(text, strlen(text), &token, &error);
}

static void accepted(void **state) {
        static const struct {
                const char *text;
                uint64_t seconds;
        } good[] = {
                { "{\"access_token\":\"abcdefgh\",\"token_type\":\"Bearer\",\"expires_in\":3600}", 3600 },
                { "{\"access_token\":\"abcdefgh\",\"token_type\":\"bEARER\",\"scope\":\"x\",\"expires_in\":\"60\"}", 60 },
                { "{\"access_token\":\"abcdefgh\",\"expires_in\":59.9}", 59 },
                { "{\"access_token\":\"abcdefgh\",\"expires_in\":1e300}", TOKEN_SECONDS_MAX },
                { "{\"access_token\":\"abcdefgh\",\"expires_in\":null}", TOKEN_SECONDS_DEFAULT },
                { "{\"access_token\":\"abcdefgh\"}", TOKEN_SECONDS_DEFAULT },
        };
        (void) state;
        for (size_t i = 0; i < ARRAY_SIZE(good); i++) {
                assert_int_equal(oauth2(good[i].text), 0);
                assert_string_equal(token.text, "abcdefgh");
                assert_int_equal(token.seconds, good[i].seconds);
        }
        assert_int_equal(command("{\"token\":\"abcdefgh\",\"expires_in\":5}\n"), 0);
        assert_int_equal(token.seconds, 5);
}

static void refused(void **state) {
        static const char *const bad[] = {
                "", "null", "[]", "\"abcdefgh\"", "{", "{\"access_token\":\"abcdefgh\"} x", "{}", "{\"access_token\":7}",
                "{\"access_token\":\"short\"}", "{\"access_token\":\"abc defgh\"}", "{\"access_token\":\"abcdefgh\\n\"}",
                "{\"access_token\":\"abcdefgh\\u0000\"}", "{\"access_token\":\"abcdefg\\u00e9\"}",
                "{\"access_token\":\"abcdefgh\",\"access_token\":\"abcdefgh\"}", "{\"access_token\":\"abcdefgh\",\"token_type\":\"mac\"}",
                "{\"access_token\":\"abcdefgh\",\"token_type\":7}", "{\"access_token\":\"abcdefgh\",\"expires_in\":0}",
                "{\"access_token\":\"abcdefgh\",\"expires_in\":-1}", "{\"access_token\":\"abcdefgh\",\"expires_in\":\"soon\"}",
                "{\"access_token\":\"abcdefgh\",\"expires_in\":true}", "{\"token\":\"abcdefgh\"}",
        };
        (void) state;
        for (size_t i = 0; i < ARRAY_SIZE(bad); i++) {
                assert_int_equal(oauth2(bad[i]), -EPROTO);
                assert_null(strstr(error.msg, "abcdefgh")); /* nothing of it is told */
        }
        assert_int_equal(command("{\"access_token\":\"abcdefgh\"}"), -EPROTO);
        static char large[TOKEN_LENGTH_MAX + 64];
        (void) snprintf(large, sizeof large, "{\"token\":\"%0*d\"}", TOKEN_LENGTH_MAX, 0);
        assert_int_equal(command(large), 0);
        (void) snprintf(large, sizeof large, "{\"token\":\"%0*d\"}", TOKEN_LENGTH_MAX + 1, 0);
        assert_int_equal(command(large), -EPROTO);
}

static void error_codes(void **state) {
        static const char known[] = "{\"error\":\"invalid_client\",\"error_description\":\"secret hunter2\"}", other[] = "{\"error\":\"hunter2\"}";
        (void) state;
        assert_string_equal(reply_error_code(known, sizeof known - 1), "invalid_client");
        assert_null(reply_error_code(other, sizeof other - 1));
        assert_null(reply_error_code("<html>", 6));
        assert_null(reply_error_code("", 0));
}

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(accepted),
                cmocka_unit_test(refused),
                cmocka_unit_test(error_codes),
        };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
