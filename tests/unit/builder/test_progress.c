/* SPDX-License-Identifier: Apache-2.0 */
#include "test.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/fd.h"
#include "base/json.h"
#include "build.h"

static struct build b;
static char path[] = "/tmp/cspace-progress-XXXXXX";
static int out = -1, saved = -1;

/* stdout is a file while a step reports. */
static void begin(void) {
        memset(&b, 0, sizeof b);
        b.log_fd = -EBADF;
        out = open(path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
        assert_true(out >= 0);
        fflush(stdout);
        saved = dup(STDOUT_FILENO);
        assert_true(dup2(out, STDOUT_FILENO) >= 0);
}

static char *end(void) {
        char *text = NULL;

        assert_true(dup2(saved, STDOUT_FILENO) >= 0);
        close(saved);
        close(out);
        assert_int_equal(fd_read_file_at(AT_FDCWD, path, 1 << 20, &text, NULL, NULL), 0);
        unlink(path);
        return text;
}

static json_t *line(char **text) {
        char *nl = strchr(*text, '\n');
        json_t *j = NULL;
        struct error e = ERROR_INIT;

        assert_non_null(nl);
        if (json_parse(*text, (size_t) (nl - *text), 65536, &j, &e) < 0)
                fail_msg("%s", e.msg);
        *text = nl + 1;
        return j;
}

static json_int_t number(const json_t *j, const char *key) {
        return json_integer_value(json_object_get(j, key));
}

static void grows_and_ends_at_a_hundred(void **state) {
        json_int_t last = -1;

        (void) state;
        for (int source = 0; source < 2; source++) {
                begin();
                b.source = source ? SOURCE_TAR : SOURCE_PACKAGES;
                for (unsigned i = 0; i < BUILD_STEPS; i++) {
                        build_step(&b, (enum build_step) i, "begin");
                        for (unsigned p = 0; p <= 100; p += 10)
                                build_progress(&b, p, "more");
                }
                build_done(&b, "abc");
                char *text = end(), *p = text;
                last = -1;
                unsigned n = 0;
                while (*p) {
                        json_t *j = line(&p);
                        assert_true(number(j, "overall") >= last);
                        last = number(j, "overall");
                        if (*p)
                                assert_int_equal(number(j, "of"), BUILD_STEPS);
                        else
                                assert_true(json_is_true(json_object_get(j, "done")));
                        json_decref(j);
                        n++;
                }
                assert_int_equal(last, 100);
                assert_int_equal(n, BUILD_STEPS * 11 + 1);
                free(text);
        }
}

static void repeats_and_falls_are_silent(void **state) {
        (void) state;
        begin();
        build_step(&b, STEP_DISK, "begin");
        build_progress(&b, 50, "half");
        build_progress(&b, 50, "half");
        build_progress(&b, 20, "back");
        build_progress(&b, 900, "over");
        char *text = end(), *p = text;
        json_decref(line(&p));
        json_decref(line(&p));
        json_t *j = line(&p);
        assert_int_equal(number(j, "percent"), 100);
        assert_string_equal(p, "");
        json_decref(j);
        free(text);
}

static const char *failure(const char *key, char *copy, size_t cap) {
        char *text = end(), *p = text;
        json_t *j = line(&p);

        (void) snprintf(copy, cap, "%s", json_string_value(json_object_get(j, key)));
        json_decref(j);
        free(text);
        return copy;
}

static void errors_have_codes(void **state) {
        struct error e = ERROR_INIT;
        char got[4096];

        (void) state;
        begin();
        error_set(&e, -ENOSPC, "full");
        build_failed(&b, &e);
        assert_string_equal(failure("code", got, sizeof got), "no_space");
        begin();
        error_set(&e, -EIO, "x");
        build_failed(&b, &e);
        assert_string_equal(failure("code", got, sizeof got), "build_failed");
        begin();
        build_error(&b, "no_shell", &e, -ENOEXEC, "no %s", "/bin/sh");
        build_failed(&b, &e);
        assert_string_equal(failure("code", got, sizeof got), "no_shell");
        begin();
        build_failed(&b, &e);
        assert_string_equal(failure("error", got, sizeof got), "no /bin/sh");
}

/* Bytes that are no text, in the message and in the log, make no line that is no JSON. */
static void hostile_bytes(void **state) {
        struct error e = ERROR_INIT;
        char got[4096];

        (void) state;
        begin();
        build_log(&b, "a\xff\x1b[31mb\n", 9);
        error_set(&e, -EIO, "bad name \"\xff\xfe\"");
        build_failed(&b, &e);
        assert_string_equal(failure("code", got, sizeof got), "build_failed");
        begin();
        build_log(&b, "a\xff\x1b[31mb\n", 9);
        error_set(&e, -EIO, "plain");
        build_failed(&b, &e);
        assert_string_equal(failure("log", got, sizeof got), "a??[31mb\n");
}

static void tail_is_the_end(void **state) {
        struct error e = ERROR_INIT;
        char got[4096], text[64];

        (void) state;
        begin();
        for (unsigned i = 0; i < 1000; i++) {
                int n = snprintf(text, sizeof text, "line %u\n", i);
                build_log(&b, text, (size_t) n);
        }
        error_set(&e, -EIO, "x");
        build_failed(&b, &e);
        failure("log", got, sizeof got);
        assert_true(strlen(got) <= BUILD_TAIL);
        assert_true(strlen(got) > BUILD_TAIL - 32);
        assert_memory_equal(got, "line ", 5); /* starts with a whole line */
        assert_string_equal(got + strlen(got) - 9, "line 999\n");
        char big[2 * BUILD_TAIL];
        memset(big, 'x', sizeof big);
        begin();
        build_log(&b, big, sizeof big);
        build_failed(&b, &e);
        assert_int_equal(strlen(failure("log", got, sizeof got)), BUILD_TAIL);
}

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(grows_and_ends_at_a_hundred), cmocka_unit_test(repeats_and_falls_are_silent),
                cmocka_unit_test(errors_have_codes),           cmocka_unit_test(hostile_bytes),
                cmocka_unit_test(tail_is_the_end),
        };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
