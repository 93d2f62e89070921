/* SPDX-License-Identifier: Apache-2.0 */
#include "test.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "child.h"

static struct build b;
static struct error err;

static int setup(void **state) {
        (void) state;
        memset(&b, 0, sizeof b);
        b.log_fd = -EBADF;
        err = ERROR_INIT;
        return 0;
}

static char lines[8][128];
static unsigned n_lines;
static void on_line(void *arg, const char *line) {
        (void) arg;
        if (n_lines < 8)
                (void) snprintf(lines[n_lines++], sizeof lines[0], "%s", line);
}

static int sh(const char *script) {
        const char *const argv[] = { "sh", "-c", script, NULL };
        struct child c = CHILD_INIT;

        c.argv = argv;
        c.on_line = on_line;
        n_lines = 0;
        return child_run(&b, &c, &err);
}

static void lines_and_log(void **state) {
        (void) state;
        assert_int_equal(sh("echo one; echo two >&2; printf 'a\\rb\\n\\nlast'"), 0);
        assert_int_equal(n_lines, 6);
        assert_string_equal(lines[0], "one");
        assert_string_equal(lines[1], "two");
        assert_string_equal(lines[2], "a");
        assert_string_equal(lines[3], "b");
        assert_string_equal(lines[4], "");
        assert_string_equal(lines[5], "last");
        assert_int_equal(b.tail_n, strlen("one\ntwo\na\rb\n\nlast"));
}

static void lines_that_are_not_logged(void **state) {
        const char *const argv[] = { "sh", "-c", "echo dlstatus:1; echo real; printf 'dlstatus:2\\nlast'", NULL };
        struct child c = CHILD_INIT;

        (void) state;
        c.argv = argv;
        c.on_line = on_line;
        c.unlogged = "dlstatus:";
        n_lines = 0;
        assert_int_equal(child_run(&b, &c, &err), 0);
        assert_int_equal(n_lines, 4);
        assert_string_equal(lines[0], "dlstatus:1");
        assert_int_equal(b.tail_n, strlen("real\nlast\n"));
        assert_memory_equal(b.tail, "real\nlast\n", b.tail_n);
}

static void failure_names_the_last_line(void **state) {
        (void) state;
        assert_int_equal(sh("echo reason; exit 3"), -EIO);
        assert_string_equal(err.msg, "sh failed with status 3: reason");
        assert_int_equal(sh("kill -9 $$"), -EIO);
        assert_non_null(strstr(err.msg, "137"));
}

static void missing_program(void **state) {
        static const char *const argv[] = { "cspace-no-such-program", NULL };
        struct child c = CHILD_INIT;

        (void) state;
        c.argv = argv;
        assert_int_equal(child_run(&b, &c, &err), -EIO);
        assert_non_null(strstr(err.msg, "No such file"));
}

static void full_disk_has_its_own_error(void **state) {
        (void) state;
        assert_int_equal(sh("echo 'cannot write: No space left on device'; exit 1"), -ENOSPC);
        assert_string_equal(b.code, "no_space");
}

/* Not only the child, but what it left in the background with the pipe open. */
static void out_of_time(void **state) {
        (void) state;
        uint64_t begin = clock_mono_ms();
        b.deadline_ms = begin + 300;
        assert_int_equal(sh("sleep 600 & echo $!; sleep 600"), -ETIMEDOUT);
        assert_true(clock_mono_ms() - begin < 10000);
        assert_string_equal(b.code, "timeout");
        assert_int_equal(n_lines, 1);
        pid_t left = atoi(lines[0]);
        assert_true(left > 1);
        for (unsigned i = 0; kill(left, 0) == 0 && i < 500; i++) {
                char path[64], state_line[256] = "";
                (void) snprintf(path, sizeof path, "/proc/%d/stat", (int) left);
                FILE *f = fopen(path, "re");
                if (!f || !fgets(state_line, sizeof state_line, f) || strstr(state_line, ") Z"))
                        i = 500; /* dead, and its new parent has not looked yet */
                if (f)
                        fclose(f);
                usleep(10000);
                assert_int_not_equal(i, 499);
        }
}

static void output_is_taken_whole_and_bounded(void **state) {
        static const char *const argv[] = { "seq", "10000", NULL };
        struct child c = CHILD_INIT;
        char *text = NULL;

        (void) state;
        c.argv = argv;
        assert_int_equal(child_output(&b, &c, 1 << 20, &text, &err), 0);
        assert_int_equal(strlen(text), 48894);
        free(text);
        assert_int_equal(child_output(&b, &c, 100, &text, &err), -EFBIG);
}

static void environment_is_fixed(void **state) {
        static const char *const argv[] = { "env", NULL };
        static const char *const extra[] = { "MORE=1", NULL };
        struct child c = CHILD_INIT;
        char *text = NULL;

        (void) state;
        assert_int_equal(setenv("SECRET_OF_CALLER", "x", 1), 0);
        assert_int_equal(setenv("http_proxy", "http://proxy.test", 1), 0);
        c.argv = argv;
        c.env = extra;
        assert_int_equal(child_output(&b, &c, 1 << 20, &text, &err), 0);
        assert_null(strstr(text, "SECRET_OF_CALLER"));
        assert_non_null(strstr(text, "http_proxy=http://proxy.test\n"));
        assert_non_null(strstr(text, "MORE=1\n"));
        assert_non_null(strstr(text, "LC_ALL=C.UTF-8\n"));
        free(text);
}

static int called(void *arg) {
        printf("called %d\n", *(const int *) arg);
        fflush(stdout);
        return 5;
}

static void calls_a_function(void **state) {
        struct child c = CHILD_INIT;
        int n = 7, status = 0;

        (void) state;
        c.call = called;
        c.call_arg = &n;
        assert_int_equal(child_run_status(&b, &c, &status, &err), 0);
        assert_int_equal(status, 5);
        assert_memory_equal(b.tail, "called 7\n", 9);
}

static void reads_its_input(void **state) {
        static const char *const argv[] = { "tr", "a-z", "A-Z", NULL };
        char path[] = "/tmp/cspace-child-XXXXXX", *text = NULL;
        struct child c = CHILD_INIT;

        (void) state;
        int fd = mkstemp(path);
        assert_int_equal(write(fd, "abc", 3), 3);
        assert_int_equal(lseek(fd, 0, SEEK_SET), 0);
        c.argv = argv;
        c.in_fd = fd;
        assert_int_equal(child_output(&b, &c, 100, &text, &err), 0);
        assert_string_equal(text, "ABC");
        free(text);
        close(fd);
        unlink(path);
}

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test_setup(lines_and_log, setup),
                cmocka_unit_test_setup(lines_that_are_not_logged, setup),
                cmocka_unit_test_setup(failure_names_the_last_line, setup),
                cmocka_unit_test_setup(missing_program, setup),
                cmocka_unit_test_setup(full_disk_has_its_own_error, setup),
                cmocka_unit_test_setup(out_of_time, setup),
                cmocka_unit_test_setup(output_is_taken_whole_and_bounded, setup),
                cmocka_unit_test_setup(environment_is_fixed, setup),
                cmocka_unit_test_setup(calls_a_function, setup),
                cmocka_unit_test_setup(reads_its_input, setup),
        };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
