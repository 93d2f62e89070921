/* SPDX-License-Identifier: Apache-2.0 */
#include "test.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#include "apt.h"
#include "base/fd.h"

static void package_names(void **state) {
        static const char *const good[] = { "", "   ", "hello", "g++ libstdc++6:amd64", "python3-numpy  python3-pandas", "foo=1:2.3~rc1-1+b2", "0ad" };
        static const char *const bad[] = { "-y", "hello -y", "--allow", "foo-", "a", "Hello", "foo/bar", "foo;id", "$(id)", "foo\nbar", "?essential",
                                           "~nfoo", "foo*", "../x", "foo,bar", "\xc3\xa4pfel" };
        struct error e = ERROR_INIT;

        (void) state;
        for (size_t i = 0; i < sizeof good / sizeof good[0]; i++)
                if (apt_check_packages(good[i], &e) != 0)
                        fail_msg("\"%s\" refused: %s", good[i], e.msg);
        for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
                if (apt_check_packages(bad[i], &e) != -EINVAL)
                        fail_msg("\"%s\" taken", bad[i]);
}

static void too_many_packages(void **state) {
        static char many[513 * 3 + 1];

        (void) state;
        for (size_t i = 0; i < 513; i++)
                memcpy(many + 3 * i, "aa ", 3);
        assert_int_equal(apt_check_packages(many, NULL), -EINVAL);
        many[512 * 3] = '\0';
        assert_int_equal(apt_check_packages(many, NULL), 0);
}

static void put(int dir, const char *name, const void *data, size_t n) {
        int fd = openat(dir, name, O_CREAT | O_TRUNC | O_WRONLY | O_CLOEXEC, 0644);

        assert_true(fd >= 0);
        assert_int_equal(write(fd, data, n), (ssize_t) n);
        close(fd);
}

static void date_of_a_package(void **state) {
        static const char head[] = "!<arch>\ndebian-binary   1681234567  0     0     100644  4         `\n2.0\n";
        char dir[] = "/tmp/cspace-apt-XXXXXX";

        (void) state;
        assert_non_null(mkdtemp(dir));
        int fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        put(fd, "good.deb", head, sizeof head - 1);
        put(fd, "short.deb", head, 40);
        put(fd, "other.deb", "not an archive, but long enough to be one if it were: 1681234567", 64);
        put(fd, "nodate.deb", "!<arch>\ndebian-binary   -1          0     0     100644  4         `\n", 68);
        assert_int_equal(apt_deb_date(fd, "good.deb"), 1681234567);
        assert_int_equal(apt_deb_date(fd, "short.deb"), 0);
        assert_int_equal(apt_deb_date(fd, "other.deb"), 0);
        assert_int_equal(apt_deb_date(fd, "nodate.deb"), 0);
        assert_int_equal(apt_deb_date(fd, "missing.deb"), 0);
        close(fd);
        assert_int_equal(fd_remove_tree_at(AT_FDCWD, dir, NULL), 0);
}

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(package_names),
                cmocka_unit_test(too_many_packages),
                cmocka_unit_test(date_of_a_package),
        };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
