/* SPDX-License-Identifier: Apache-2.0 */
#include "../test.h"

/* What processes can be to those who make images of them: the tests' own children play the VM. */
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/fd.h"
#include "rootd/process_image.h"
#include "rootd/process_stop.h"

#define MEMORY_BYTES (4u << 20)

static int dir_fd, ready[2], over[2];
static char dir[] = "/tmp/cspace-process-XXXXXX";

static int setup(void **state) {
        (void) state;
        assert_non_null(mkdtemp(dir));
        dir_fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        return 0;
}

static int teardown(void **state) {
        (void) state;
        (void) fd_remove_tree_at(AT_FDCWD, dir, NULL);
        fd_close(dir_fd);
        return 0;
}

static void tell_ready(void) {
        if (write(ready[1], "r", 1) != 1)
                _exit(1);
}

static pid_t start(void (*play)(void)) {
        char c;
        assert_int_equal(pipe2(ready, O_CLOEXEC), 0);
        assert_int_equal(pipe2(over, O_CLOEXEC), 0);
        pid_t pid = fork();
        if (pid == 0) {
                (void) prctl(PR_SET_PDEATHSIG, SIGKILL);
                (void) fd_close(ready[0]);
                (void) fd_close(over[1]);
                play();
                _exit(0);
        }
        assert_true(pid > 0);
        (void) fd_close(ready[1]);
        assert_int_equal(read(ready[0], &c, 1), 1);
        return pid;
}

static void end(pid_t pid) {
        int status;
        (void) kill(pid, SIGKILL);
        assert_int_equal(waitpid(pid, &status, __WALL), pid);
        (void) fd_close(ready[0]);
        (void) fd_close(over[0]);
        (void) fd_close(over[1]);
}

/* Tries again as process_image_save() does. */
static int stop(pid_t pid, struct procimage_head *head, struct error *e) {
        int r = -EAGAIN;
        for (unsigned i = 0; i < 50 && r == -EAGAIN; i++) {
                memset(head, 0, sizeof *head);
                r = process_stop(pid, head, e);
                if (r == -EAGAIN)
                        (void) usleep(10000);
        }
        return r;
}

static void play_sleeper(void) {
        tell_ready();
        (void) close_range(3, ~0u, 0); /* of which an image can hold few */
        for (;;)
                (void) pause();
}

static void heap_is_known(void **state) {
        (void) state;
        struct error e = ERROR_INIT;
        struct procimage_head *head = malloc(sizeof *head);
        pid_t pid = start(play_sleeper);
        assert_int_equal(stop(pid, head, &e), 0);
        /* the child's is where the parent's is */
        assert_int_equal(head->brk, (uint64_t) (uintptr_t) sbrk(0));
        assert_true(head->start_brk != 0 && head->start_brk <= head->brk);
        process_continue(pid);
        end(pid);
        free(head);
}

/* One who has a child by vfork stops when that has ended. */
static void play_hanging(void) {
        pid_t pid = vfork();
        if (pid == 0) {
                char c;
                tell_ready();
                (void) !read(over[0], &c, 1);
                _exit(0);
        }
        _exit(0);
}

static void one_that_does_not_stop_is_left(void **state) {
        (void) state;
        struct error e = ERROR_INIT;
        struct procimage_head *head = calloc(1, sizeof *head);
        pid_t pid = start(play_hanging);
        assert_int_equal(process_stop(pid, head, &e), -ETIMEDOUT);
        assert_non_null(strstr(e.msg, "does not stop"));
        end(pid);
        free(head);
}

static void play_echo(void) {
        char c;
        tell_ready();
        while (read(over[0], &c, 1) == 1)
                tell_ready();
        _exit(0);
}

/* The program that makes an image may be killed. */
static void it_outlives_who_stopped_it(void **state) {
        (void) state;
        char c;
        int status;
        pid_t pid = start(play_echo), job = fork();
        if (job == 0) {
                struct error e = ERROR_INIT;
                struct procimage_head *head = malloc(sizeof *head);
                _exit(head && stop(pid, head, &e) == 0 ? 0 : 1);
        }
        assert_int_equal(waitpid(job, &status, 0), job);
        if (status != 0 && geteuid() != 0) { /* others than root may be allowed to trace their children alone */
                end(pid);
                skip();
        }
        assert_int_equal(status, 0);
        assert_int_equal(write(over[1], "e", 1), 1);
        assert_int_equal(read(ready[0], &c, 1), 1);
        end(pid);
}

static volatile sig_atomic_t got;

static void on_signal(int sig) {
        (void) sig;
        got++;
}

/* Signals are all that it gets, as fast as it can be sent them by itself. */
static void play_signalled(void) {
        (void) signal(SIGUSR1, on_signal);
        sigset_t usr1, none;
        (void) sigemptyset(&none);
        (void) sigemptyset(&usr1);
        (void) sigaddset(&usr1, SIGUSR1);
        (void) sigprocmask(SIG_BLOCK, &usr1, NULL);
        tell_ready();
        for (int sent = 1;; sent++) {
                (void) raise(SIGUSR1);
                (void) sigsuspend(&none);
                if (got != sent) {
                        static const char lost[] = "l";
                        (void) !write(ready[1], lost, 1);
                        _exit(1);
                }
        }
}

static void no_signal_is_lost(void **state) {
        (void) state;
        struct error e = ERROR_INIT;
        struct procimage_head *head = malloc(sizeof *head);
        pid_t pid = start(play_signalled);
        for (unsigned i = 0; i < 2000; i++) {
                memset(head, 0, sizeof *head);
                int r = process_stop(pid, head, &e);
                assert_true(r == 0 || r == -EAGAIN);
                if (r == 0)
                        process_continue(pid);
        }
        assert_int_equal(kill(pid, 0), 0);
        assert_int_equal(waitpid(pid, NULL, WNOHANG | __WALL), 0);
        end(pid);
        free(head);
}

static int memory_fd;

static void map_memory(void) {
        if (mmap(NULL, MEMORY_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE, memory_fd, 0) == MAP_FAILED)
                _exit(1);
}

/* A file that is mapped again and again costs the process nothing, and an image all of it each time. */
static void play_mapper(void) {
        map_memory();
        for (unsigned i = 0; i < 1024; i++)
                if (mmap(NULL, MEMORY_BYTES - 4096, PROT_READ | (i & 1 ? PROT_WRITE : 0), MAP_PRIVATE, memory_fd, 0) == MAP_FAILED)
                        _exit(1);
        play_sleeper();
}

static void play_claimer(void) {
        map_memory();
        if (mmap(NULL, 1ull << 45, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0) == MAP_FAILED)
                _exit(1);
        play_sleeper();
}

static void refused(void (*play)(void)) {
        struct error e = ERROR_INIT;
        struct stat st;
        uint64_t written = 0;
        memory_fd = openat(dir_fd, "mem", O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
        assert_true(memory_fd >= 0);
        uint8_t page[4096];
        memset(page, 'x', sizeof page);
        for (unsigned i = 0; i < MEMORY_BYTES / sizeof page; i++)
                assert_int_equal(write(memory_fd, page, sizeof page), sizeof page);
        assert_int_equal(fstat(memory_fd, &st), 0);
        pid_t pid = start(play);
        int r = process_image_save(pid, MEMORY_BYTES, &st, NULL, "host", dir_fd, &written, &e);
        end(pid);
        assert_int_equal(r, -E2BIG);
        assert_non_null(strstr(e.msg, "more mapped"));
        assert_int_equal(faccessat(dir_fd, PROCESS_IMAGE_NAME, F_OK, 0), -1);
        fd_close(memory_fd);
}

static void what_is_mapped_has_a_limit(void **state) {
        (void) state;
        refused(play_mapper);
        refused(play_claimer);
}

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(heap_is_known),
                cmocka_unit_test(one_that_does_not_stop_is_left),
                cmocka_unit_test(it_outlives_who_stopped_it),
                cmocka_unit_test(no_signal_is_lost),
                cmocka_unit_test(what_is_mapped_has_a_limit),
        };
        return cmocka_run_group_tests(tests, setup, teardown);
}
