/* SPDX-License-Identifier: Apache-2.0 */
#include "test.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/log.h"

/* Runs fn with stderr going to a pipe and returns what it wrote. */
static void captured(void (*fn)(void), char *out, size_t cap) {
        int p[2], saved = dup(STDERR_FILENO);
        assert_int_equal(pipe(p), 0);
        assert_int_equal(dup2(p[1], STDERR_FILENO), STDERR_FILENO);
        close(p[1]);
        fn();
        assert_int_equal(dup2(saved, STDERR_FILENO), STDERR_FILENO);
        close(saved);
        size_t n = 0;
        ssize_t r;
        while ((r = read(p[0], out + n, cap - 1 - n)) > 0)
                n += (size_t) r;
        out[n] = '\0';
        close(p[0]);
}

static void forge(void) {
        log_info("guest said %s", "x\n2026 error cspaced: \"forged\" \x1b[31m");
}

static void one_line_whatever_is_in_it(void **state) {
        (void) state;
        char out[4096];
        setenv("CSPACE_LOG_FORMAT", "json", 1);
        log_setup("test", LOG_LVL_INFO);
        captured(forge, out, sizeof out);
        assert_ptr_equal(strchr(out, '\n'), out + strlen(out) - 1);
        assert_null(strchr(out, '\x1b'));
        assert_non_null(strstr(out, "\\u000a2026 error cspaced: \\\"forged\\\" \\u001b[31m"));
        assert_non_null(strstr(out, "\"level\":\"info\",\"program\":\"test\""));
}

static void below_level(void) {
        log_debug("not wanted");
}

static void level_counts(void **state) {
        (void) state;
        char out[256];
        log_setup("test", LOG_LVL_INFO);
        captured(below_level, out, sizeof out);
        assert_string_equal(out, "");
        enum log_level level;
        assert_int_equal(log_level_parse("debug", &level), 0);
        assert_int_equal(level, LOG_LVL_DEBUG);
        assert_true(log_level_parse("loud", &level) < 0);
}

static void bursts_are_cut(void **state) {
        (void) state;
        struct log_limit l = { 0 };
        unsigned dropped = 9;
        for (int i = 0; i < 3; i++)
                assert_true(log_limit_pass(&l, 3, &dropped));
        assert_int_equal(dropped, 0);
        for (int i = 0; i < 5; i++)
                assert_false(log_limit_pass(&l, 3, &dropped));
        l.window_ms -= 10000; /* the window has passed */
        assert_true(log_limit_pass(&l, 3, &dropped));
        assert_int_equal(dropped, 5);
}

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(one_line_whatever_is_in_it),
                cmocka_unit_test(level_counts),
                cmocka_unit_test(bursts_are_cut),
        };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
