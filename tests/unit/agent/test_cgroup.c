/* SPDX-License-Identifier: Apache-2.0 */
#include "test.h"

#include "cgroup.h"

static void share_of_what_is_free(void **state) {
        (void) state;
        assert_int_equal(cgroup_pids_share(3200, 0), 1600);
        assert_int_equal(cgroup_pids_share(3200, 5), 1400); /* a step of 200 below a half */
        assert_int_equal(cgroup_pids_share(3200, 300), 1400);
        assert_int_equal(cgroup_pids_share(3200, 3200), CGROUP_PIDS_MIN);
        assert_int_equal(cgroup_pids_share(3200, 4000), CGROUP_PIDS_MIN);
        assert_int_equal(cgroup_pids_share(100, 0), CGROUP_PIDS_MIN);
}

/* Fork bombs one after the other, each taking all it may, never fill the total before the share is the least one. */
static void bombs_leave_room(void **state) {
        (void) state;
        for (uint64_t total = 600; total < 40000; total += 517) {
                uint64_t used = 0, share;
                while ((share = cgroup_pids_share(total, used)) > CGROUP_PIDS_MIN) {
                        used += share;
                        assert_true(used + CGROUP_PIDS_MIN < total);
                }
                assert_true(used + CGROUP_PIDS_MIN <= total);
        }
}

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(share_of_what_is_free),
                cmocka_unit_test(bombs_leave_room),
        };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
