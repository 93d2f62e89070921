/* SPDX-License-Identifier: Apache-2.0 */
#include "test.h"

#include <fcntl.h>
#include <linux/fiemap.h>
#include <linux/fs.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "confine.h"

static int fd;

/* How a child ends that is confined and then does this. */
static int ends(void (*act)(void)) {
        int status = 0;
        pid_t pid = fork();

        assert_true(pid >= 0);
        if (pid == 0) {
                struct error err = ERROR_INIT;
                if (confine(&err) < 0)
                        _exit(99);
                act();
                _exit(0);
        }
        assert_int_equal(waitpid(pid, &status, 0), pid);
        return WIFSIGNALED(status) ? -WTERMSIG(status) : WEXITSTATUS(status);
}

static void reads(void) {
        char c;
        struct fiemap m = { .fm_length = 1 };

        if (pread(fd, &c, 1, 0) != 1 || write(fd, &c, 0) < -1)
                _exit(1);
        (void) ioctl(fd, FS_IOC_FIEMAP, &m);
        void *p = mmap(NULL, 1 << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (p == MAP_FAILED || munmap(p, 1 << 20) < 0)
                _exit(2);
        p = mmap(NULL, 4096, PROT_READ, MAP_PRIVATE | MAP_POPULATE, fd, 0);
        if (p == MAP_FAILED || munmap(p, 4096) < 0)
                _exit(3);
}

static void opens(void) {
        (void) open("/dev/null", O_RDONLY | O_CLOEXEC);
}
static void makes_socket(void) {
        (void) socket(AF_UNIX, SOCK_STREAM, 0);
}
static void forks(void) {
        (void) fork();
}
static void executes(void) {
        (void) execl("/bin/true", "true", NULL);
}
static void maps_code(void) {
        (void) mmap(NULL, 4096, PROT_READ | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
}
static void maps_file_to_write(void) {
        (void) mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE, fd, 0);
}
static void maps_file_shared(void) {
        (void) mmap(NULL, 4096, PROT_READ, MAP_SHARED, fd, 0);
}
static void other_ioctl(void) {
        int n = 0;
        (void) ioctl(fd, FS_IOC_GETFLAGS, &n);
}
static void signals(void) {
        (void) kill(getppid(), 0);
}
static void changes_mode(void) {
        (void) fchmod(fd, 0600);
}

static void a_dozen_calls_and_no_more(void **state) {
        static void (*const refused[])(void) = { opens,     makes_socket, forks,       executes, maps_code,
                                                 maps_file_to_write, maps_file_shared, other_ioctl,  changes_mode, signals };

        (void) state;
#ifdef HISTORY_SANITIZED
        skip(); /* a sanitizer's run time needs more */
#endif
        fd = open("/proc/self/exe", O_RDONLY | O_CLOEXEC);
        assert_true(fd >= 0);
        assert_int_equal(ends(reads), 0);
        for (size_t i = 0; i < sizeof refused / sizeof refused[0]; i++)
                assert_int_equal(ends(refused[i]), -SIGSYS);
        (void) close(fd);
}

int main(void) {
        const struct CMUnitTest tests[] = { cmocka_unit_test(a_dozen_calls_and_no_more) };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
