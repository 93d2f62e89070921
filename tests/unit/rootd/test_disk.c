/* SPDX-License-Identifier: Apache-2.0 */
#include "../test.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/fd.h"
#include "rootd/disk.h"

static int dir_fd, src;
static char dir[] = "/tmp/cspace-disk-XXXXXX";

static int setup(void **state) {
        (void) state;
        assert_non_null(mkdtemp(dir));
        dir_fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        src = openat(dir_fd, "src", O_RDWR | O_CREAT | O_CLOEXEC, 0600);
        assert_int_equal(ftruncate(src, 64 << 20), 0);
        assert_int_equal(pwrite(src, "begin", 5, 0), 5);
        assert_int_equal(pwrite(src, "middle", 6, 33 << 20), 6);
        assert_int_equal(pwrite(src, "end", 3, (64 << 20) - 3), 3);
        return 0;
}

static int teardown(void **state) {
        (void) state;
        fd_close(src);
        (void) fd_remove_tree_at(AT_FDCWD, dir, NULL);
        fd_close(dir_fd);
        return 0;
}

/* Whatever /tmp is on: by reflink or by copying. */
static void clone_is_equal_and_sparse(void **state) {
        (void) state;
        struct error e = ERROR_INIT;
        int fd = -EBADF;
        uint64_t bytes = 0;
        char text[8] = "";
        struct stat st;
        assert_int_equal(disk_clone(src, dir_fd, "a", 0, getuid(), &fd, &bytes, &e), 0);
        assert_int_equal(e.code, 0);
        assert_int_equal(bytes, 64 << 20);
        assert_int_equal(pread(fd, text, 6, 33 << 20), 6);
        assert_string_equal(text, "middle");
        assert_int_equal(pread(fd, text, 3, (64 << 20) - 3), 3);
        assert_memory_equal(text, "end", 3);
        assert_int_equal(fstat(fd, &st), 0);
        assert_int_equal(st.st_mode & 07777, 0600);
        assert_true(st.st_blocks * 512 < 4 << 20);
        assert_true(disk_own_bytes(fd) <= (uint64_t) st.st_blocks * 512);
        assert_int_equal(pwrite(fd, "other", 5, 0), 5);
        assert_int_equal(pread(src, text, 5, 0), 5);
        assert_memory_equal(text, "begin", 5);
        fd_close(fd);
}

static void sizes(void **state) {
        (void) state;
        struct error e = ERROR_INIT;
        int fd = -EBADF;
        uint64_t bytes = 7;
        struct stat st;
        assert_int_equal(disk_clone(src, dir_fd, "small", 1 << 20, getuid(), &fd, &bytes, &e), -EINVAL);
        assert_int_equal(bytes, 7);
        assert_int_equal(fstatat(dir_fd, "small", &st, 0), -1);
        assert_int_equal(disk_clone(src, dir_fd, "large", 1ULL << 30, getuid(), &fd, &bytes, &e), 0);
        assert_int_equal(fstat(fd, &st), 0);
        assert_int_equal(st.st_size, 1 << 30);
        fd_close(fd);
        /* Never over what is there. */
        assert_int_equal(disk_clone(src, dir_fd, "large", 0, getuid(), &fd, &bytes, &e), -EEXIST);
        assert_int_equal(symlinkat("large", dir_fd, "link"), 0);
        assert_int_equal(disk_clone(src, dir_fd, "link", 0, getuid(), &fd, &bytes, &e), -EEXIST);
        assert_int_equal(disk_create(dir_fd, "link", 1, &fd, &e), -EEXIST);
        assert_int_equal(disk_create(dir_fd, "mem", 128 << 20, &fd, &e), 0);
        assert_int_equal(fstat(fd, &st), 0);
        assert_int_equal(st.st_size, 128 << 20);
        assert_int_equal(disk_own_bytes(fd), 0);
        fd_close(fd);
}

int main(void) {
        const struct CMUnitTest tests[] = { cmocka_unit_test(clone_is_equal_and_sparse),
                                            cmocka_unit_test(sizes) };
        return cmocka_run_group_tests(tests, setup, teardown);
}
