/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/fd.h"
#include "manifest/manifest.h"

static char dir[] = "/tmp/cspace-manifest-XXXXXX";
static int dirfd = -EBADF;

static void put(const char *name, const char *text) {
        int fd = openat(dirfd, name, O_CREAT | O_TRUNC | O_WRONLY | O_CLOEXEC, 0644);

        assert_true(fd >= 0);
        assert_int_equal(write(fd, text, strlen(text)), (ssize_t) strlen(text));
        assert_int_equal(close(fd), 0);
}

/* A disk of 1 MiB + 3 with two islands; dense writes out its zeros. */
static void put_disk(bool dense) {
        int fd = openat(dirfd, "disk.img", O_CREAT | O_TRUNC | O_RDWR | O_CLOEXEC, 0644);
        static const char zeros[4096];

        assert_true(fd >= 0);
        assert_int_equal(ftruncate(fd, (1 << 20) + 3), 0);
        for (off_t o = 0; dense && o < 1 << 20; o += (off_t) sizeof zeros)
                assert_int_equal(pwrite(fd, zeros, sizeof zeros, o), sizeof zeros);
        assert_int_equal(pwrite(fd, "hello", 5, 70000), 5);
        assert_int_equal(pwrite(fd, "end", 3, 1 << 20), 3);
        assert_int_equal(close(fd), 0);
}

static int setup(void **state) {
        (void) state;
        if (dirfd < 0) {
                assert_non_null(mkdtemp(dir));
                dirfd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        }
        unlinkat(dirfd, MANIFEST_NAME, 0);
        unlinkat(dirfd, "initrd", 0);
        put("initrd", "070701");
        put("kernel", "\x7f" "ELF");
        put("manifest.json", "{}");
        put_disk(false);
        return 0;
}

static int remove_all(void **state) {
        (void) state;
        return dirfd < 0 ? 0 : fd_remove_tree_at(AT_FDCWD, dir, NULL);
}

static void plain_lines_are_sha256(void **state) {
        char digest[DIGEST_LEN + 1] = "", *text = NULL;
        struct error e = ERROR_INIT;

        (void) state;
        assert_int_equal(manifest_write(dirfd, digest, &e), 0);
        assert_true(digest_valid(digest));
        assert_int_equal(fd_read_file_at(dirfd, MANIFEST_NAME, 4096, &text, NULL, &e), 0);
        /* printf '{}' | sha256sum */
        assert_non_null(strstr(text, "44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a  manifest.json\n"));
        assert_non_null(strstr(text, "  disk.img\n"));
        assert_true(strstr(text, "disk.img") < strstr(text, "initrd"));
        free(text);
        assert_int_equal(manifest_check(dirfd, digest, &e), 0);
}

static void holes_do_not_matter(void **state) {
        char a[DIGEST_LEN + 1], b[DIGEST_LEN + 1];
        struct error e = ERROR_INIT;

        (void) state;
        assert_int_equal(manifest_write(dirfd, a, &e), 0);
        put_disk(true);
        assert_int_equal(manifest_write(dirfd, b, &e), 0);
        assert_string_equal(a, b);
}

static void every_byte_of_the_disk_counts(void **state) {
        static const off_t at[] = { 0, 69999, 70005, 65535, 65536, 1 << 19, (1 << 20) - 1, (1 << 20) + 2 };
        char a[DIGEST_LEN + 1], b[DIGEST_LEN + 1];
        struct error e = ERROR_INIT;

        (void) state;
        assert_int_equal(manifest_write(dirfd, a, &e), 0);
        for (size_t i = 0; i < sizeof at / sizeof at[0]; i++) {
                put_disk(false);
                int fd = openat(dirfd, "disk.img", O_RDWR | O_CLOEXEC);
                assert_int_equal(pwrite(fd, "x", 1, at[i]), 1);
                close(fd);
                assert_int_equal(manifest_write(dirfd, b, &e), 0);
                assert_string_not_equal(a, b);
        }
        put_disk(false);
}

/* The memory of a template that was published with one. */
static void memory_counts_where_there_is_one(void **state) {
        char without[DIGEST_LEN + 1], with[DIGEST_LEN + 1], other[DIGEST_LEN + 1];
        struct error e = ERROR_INIT;

        (void) state;
        assert_int_equal(manifest_write(dirfd, without, &e), 0);
        put("mem", "memory");
        put("state", "devices");
        assert_int_equal(manifest_check(dirfd, without, &e), -EBADMSG);
        assert_int_equal(manifest_write(dirfd, with, &e), 0);
        assert_string_not_equal(without, with);
        put("mem", "memorz");
        assert_int_equal(manifest_check(dirfd, with, &e), -EBADMSG);
        assert_int_equal(manifest_write(dirfd, other, &e), 0);
        assert_string_not_equal(with, other);
        unlinkat(dirfd, "mem", 0);
        unlinkat(dirfd, "state", 0);
        assert_int_equal(manifest_write(dirfd, with, &e), 0);
        assert_string_equal(without, with);
}

static void a_longer_disk_is_another_disk(void **state) {
        char a[DIGEST_LEN + 1], b[DIGEST_LEN + 1];
        struct error e = ERROR_INIT;

        (void) state;
        assert_int_equal(manifest_write(dirfd, a, &e), 0);
        int fd = openat(dirfd, "disk.img", O_RDWR | O_CLOEXEC);
        assert_int_equal(ftruncate(fd, 2 << 20), 0);
        close(fd);
        assert_int_equal(manifest_write(dirfd, b, &e), 0);
        assert_string_not_equal(a, b);
}

static void check_refuses_what_changed(void **state) {
        char digest[DIGEST_LEN + 1];
        struct error e = ERROR_INIT;

        (void) state;
        assert_int_equal(manifest_write(dirfd, digest, &e), 0);
        put("kernel", "other");
        assert_int_equal(manifest_check(dirfd, digest, &e), -EBADMSG);

        setup(NULL);
        assert_int_equal(manifest_write(dirfd, digest, &e), 0);
        put(MANIFEST_NAME, "other\n");
        assert_int_equal(manifest_check(dirfd, digest, &e), -EBADMSG);

        setup(NULL);
        assert_int_equal(manifest_write(dirfd, digest, &e), 0);
        unlinkat(dirfd, MANIFEST_NAME, 0);
        assert_int_equal(manifest_check(dirfd, digest, &e), -ENOENT);
}

static void only_plain_files_count(void **state) {
        char digest[DIGEST_LEN + 1];
        struct error e = ERROR_INIT;

        (void) state;
        unlinkat(dirfd, "initrd", 0);
        assert_int_equal(symlinkat("kernel", dirfd, "initrd"), 0);
        assert_int_equal(manifest_write(dirfd, digest, &e), -ELOOP);
        unlinkat(dirfd, "initrd", 0);
        assert_int_equal(linkat(dirfd, "kernel", dirfd, "initrd", 0), 0);
        assert_int_equal(manifest_write(dirfd, digest, &e), -EBADMSG);
        unlinkat(dirfd, "initrd", 0);
        assert_int_equal(mkfifoat(dirfd, "initrd", 0600), 0);
        assert_int_equal(manifest_write(dirfd, digest, &e), -EBADMSG);
        unlinkat(dirfd, "initrd", 0);
        put("initrd", "");
        assert_int_equal(manifest_write(dirfd, digest, &e), -EFBIG);
}

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test_setup(plain_lines_are_sha256, setup),
                cmocka_unit_test_setup(holes_do_not_matter, setup),
                cmocka_unit_test_setup(every_byte_of_the_disk_counts, setup),
                cmocka_unit_test_setup(memory_counts_where_there_is_one, setup),
                cmocka_unit_test_setup(a_longer_disk_is_another_disk, setup),
                cmocka_unit_test_setup(check_refuses_what_changed, setup),
                cmocka_unit_test_setup(only_plain_files_count, setup),
        };
        return cmocka_run_group_tests(tests, NULL, remove_all);
}
