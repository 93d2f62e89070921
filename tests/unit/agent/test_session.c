/* SPDX-License-Identifier: Apache-2.0 */

/*
 * The end of a native session. The minutes for which sessions are kept pass in milliseconds here: timer_start() is
 * wrapped (see meson.build).
 */

#include "test.h"

#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "agent.h"
#include "base/str.h"
#include "io/stream.h"
#include "procs.h"
#include "session.h"
#include "timer.h"

#define LONG_MS 10000

static struct agent agent;
static uv_loop_t loop;

void __real_timer_start(struct timer *t, uint64_t ms);
void __wrap_timer_start(struct timer *t, uint64_t ms);

void __wrap_timer_start(struct timer *t, uint64_t ms) {
        __real_timer_start(t, ms >= LONG_MS ? ms / 1000 : ms);
}

static int set_up(void **state) {
        (void) state;
        (void) signal(SIGPIPE, SIG_IGN);
        agent.loop = &loop;
        if (uv_loop_init(&loop) < 0 || identity_init(&agent.identity, false, NULL) < 0 ||
            cgroups_new(NULL, &agent.cgroups, NULL) < 0 ||
            procs_new(&loop, &agent.identity, agent.cgroups, &agent.procs, NULL) < 0)
                return -1;
        agent.sessions = sessions_new(&agent);
        return agent.sessions ? 0 : -1;
}

static int tear_down(void **state) {
        (void) state;
        sessions_free(agent.sessions);
        procs_free(agent.procs);
        cgroups_free(agent.cgroups);
        identity_done(&agent.identity);
        (void) uv_run(&loop, UV_RUN_DEFAULT);
        return uv_loop_close(&loop);
}

static struct session *prepare(const char *script, char id[ID_SIZE]) {
        struct proc_spec spec = { .argv = calloc(4, sizeof(char *)), .user = strdup("root") };
        spec.argv[0] = strdup("/bin/sh");
        spec.argv[1] = strdup("-c");
        spec.argv[2] = strdup(script);
        struct proc *p = NULL;
        struct session *s = NULL;
        assert_int_equal(procs_create(agent.procs, &spec, &p, NULL), 0);
        assert_int_equal(session_new(agent.sessions, p, &s), 0);
        (void) str_copy(id, ID_SIZE, proc_id(p));
        return s;
}

/* Runs the command with a client that reads all and goes; what it printed is a pid. */
static pid_t run_attached(struct session *s) {
        int fds[2];
        struct stream *conn = NULL;
        char out[4096];
        size_t n = 0;
        assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, fds), 0);
        assert_int_equal(stream_from_fd(&loop, fds[0], &conn, NULL), 0);
        session_attach(s, conn, 0);
        for (ssize_t r = -1; r != 0; r = read(fds[1], out + n, sizeof out - n)) {
                n += r > 0 ? (size_t) r : 0;
                (void) uv_run(&loop, UV_RUN_NOWAIT);
                assert_true(n < sizeof out);
        }
        (void) close(fds[1]);
        const char *mark = memmem(out, n, "pid=", 4);
        assert_non_null(mark);
        return (pid_t) strtol(mark + 4, NULL, 10);
}

static void wait_forgotten(const char *id) {
        while (session_by_id(agent.sessions, id))
                (void) uv_run(&loop, UV_RUN_ONCE);
}

static bool runs(pid_t pid) {
        for (int i = 0; i < 20; i++) /* a signal that was sent arrives, and the loop reaps */
                (void) uv_run(&loop, UV_RUN_NOWAIT);
        return kill(pid, 0) == 0;
}

static void background_outlives_the_session(void **state) {
        (void) state;
        char id[ID_SIZE];
        pid_t pid = run_attached(prepare("sleep 321 & echo pid=$!", id));
        assert_true(pid > 1);
        wait_forgotten(id);
        assert_true(runs(pid));
        /* It is still known by the command's name, so that it can be killed. */
        struct proc *p = procs_by_id(agent.procs, id);
        assert_non_null(p);
        assert_int_equal(proc_state(p), PROC_ENDED);
        procs_delete(p);
        while (runs(pid))
                (void) uv_run(&loop, UV_RUN_ONCE);
}

static void a_server_without_our_pipes_too(void **state) {
        (void) state;
        char id[ID_SIZE];
        pid_t pid = run_attached(prepare("setsid sleep 322 </dev/null >/dev/null 2>&1 & echo pid=$!", id));
        wait_forgotten(id);
        assert_true(runs(pid));
        assert_int_equal(kill(pid, SIGKILL), 0);
        while (runs(pid))
                (void) uv_run(&loop, UV_RUN_ONCE);
}

static void delete_kills(void **state) {
        (void) state;
        char id[ID_SIZE];
        struct session *s = prepare("sleep 323 & echo pid=$!", id);
        pid_t pid = run_attached(s);
        session_delete(session_by_id(agent.sessions, id));
        while (runs(pid))
                (void) uv_run(&loop, UV_RUN_ONCE);
        assert_null(procs_by_id(agent.procs, id));
}

static void never_attached_is_forgotten(void **state) {
        (void) state;
        char id[ID_SIZE];
        (void) prepare("true", id);
        wait_forgotten(id);
        assert_null(procs_by_id(agent.procs, id));
}

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test_setup_teardown(background_outlives_the_session, set_up, tear_down),
                cmocka_unit_test_setup_teardown(a_server_without_our_pipes_too, set_up, tear_down),
                cmocka_unit_test_setup_teardown(delete_kills, set_up, tear_down),
                cmocka_unit_test_setup_teardown(never_attached_is_forgotten, set_up, tear_down),
        };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
