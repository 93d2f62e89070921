/* SPDX-License-Identifier: Apache-2.0 */
#include "test.h"

#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "confine.h"

/* Each in a process of its own: 0 when the act was done, the signal when it was killed for it. */
static int confined(void (*act)(void), bool threads) {
        pid_t pid = fork();
        assert_true(pid >= 0);
        if (pid == 0) {
                struct error e = ERROR_INIT;
                if (confine(threads, &e) < 0)
                        _exit(1);
                act();
                _exit(0);
        }
        int status;
        assert_int_equal(waitpid(pid, &status, 0), pid);
        if (WIFSIGNALED(status))
                return WTERMSIG(status);
        assert_int_equal(WEXITSTATUS(status), 0);
        return 0;
}

static void open_file(void) {
        (void) open("/etc/passwd", O_RDONLY);
}
static void exec_program(void) {
        execl("/bin/true", "true", (char *) NULL);
}
static void fork_child(void) {
        (void) fork();
}
static void inet_socket(void) {
        (void) socket(AF_INET, SOCK_STREAM, 0);
}
static void netlink_socket(void) {
        (void) socket(AF_NETLINK, SOCK_RAW, 0);
}
static void executable_memory(void) {
        (void) mmap(NULL, 4096, PROT_READ | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
}
static void make_executable(void) {
        void *p = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        (void) mprotect(p, 4096, PROT_READ | PROT_EXEC);
}
static void trace(void) {
        (void) ptrace(PTRACE_TRACEME, 0, 0, 0);
}
static void send_signal(void) {
        (void) kill(getppid(), 0);
}
static void new_limit(void) {
        struct rlimit { unsigned long a, b; } r = { 1, 1 };
        (void) syscall(SYS_prlimit64, 0, 7, &r, NULL);
}

static void ordinary(void) {
        int p[2];
        char *m = malloc(1 << 20);
        if (!m || socketpair(AF_UNIX, SOCK_STREAM, 0, p) < 0 || write(p[0], "x", 1) != 1 || read(p[1], m, 1) != 1)
                _exit(1);
        int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
        if (fd < 0 || fcntl(fd, F_SETFL, O_NONBLOCK) < 0 || prctl(PR_GET_DUMPABLE) != 0)
                _exit(1);
        free(m);
}

static void *thread(void *arg) {
        return arg;
}
static void thread_and_sync(void) {
        pthread_t t;
        if (pthread_create(&t, NULL, thread, NULL) || pthread_join(t, NULL))
                _exit(1);
        (void) fsync(1);
}

static void forbidden(void **state) {
        (void) state;
        static void (*const acts[])(void) = { open_file, exec_program, fork_child, inet_socket, netlink_socket,
                                              executable_memory, make_executable, trace, send_signal, new_limit };
        for (size_t i = 0; i < sizeof(acts) / sizeof(acts[0]); i++)
                assert_int_equal(confined(acts[i], false), SIGSYS);
        assert_int_equal(confined(open_file, true), SIGSYS);
        assert_int_equal(confined(new_limit, true), SIGSYS);
        assert_int_equal(confined(thread_and_sync, false), SIGSYS);
}

static void allowed(void **state) {
        (void) state;
#ifdef __has_feature
#if __has_feature(address_sanitizer)
        skip(); /* it makes system calls of its own */
#endif
#endif
#ifdef __SANITIZE_ADDRESS__
        skip();
#endif
        assert_int_equal(confined(ordinary, true), 0);
        assert_int_equal(confined(thread_and_sync, true), 0);
}

int main(void) {
        const struct CMUnitTest tests[] = { cmocka_unit_test(forbidden), cmocka_unit_test(allowed) };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
