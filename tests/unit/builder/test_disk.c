/* SPDX-License-Identifier: Apache-2.0 */
#include "test.h"

#include <errno.h>
#include <ext2fs/ext2fs.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/fd.h"
#include "disk.h"

#define EPOCH 1600000000u

static struct build b;

static int out_folder(void) {
        return open(b.dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
}

static int setup(void **state) {
        (void) state;
        memset(&b, 0, sizeof b);
        b.log_fd = -EBADF;
        b.epoch = EPOCH;
        b.disk_bytes = 64ULL << 20;
        strcpy(b.dir, "/tmp/cspace-disk-XXXXXX");
        assert_non_null(mkdtemp(b.dir));
        (void) snprintf(b.rootfs, sizeof b.rootfs, "%s/rootfs", b.dir);
        (void) snprintf(b.work, sizeof b.work, "%s/work", b.dir);
        b.dirfd = out_folder();
        assert_int_equal(mkdirat(b.dirfd, "rootfs", 0755), 0);
        assert_int_equal(mkdirat(b.dirfd, "out", 0755), 0);
        b.outfd = openat(b.dirfd, "out", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        return 0;
}

static int teardown(void **state) {
        (void) state;
        close(b.outfd);
        close(b.dirfd);
        return fd_remove_tree_at(AT_FDCWD, b.dir, NULL);
}

static void fill(const char *order) {
        int root = openat(b.dirfd, "rootfs", O_RDONLY | O_DIRECTORY | O_CLOEXEC);

        for (const char *p = order; *p; p++) {
                const char name[2] = { *p, '\0' };
                const struct timespec old[2] = { { .tv_sec = 1500000000, .tv_nsec = 5 }, { .tv_sec = 1500000000, .tv_nsec = 5 } };
                int fd = openat(root, name, O_CREAT | O_WRONLY | O_CLOEXEC, 0640);
                assert_true(fd >= 0);
                assert_int_equal(write(fd, name, 1), 1);
                if (*p != 'n')
                        assert_int_equal(futimens(fd, old), 0);
                close(fd);
        }
        assert_int_equal(mkdirat(root, "dir", 0700), 0);
        assert_int_equal(symlinkat("a", root, "link"), 0);
        assert_int_equal(linkat(root, "a", root, "hard", 0), 0);
        close(root);
}

static char *read_image(size_t *n) {
        char *data = NULL;

        assert_int_equal(fd_read_file_at(b.outfd, "disk.img", 128u << 20, &data, n, NULL), 0);
        return data;
}

static int make(void) {
        struct error e = ERROR_INIT;
        int null = open("/dev/null", O_WRONLY | O_CLOEXEC), saved = dup(STDOUT_FILENO);

        fflush(stdout);
        dup2(null, STDOUT_FILENO); /* progress lines */
        int r = disk_make(&b, &e);
        dup2(saved, STDOUT_FILENO);
        close(null);
        close(saved);
        if (r < 0)
                print_message("%s\n", e.msg);
        return r;
}

static void check_times(ext2_filsys fs, const char *path, uint32_t want) {
        struct ext2_inode_large inode;
        ext2_ino_t ino;

        assert_int_equal(ext2fs_namei(fs, EXT2_ROOT_INO, EXT2_ROOT_INO, path, &ino), 0);
        assert_int_equal(ext2fs_read_inode_full(fs, ino, (struct ext2_inode *) (void *) &inode, sizeof inode), 0);
        assert_int_equal(inode.i_mtime, want);
        assert_int_equal(inode.i_ctime, want);
        assert_int_equal(inode.i_atime, want);
        assert_int_equal(inode.i_crtime, want);
        assert_int_equal(inode.i_mtime_extra, 0);
        assert_int_equal(inode.i_ctime_extra, 0);
}

static void times_are_not_those_of_the_build(void **state) {
        char path[BUILD_PATH_MAX + 32];
        ext2_filsys fs;

        (void) state;
        fill("abn");
        assert_int_equal(make(), 0);
        (void) snprintf(path, sizeof path, "%s/out/disk.img", b.dir);
        assert_int_equal(ext2fs_open(path, EXT2_FLAG_64BITS, 0, 0, unix_io_manager, &fs), 0);
        check_times(fs, "/a", 1500000000);
        check_times(fs, "/n", EPOCH); /* newer than all that may be */
        check_times(fs, "/dir", EPOCH);
        check_times(fs, "/", EPOCH);
        assert_int_equal(fs->super->s_wtime, EPOCH);
        assert_int_equal(fs->super->s_mkfs_time, EPOCH);
        assert_true(ext2fs_has_feature_journal(fs->super));
        ext2fs_close(fs);
        char command[BUILD_PATH_MAX + 64];
        (void) snprintf(command, sizeof command, "e2fsck -fn %s >/dev/null 2>&1", path);
        assert_int_equal(system(command), 0);
}

/* Files made in another order, at another time, in another folder. */
static void same_tree_same_bytes(void **state) {
        size_t n, m;

        (void) state;
        fill("abcdn");
        assert_int_equal(make(), 0);
        char *first = read_image(&n);
        teardown(NULL);
        usleep(1100000); /* time stamps of the superblock count seconds */
        setup(NULL);
        fill("ndcba");
        assert_int_equal(make(), 0);
        char *second = read_image(&m);
        assert_int_equal(n, m);
        assert_int_equal(memcmp(first, second, n), 0);
        free(first);
        free(second);
}

static void is_sparse(void **state) {
        struct stat st;

        (void) state;
        b.disk_bytes = 8ULL << 30;
        fill("a");
        assert_int_equal(make(), 0);
        assert_int_equal(fstatat(b.outfd, "disk.img", &st, 0), 0);
        assert_true((uint64_t) st.st_size == 8ULL << 30);
        assert_true(st.st_blocks * 512 < 8 << 20);
}

static void too_small(void **state) {
        (void) state;
        b.disk_bytes = 1 << 20;
        assert_int_equal(make(), -EINVAL);
        b.disk_bytes = (64ULL << 20) + 1;
        assert_int_equal(make(), -EINVAL);
        b.disk_bytes = 64ULL << 20;
        int fd = openat(b.dirfd, "rootfs/big", O_CREAT | O_WRONLY | O_CLOEXEC, 0644);
        char block[65536];
        memset(block, 'x', sizeof block);
        for (unsigned i = 0; i < 1100; i++)
                assert_int_equal(write(fd, block, sizeof block), sizeof block);
        close(fd);
        assert_int_equal(make(), -ENOSPC);
        assert_string_equal(b.code, "disk_too_small");
}

int main(void) {
        if (geteuid() != 0) {
                puts("needs root");
                return 77;
        }
        const struct CMUnitTest tests[] = {
                cmocka_unit_test_setup_teardown(times_are_not_those_of_the_build, setup, teardown),
                cmocka_unit_test_setup_teardown(same_tree_same_bytes, setup, teardown),
                cmocka_unit_test_setup_teardown(is_sparse, setup, teardown),
                cmocka_unit_test_setup_teardown(too_small, setup, teardown),
        };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
