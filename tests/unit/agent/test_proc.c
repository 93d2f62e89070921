/* SPDX-License-Identifier: Apache-2.0 */
#include "test.h"

#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/clock.h"
#include "procs.h"

static uv_loop_t loop;
static struct identity identity;
static struct cgroups *cgroups;
static struct procs *procs;

struct seen {
        struct proc_watch w;
        struct buf out[3];
        bool ended;
        size_t hold_at; /* hold when so many bytes of stdout came; 0: never */
};

static void on_output(void *arg, enum proc_channel ch, const uint8_t *data, size_t n) {
        struct seen *s = arg;
        assert_int_equal(buf_append(&s->out[ch], data, n), 0);
        if (s->hold_at && s->out[ch].len >= s->hold_at)
                proc_watch_hold(&s->w);
}

static void on_end(void *arg) {
        struct seen *s = arg;
        s->ended = true;
}

static const struct proc_watch_ops ops = { .on_output = on_output, .on_end = on_end };

static int set_up(void **state) {
        (void) state;
        (void) signal(SIGPIPE, SIG_IGN);
        return uv_loop_init(&loop) < 0 || identity_init(&identity, false, NULL) < 0 || cgroups_new(NULL, &cgroups, NULL) < 0 ||
               procs_new(&loop, &identity, cgroups, &procs, NULL) < 0;
}

static int tear_down(void **state) {
        (void) state;
        procs_free(procs);
        cgroups_free(cgroups);
        identity_done(&identity);
        (void) uv_run(&loop, UV_RUN_DEFAULT);
        return uv_loop_close(&loop);
}

static struct proc *start(struct seen *s, bool with_stdin, const char *script, int want) {
        struct proc_spec spec = { .argv = calloc(4, sizeof(char *)), .stdin_open = with_stdin, .user = strdup("root") };
        spec.argv[0] = strdup("/bin/sh");
        spec.argv[1] = strdup("-c");
        spec.argv[2] = strdup(script);
        struct proc *p = NULL;
        *s = (struct seen){ .ended = false };
        assert_int_equal(procs_create(procs, &spec, &p, NULL), 0);
        proc_watch_add(p, &s->w, &ops, s);
        assert_int_equal(proc_start(p, NULL), want);
        return p;
}

static void wait_end(struct seen *s) {
        while (!s->ended)
                (void) uv_run(&loop, UV_RUN_ONCE);
}

static void forget(struct seen *s, struct proc *p) {
        for (size_t i = 0; i < 3; i++)
                buf_done(&s->out[i]);
        procs_delete(p);
}

static void output_and_exit(void **state) {
        (void) state;
        struct seen s;
        struct proc *p = start(&s, false, "printf 'a\\n\\n\\nb\\n'; echo e >&2; cat; exit 3", 0);
        assert_ptr_equal(procs_by_pid(procs, proc_pid(p)), p);
        wait_end(&s);
        assert_string_equal(buf_str(&s.out[PROC_STDOUT]), "a\n\n\nb\n");
        assert_string_equal(buf_str(&s.out[PROC_STDERR]), "e\n");
        assert_int_equal(proc_exit_code(p), 3);
        assert_int_equal(proc_reason(p), PROC_EXITED);
        assert_int_equal(proc_signal(p, SIGTERM), -ESRCH);
        forget(&s, p);
}

/* A process left behind with the pipes open neither delays the end nor loses what was written. */
static void background(void **state) {
        (void) state;
        struct seen s;
        uint64_t began = clock_mono_ms();
        struct proc *p = start(&s, false, "sleep 100 & head -c 60000 /dev/zero; echo up", 0);
        wait_end(&s);
        assert_true(clock_mono_ms() - began < 5000);
        assert_int_equal(s.out[PROC_STDOUT].len, 60003);
        assert_int_equal(proc_exit_code(p), 0);
        forget(&s, p);
}

/* All output written before the exit is seen, also when the reader is slow and the pipe is full. */
static void held_output(void **state) {
        (void) state;
        struct seen s;
        struct proc *p = start(&s, false, "head -c 300000 /dev/zero; sleep 100 & exit 0", 0);
        s.hold_at = 32768;
        for (int i = 0; i < 1000 && !s.ended; i++) {
                proc_watch_release(&s.w);
                (void) uv_run(&loop, UV_RUN_ONCE);
        }
        assert_true(s.ended);
        assert_int_equal(s.out[PROC_STDOUT].len, 300000);
        forget(&s, p);
}

static void kill_tree(void **state) {
        (void) state;
        struct seen s;
        struct proc *p = start(&s, false, "(sleep 100 & sleep 101 & wait) & setsid sleep 102 & until pgrep -fx 'sleep 100' && "
                               "pgrep -fx 'sleep 101' && pgrep -fx 'sleep 102'; do :; done >/dev/null; echo all; wait", 0);
        while (s.out[PROC_STDOUT].len == 0)
                (void) uv_run(&loop, UV_RUN_ONCE);
        assert_int_equal(proc_signal(p, SIGKILL), 0);
        wait_end(&s);
        assert_int_equal(proc_exit_signal(p), SIGKILL);
        assert_int_equal(proc_exit_code(p), -1);
        assert_int_equal(proc_reason(p), PROC_KILLED);
        assert_int_equal(system("for i in 100 101 102; do pgrep -fx \"sleep $i\" && exit 1; done; exit 0"), 0);
        forget(&s, p);
}

static void timeout(void **state) {
        (void) state;
        struct seen s;
        struct proc *p = start(&s, false, "echo part; sleep 100", 0);
        while (s.out[PROC_STDOUT].len == 0)
                (void) uv_run(&loop, UV_RUN_ONCE);
        proc_set_timeout(p, 100);
        wait_end(&s);
        assert_string_equal(buf_str(&s.out[PROC_STDOUT]), "part\n");
        assert_int_equal(proc_reason(p), PROC_TIMEOUT);
        forget(&s, p);
}

static int written, failed;

static void input_cb(void *arg, int err) {
        (void) arg;
        if (err < 0)
                failed++;
        else
                written++;
}

static void input(void **state) {
        (void) state;
        struct seen s;
        size_t n = 3 * 1024 * 1024;
        char *data = calloc(1, n);
        written = failed = 0;
        struct proc *p = start(&s, true, "wc -c", 0);
        for (int i = 0; i < 4; i++)
                assert_int_equal(proc_input(p, data, n, input_cb, NULL, NULL), 0);
        assert_int_equal(proc_input_end(p), 0);
        assert_int_equal(proc_input(p, "x", 1, input_cb, NULL, NULL), -EPIPE);
        wait_end(&s);
        assert_int_equal(written, 4);
        assert_string_equal(buf_str(&s.out[PROC_STDOUT]), "12582912\n");
        forget(&s, p);

        written = failed = 0;
        p = start(&s, true, "head -c1 >/dev/null; exec <&-; echo closed; sleep 100", 0);
        assert_int_equal(proc_input(p, data, n, input_cb, NULL, NULL), 0);
        while (!failed)
                (void) uv_run(&loop, UV_RUN_ONCE);
        assert_false(proc_input_open(p));
        forget(&s, p);
        assert_true(s.ended);

        p = start(&s, true, "sleep 100", 0);
        for (int i = 0; i < 5; i++)
                assert_int_equal(proc_input(p, data, n, NULL, NULL, NULL), 0);
        assert_int_equal(proc_input(p, data, n, NULL, NULL, NULL), -ENOBUFS);
        forget(&s, p);
        free(data);
}

static void deleted_is_not_success(void **state) {
        (void) state;
        struct seen s;
        struct proc *p = start(&s, false, "sleep 100", 0);
        proc_pin(p);
        (void) uv_run(&loop, UV_RUN_NOWAIT);
        /* on_end comes inside; what it may ask for is not an exit status of 0 */
        procs_delete(p);
        assert_true(s.ended);
}

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(output_and_exit), cmocka_unit_test(background), cmocka_unit_test(held_output),
                cmocka_unit_test(kill_tree), cmocka_unit_test(timeout), cmocka_unit_test(input),
                cmocka_unit_test(deleted_is_not_success),
        };
        return cmocka_run_group_tests(tests, set_up, tear_down);
}
