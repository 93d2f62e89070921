/* SPDX-License-Identifier: Apache-2.0 */
#include "test.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/fd.h"

static char root_path[64];
static int root = -EBADF;

static int set_up(void **state) {
        (void) state;
        strcpy(root_path, "/tmp/cspace-test-fd.XXXXXX");
        if (!mkdtemp(root_path))
                return -1;
        root = open(root_path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        return root < 0;
}

static int tear_down(void **state) {
        (void) state;
        struct error e = ERROR_INIT;
        int r = fd_remove_tree_at(AT_FDCWD, root_path, &e);
        root = fd_close(root);
        return r;
}

static void beneath_refuses_escapes(void **state) {
        (void) state;
        struct error e = ERROR_INIT;
        assert_int_equal(symlinkat("/etc", root, "link"), 0);
        assert_int_equal(mkdirat(root, "dir", 0700), 0);
        assert_int_equal(symlinkat("dir", root, "inner"), 0);
        static const char *const bad[] = { "/etc/passwd", "../x", "dir/../../x", "link/passwd", "link", "inner/x" };
        for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
                assert_true(fd_open_beneath(root, bad[i], O_RDONLY, 0, &e) < 0);
        int fd = fd_open_beneath(root, "dir/new", O_WRONLY | O_CREAT | O_EXCL, 0600, &e);
        assert_true(fd >= 0);
        assert_true(fcntl(fd, F_GETFD) & FD_CLOEXEC);
        fd_close(fd);
}

static void replace_is_whole(void **state) {
        (void) state;
        struct error e = ERROR_INIT;
        char *data = NULL;
        size_t n = 0;
        assert_int_equal(fd_replace_file_at(root, "f", "one", 3, 0600, &e), 0);
        assert_int_equal(fd_replace_file_at(root, "f", "second", 6, 0640, &e), 0);
        assert_int_equal(fd_read_file_at(root, "f", 6, &data, &n, &e), 0);
        assert_int_equal(n, 6);
        assert_string_equal(data, "second");
        free(data);
        struct stat st;
        assert_int_equal(fstatat(root, "f", &st, 0), 0);
        assert_int_equal(st.st_mode & 0777, 0640);
        data = NULL;
        assert_int_equal(fd_read_file_at(root, "f", 5, &data, &n, &e), -EFBIG);
        assert_null(data);
        assert_non_null(strstr(e.msg, "limit of 5"));
        assert_int_equal(fd_replace_file_at(root, "missing/f", "x", 1, 0600, &e), -ENOENT);
}

static void only_what_is_regular(void **state) {
        (void) state;
        struct error e = ERROR_INIT;
        _cleanup_free_ char *data = NULL;
        size_t n = 0;
        assert_int_equal(fd_replace_file_at(root, "regular", "text", 4, 0600, &e), 0);
        assert_int_equal(mkfifoat(root, "fifo", 0600), 0);
        assert_int_equal(fd_read_regular_at(root, "fifo", 6, &data, &n, &e), -EINVAL);
        assert_int_equal(fd_read_regular_at(root, "none", 6, &data, &n, &e), -ENOENT);
        assert_int_equal(fd_read_regular_at(root, "regular", 6, &data, &n, &e), 0);
        assert_string_equal(data, "text");
}

static void trees_of_any_depth_are_removed(void **state) {
        (void) state;
        struct error e = ERROR_INIT;
        struct stat st;
        assert_int_equal(mkdirat(root, "deep", 0755), 0);
        for (unsigned branch = 0; branch < 2; branch++) {
                int at = openat(root, "deep", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
                for (unsigned i = 0; i < 3000; i++) { /* far beyond PATH_MAX and the limit of descriptors */
                        assert_int_equal(mkdirat(at, branch && i == 0 ? "e" : "d", 0755), 0);
                        int next = openat(at, branch && i == 0 ? "e" : "d", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
                        assert_true(next >= 0);
                        fd_close(at);
                        at = next;
                        if (i % 500 == 0)
                                fd_close(openat(at, "file", O_CREAT | O_WRONLY | O_CLOEXEC, 0600));
                }
                fd_close(at);
        }
        /* A name that is in the way of what is brought up. */
        assert_int_equal(mkdirat(root, "deep/.deep.0", 0755), 0);
        fd_close(openat(root, "deep/.deep.0/x", O_CREAT | O_WRONLY | O_CLOEXEC, 0600));
        fd_close(openat(root, "deep/.deep.1", O_CREAT | O_WRONLY | O_CLOEXEC, 0600));
        assert_int_equal(fd_remove_tree_at(root, "deep", &e), 0);
        assert_int_equal(fstatat(root, "deep", &st, 0), -1);
}

static void make_and_remove_trees(void **state) {
        (void) state;
        struct error e = ERROR_INIT;
        assert_int_equal(fd_mkdir_p_at(root, "a/b/c", 0700, &e), 0);
        assert_int_equal(fd_mkdir_p_at(root, "a/b/c", 0700, &e), 0);
        assert_int_equal(fd_mkdir_p_at(root, "a/../../x", 0700, &e), -EINVAL);
        assert_int_equal(mkdirat(root, "outside", 0700), 0);
        assert_int_equal(fd_replace_file_at(root, "outside/keep", "k", 1, 0600, &e), 0);
        assert_int_equal(symlinkat("../../outside", root, "a/b/out"), 0);
        assert_int_equal(fd_replace_file_at(root, "a/b/c/f", "x", 1, 0600, &e), 0);
        assert_true(fd_mkdir_p_at(root, "a/b/out/new", 0700, &e) < 0); /* never through a link */
        assert_int_equal(fd_remove_tree_at(root, "a", &e), 0);
        assert_int_equal(faccessat(root, "a", F_OK, 0), -1);
        assert_int_equal(faccessat(root, "outside/keep", F_OK, 0), 0);
        assert_int_equal(fd_remove_tree_at(root, "a", &e), 0);
}

static void stealing(void **state) {
        (void) state;
        int fd = open("/dev/null", O_RDONLY | O_CLOEXEC), kept = -EBADF;
        {
                _cleanup_fd_ int scoped = fd;
                kept = fd_steal(&scoped);
                assert_int_equal(scoped, -EBADF);
        }
        assert_true(fcntl(kept, F_GETFD) >= 0);
        {
                _cleanup_fd_ int scoped = kept;
                assert_true(scoped >= 0);
        }
        assert_int_equal(fcntl(kept, F_GETFD), -1);
        assert_int_equal(fd_close(-1), -EBADF);
}

static void at_an_offset(void **state) {
        (void) state;
        char got[4] = "";
        _cleanup_fd_ int fd = memfd_create("at", MFD_CLOEXEC);
        assert_true(fd >= 0);
        assert_int_equal(fd_pwrite_all(fd, "abcd", 4, 6), 0);
        assert_int_equal(lseek(fd, 0, SEEK_CUR), 0);
        assert_int_equal(fd_pread_all(fd, got, 4, 6), 0);
        assert_memory_equal(got, "abcd", 4);
        assert_int_equal(fd_pread_all(fd, got, 4, 7), -EIO);
        assert_int_equal(fd_pread_all(fd, got, 0, 100), 0);
        assert_int_equal(fd_pread_all(-1, got, 1, 0), -EBADF);
}

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(beneath_refuses_escapes),
                cmocka_unit_test(replace_is_whole),
cmocka_unit_test(only_what_is_regular),
                cmocka_unit_test(make_and_remove_trees),
                cmocka_unit_test(trees_of_any_depth_are_removed),
                cmocka_unit_test(stealing),
                cmocka_unit_test(at_an_offset),
        };
        return cmocka_run_group_tests(tests, set_up, tear_down);
}
