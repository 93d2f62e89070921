/* SPDX-License-Identifier: Apache-2.0 */
#include "test.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/fd.h"
#include "cache.h"

/* printf hello | sha256sum */
#define HELLO "2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824"

static char top[] = "/tmp/cspace-cache-XXXXXX";
static int cache = -EBADF, dest = -EBADF;

static int open_new(const char *name) {
        int at = open(top, O_RDONLY | O_DIRECTORY | O_CLOEXEC);

        assert_int_equal(fd_remove_tree_at(at, name, NULL), 0);
        assert_int_equal(mkdirat(at, name, 0755), 0);
        int fd = openat(at, name, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        close(at);
        return fd;
}

static int setup(void **state) {
        (void) state;
        if (cache < 0)
                assert_non_null(mkdtemp(top));
        fd_close(cache);
        fd_close(dest);
        cache = open_new("cache");
        dest = open_new("dest");
        return 0;
}

static int remove_all(void **state) {
        (void) state;
        return fd_remove_tree_at(AT_FDCWD, top, NULL);
}

static void put(int dir, const char *name, const char *text) {
        int fd = openat(dir, name, O_CREAT | O_TRUNC | O_WRONLY | O_CLOEXEC, 0644);

        assert_true(fd >= 0);
        assert_int_equal(write(fd, text, strlen(text)), (ssize_t) strlen(text));
        close(fd);
}

static bool there(int dir, const char *name) {
        return faccessat(dir, name, F_OK, AT_SYMLINK_NOFOLLOW) == 0;
}

static void gives_what_has_the_hash(void **state) {
        char *text = NULL;

        (void) state;
        put(cache, "a.deb", "hello");
        assert_true(cache_get(cache, dest, "a.deb", HELLO));
        assert_int_equal(fd_read_file_at(dest, "a.deb", 100, &text, NULL, NULL), 0);
        assert_string_equal(text, "hello");
        free(text);
        /* A copy: what is done to it leaves the cache alone. */
        put(dest, "a.deb", "changed");
        assert_true(cache_get(cache, dest, "a.deb", HELLO));
}

static void drops_what_has_not(void **state) {
        (void) state;
        put(cache, "a.deb", "hellO");
        assert_false(cache_get(cache, dest, "a.deb", HELLO));
        assert_false(there(dest, "a.deb"));
        assert_false(there(cache, "a.deb"));
}

static void names_stay_in_the_folder(void **state) {
        (void) state;
        put(cache, "real.deb", "hello");
        assert_int_equal(symlinkat("real.deb", cache, "link.deb"), 0);
        assert_false(cache_get(cache, dest, "../cache/real.deb", HELLO));
        assert_false(cache_get(cache, dest, "link.deb", HELLO));
        assert_false(cache_get(cache, dest, "none.deb", HELLO));
        assert_false(cache_get(-1, dest, "real.deb", HELLO));
}

static void keeps_packages_alone(void **state) {
        (void) state;
        put(dest, "a.deb", "hello");
        put(dest, "lock", "");
        assert_int_equal(mkdirat(dest, "dir.deb", 0755), 0);
        cache_put_all(cache, dest);
        cache_put_all(-1, dest);
        assert_true(there(cache, "a.deb"));
        assert_false(there(cache, "lock"));
        assert_false(there(cache, "dir.deb"));
        assert_false(there(cache, ".a.deb.new"));
}

static void trims_the_oldest(void **state) {
        static const char *const names[] = { "old.deb", "mid.deb", "new.deb" };

        (void) state;
        for (unsigned i = 0; i < 3; i++) {
                const struct timespec t[2] = { { .tv_sec = 1000 + i }, { .tv_sec = 1000 + i } };
                put(cache, names[i], "x");
                int fd = openat(cache, names[i], O_RDWR | O_CLOEXEC);
                assert_int_equal(ftruncate(fd, 1ll << 30), 0); /* sparse */
                assert_int_equal(futimens(fd, t), 0);
                close(fd);
        }
        cache_trim(cache);
        assert_false(there(cache, "old.deb"));
        assert_true(there(cache, "mid.deb"));
        assert_true(there(cache, "new.deb"));
        cache_trim(-1);
}

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test_setup(gives_what_has_the_hash, setup), cmocka_unit_test_setup(drops_what_has_not, setup),
                cmocka_unit_test_setup(names_stay_in_the_folder, setup), cmocka_unit_test_setup(keeps_packages_alone, setup),
                cmocka_unit_test_setup(trims_the_oldest, setup),
        };
        return cmocka_run_group_tests(tests, NULL, remove_all);
}
