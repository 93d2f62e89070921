/* SPDX-License-Identifier: Apache-2.0 */
#include "../test.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "rootd/childlog.h"

static void levels(void **state) {
        static const struct {
                const char *line, *message;
                enum log_level level;
        } t[] = {
                { "2026-01-01T00:00:00.000Z error cspace-warden: a: b", "a: b", LOG_LVL_ERROR },
                { "2026-01-01T00:00:00.000Z info cspace-warden: ", "", LOG_LVL_INFO },
                { "2026 debug x: y", "y", LOG_LVL_DEBUG },
                { "2026 fatal x: y", "2026 fatal x: y", LOG_LVL_WARN },
                { "2026 errorerrorerror x: y", "2026 errorerrorerror x: y", LOG_LVL_WARN },
                { "free text: here", "free text: here", LOG_LVL_WARN },
                { "", "", LOG_LVL_WARN },
                { "  : ", "  : ", LOG_LVL_WARN },
        };
        (void) state;
        for (size_t i = 0; i < sizeof t / sizeof t[0]; i++) {
                const char *message = NULL;
                assert_int_equal(childlog_parse(t[i].line, &message), t[i].level);
                assert_string_equal(message, t[i].message);
        }
}

/* What reached our own log, whose descriptor 2 is the file here. */
static size_t logged(int file, char *out, size_t cap) {
        ssize_t n = pread(file, out, cap - 1, 0);
        assert_true(n >= 0);
        out[n] = '\0';
        return (size_t) n;
}

static void a_flood_is_bounded(void **state) {
        static char text[64 * 1024];
        char dir[] = "/tmp/test_childlog.XXXXXX", piece[4096];
        uv_loop_t loop;
        struct childlog *l = NULL;
        (void) state;
        assert_non_null(mkdtemp(dir));
        int at = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC), own = dup(STDERR_FILENO);
        int file = openat(at, "log", O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
        assert_int_equal(uv_loop_init(&loop), 0);
        assert_int_equal(childlog_new(&loop, at, "x.log", "cspace-warden", "abc", &l, NULL), 0);
        int w = childlog_writer(l);
        assert_true(w >= 0);
        (void) dup2(file, STDERR_FILENO);
        for (size_t i = 0; i < sizeof piece; i++)
                piece[i] = i % 8 == 7 ? '\n' : 'f';
        size_t taken = 0;
        for (int i = 0; i < 1000; i++) { /* 4 MB are offered */
                ssize_t n = write(w, piece, sizeof piece);
                taken += n > 0 ? (size_t) n : 0;
                (void) uv_run(&loop, UV_RUN_NOWAIT);
        }
        (void) dup2(own, STDERR_FILENO);
        assert_true(taken >= CHILDLOG_BYTES && taken < CHILDLOG_BYTES + 128 * 1024); /* and what a pipe holds */
        assert_true(logged(file, text, sizeof text) < (CHILDLOG_LINES + 2) * 160);
        assert_non_null(strstr(text, "cspace-warden of sandbox abc: fffffff"));
        assert_non_null(strstr(text, "the rest waits"));
        childlog_free(l);
        (void) uv_run(&loop, UV_RUN_DEFAULT);
        assert_int_equal(uv_loop_close(&loop), 0);
        (void) unlinkat(at, "x.log", 0);
        (void) unlinkat(at, "log", 0);
        (void) close(at);
        (void) close(w);
        (void) close(own);
        (void) close(file);
        (void) rmdir(dir);
}

static void only_a_fifo_is_taken(void **state) {
        char dir[] = "/tmp/test_childlog.XXXXXX";
        uv_loop_t loop;
        struct childlog *l = NULL;
        struct error e = ERROR_INIT;
        (void) state;
        assert_non_null(mkdtemp(dir));
        int at = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        int file = openat(at, "x.log", O_RDWR | O_CREAT | O_CLOEXEC, 0600);
        assert_int_equal(symlinkat("/dev/null", at, "y.log"), 0);
        assert_int_equal(uv_loop_init(&loop), 0);
        assert_true(childlog_new(&loop, at, "x.log", "p", "abc", &l, &e) < 0);
        assert_true(childlog_new(&loop, at, "y.log", "p", "abc", &l, &e) < 0);
        assert_null(l);
        (void) uv_run(&loop, UV_RUN_DEFAULT);
        assert_int_equal(uv_loop_close(&loop), 0);
        (void) unlinkat(at, "x.log", 0);
        (void) unlinkat(at, "y.log", 0);
        (void) close(at);
        (void) close(file);
        (void) rmdir(dir);
}

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(levels),
                cmocka_unit_test(a_flood_is_bounded),
                cmocka_unit_test(only_a_fifo_is_taken),
        };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
