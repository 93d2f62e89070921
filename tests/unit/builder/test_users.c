/* SPDX-License-Identifier: Apache-2.0 */
#include "test.h"

#include <errno.h>
#include <string.h>

#include "base/cleanup.h"
#include "users.h"

static const char passwd[] = "root:x:0:0:root:/root:/bin/bash\n"
                             "nobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n"
                             "user2:x:1000:1000::/home/user2:/bin/sh\n"
                             "broken\n"
                             "odd:x:notanumber:1:::\n";
static const char group[] = "root:x:0:\nuser2:x:1000:\nstaff:x:1001:a,b\n";

static void finds_by_whole_name(void **state) {
        uint32_t uid = 7, gid = 7;

        (void) state;
        assert_int_equal(users_find(passwd, "user2", &uid, &gid), 0);
        assert_int_equal(uid, 1000);
        assert_int_equal(gid, 1000);
        uid = gid = 7;
        assert_int_equal(users_find(passwd, "user", &uid, &gid), -ENOENT);
        assert_int_equal(users_find(passwd, "odd", &uid, &gid), -ENOENT);
        assert_int_equal(users_find(passwd, "broken", &uid, &gid), -ENOENT);
        assert_int_equal(users_find("", "root", &uid, &gid), -ENOENT);
        assert_int_equal(uid, 7);
        assert_int_equal(users_find_group(group, "staff", &gid), 0);
        assert_int_equal(gid, 1001);
        assert_int_equal(users_find_group(group, "staf", &gid), -ENOENT);
}

static void free_id_is_free_in_both(void **state) {
        (void) state;
        assert_int_equal(users_free_id("", ""), 1000);
        assert_int_equal(users_free_id(passwd, group), 1002);
}

static void dates_become_one(void **state) {
        static const char shadow[] = "root:*:19700:0:99999:7:::\n"
                                     "a:!:19999:0:99999:7:::\n"
                                     "b:!::0:99999:7:::\n"
                                     "short:x\n"
                                     "last:*:20000:0:99999:7:::";
        _cleanup_buf_ struct buf out = BUF_INIT(4096);

        (void) state;
        assert_int_equal(users_set_dates(shadow, 19000, &out), 0);
        assert_string_equal(buf_str(&out), "root:*:19000:0:99999:7:::\n"
                                           "a:!:19000:0:99999:7:::\n"
                                           "b:!::0:99999:7:::\n"
                                           "short:x\n"
                                           "last:*:19000:0:99999:7:::\n");
}

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(finds_by_whole_name),
                cmocka_unit_test(free_id_is_free_in_both),
                cmocka_unit_test(dates_become_one),
        };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
