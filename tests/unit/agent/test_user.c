/* SPDX-License-Identifier: Apache-2.0 */
#include "test.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "user.h"

static char dir[] = "/tmp/cspace-user-XXXXXX";

static void put(const char *name, const char *text) {
        char path[256];
        (void) snprintf(path, sizeof path, "%s/%s", dir, name);
        int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0644);
        assert_true(fd >= 0);
        assert_int_equal(write(fd, text, strlen(text)), strlen(text));
        close(fd);
}

static int set_up(void **state) {
        (void) state;
        if (!mkdtemp(dir))
                return -1;
        user_set_etc(dir);
        put("passwd", "root:x:0:0:root:/root:/bin/bash\n# comment\n\nbroken\nuser:x:1000:1000:A,B,,:/home/user:/bin/sh\n"
                      "nohome:x:1001:50:::\nuser2:x:1002:1002::/h2:/bin/sh");
        put("group", "root:x:0:\nsudo:x:27:other,user\ndocker:x:50:user2,user\nwheel:x:51:users\nuser:x:1000:\n");
        return 0;
}

static int tear_down(void **state) {
        (void) state;
        char cmd[300];
        (void) snprintf(cmd, sizeof cmd, "rm -rf %s", dir);
        return system(cmd);
}

static void lookups(void **state) {
        (void) state;
        struct user u;
        assert_int_equal(user_lookup("user", &u, NULL), 0);
        assert_int_equal(u.uid, 1000);
        assert_int_equal(u.gid, 1000);
        assert_string_equal(u.home, "/home/user");
        assert_int_equal(u.n_groups, 3);
        assert_int_equal(u.groups[0], 1000);
        assert_int_equal(u.groups[1], 27);
        assert_int_equal(u.groups[2], 50);
        assert_int_equal(user_lookup("1002", &u, NULL), 0);
        assert_string_equal(u.name, "user2");
        assert_int_equal(user_lookup("nohome", &u, NULL), 0);
        assert_string_equal(u.home, "/");
        struct error e = ERROR_INIT;
        assert_int_equal(user_lookup("nobody", &u, &e), -ENOENT);
        assert_non_null(strstr(e.msg, "nobody"));
        assert_int_equal(user_lookup("use", &u, NULL), -ENOENT);
        assert_int_equal(user_lookup("", &u, NULL), -ENOENT);
        assert_int_equal(user_lookup("4242", &u, NULL), -ENOENT);
        assert_int_equal(user_lookup("root:x", &u, NULL), -ENOENT);
}

static void names(void **state) {
        (void) state;
        struct user_names *n = user_names_load();
        assert_non_null(n);
        assert_string_equal(user_names_uid(n, 1000), "user");
        assert_string_equal(user_names_uid(n, 1002), "user2");
        assert_string_equal(user_names_uid(n, 77), "77");
        assert_string_equal(user_names_uid(n, 0), "root");
        assert_string_equal(user_names_gid(n, 27), "sudo");
        assert_string_equal(user_names_gid(n, 28), "28");
        user_names_free(n);
}

static void without_files(void **state) {
        (void) state;
        user_set_etc("/nonexistent");
        struct user u;
        assert_int_equal(user_lookup("root", &u, NULL), 0);
        assert_int_equal(u.uid, 0);
        assert_string_equal(u.home, "/root");
        assert_int_equal(user_lookup("user", &u, NULL), -ENOENT);
        user_set_etc(dir);
}

int main(void) {
        const struct CMUnitTest tests[] = { cmocka_unit_test(lookups), cmocka_unit_test(names), cmocka_unit_test(without_files) };
        return cmocka_run_group_tests(tests, set_up, tear_down);
}
