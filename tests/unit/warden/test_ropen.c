/* SPDX-License-Identifier: Apache-2.0 */
#include "test.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

/* Runs itself with ropen.so preloaded (path in ROPEN_SO): descriptor 40 is a read-only file, and only
 * opens of "/no/such/path" lead to it. */

#define PATH "/no/such/path"
#define FD 40
#define CHECK(n, cond) \
        if (!(cond))   \
        return n

static int check_fd(int fd) {
        char buf[4] = "";
        if (fd < 0 || fd == FD)
                return -1;
        int ok = read(fd, buf, 3) == 3 && strcmp(buf, "abc") == 0 && write(fd, "x", 1) < 0 && errno == EBADF;
        close(fd);
        return ok ? 0 : -1;
}

static int child(void) {
        CHECK(1, check_fd(open(PATH, O_RDWR)) == 0);
        CHECK(2, check_fd(open64(PATH, O_RDWR)) == 0);
        CHECK(3, check_fd(openat(AT_FDCWD, PATH, O_RDWR | O_CREAT, 0600)) == 0);
        CHECK(4, check_fd(openat64(AT_FDCWD, PATH, O_RDWR)) == 0);
        int fd = open(PATH, O_RDWR | O_CLOEXEC);
        CHECK(5, fd >= 0 && fcntl(fd, F_GETFD) == FD_CLOEXEC);
        fd = open(PATH, O_RDWR);
        CHECK(6, fd >= 0 && fcntl(fd, F_GETFD) == 0);
        CHECK(7, open("/no/such/path2", O_RDWR) < 0 && errno == ENOENT);
        CHECK(8, open("/no/such", O_RDONLY) < 0 && errno == ENOENT);
        fd = open("/dev/null", O_RDWR);
        CHECK(9, fd >= 0 && write(fd, "x", 1) == 1);
        char name[] = "/tmp/ropen-test-XXXXXX";
        CHECK(10, mkdtemp(name));
        char file[64];
        snprintf(file, sizeof(file), "%s/f", name);
        fd = open(file, O_RDWR | O_CREAT | O_EXCL, 0640);
        CHECK(11, fd >= 0 && write(fd, "x", 1) == 1);
        unlink(file);
        rmdir(name);
        unsetenv("CSPACE_ROPEN");
        CHECK(12, open(PATH, O_RDWR) < 0 && errno == ENOENT);
        static const char *const broken[] = { "", "x:" PATH, ":" PATH, "-1:" PATH, "40", "40" PATH, "99999999:" PATH };
        for (size_t i = 0; i < sizeof(broken) / sizeof(broken[0]); i++) {
                setenv("CSPACE_ROPEN", broken[i], 1);
                CHECK(20 + (int) i, open(PATH, O_RDWR) < 0);
        }
        return 0;
}

static void one_path_only(void **state) {
        (void) state;
        const char *so = getenv("ROPEN_SO");
        if (!so)
                skip();
        char name[] = "/tmp/ropen-test-XXXXXX";
        int fd = mkstemp(name);
        assert_true(fd >= 0);
        assert_int_equal(write(fd, "abc", 3), 3);
        close(fd);
        fd = open(name, O_RDONLY);
        unlink(name);
        pid_t pid = fork();
        assert_true(pid >= 0);
        if (pid == 0) {
                dup2(fd, FD);
                setenv("LD_PRELOAD", so, 1);
                setenv("CSPACE_ROPEN", "40:" PATH, 1);
                execl("/proc/self/exe", "test_ropen", "child", (char *) NULL);
                _exit(126);
        }
        int status;
        assert_int_equal(waitpid(pid, &status, 0), pid);
        assert_true(WIFEXITED(status));
        assert_int_equal(WEXITSTATUS(status), 0);
        close(fd);
}

int main(int argc, char **argv) {
        if (argc == 2 && strcmp(argv[1], "child") == 0)
                return child();
        const struct CMUnitTest tests[] = { cmocka_unit_test(one_path_only) };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
