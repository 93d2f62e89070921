/* SPDX-License-Identifier: Apache-2.0 */
#include "../test.h"

#include <string.h>

#include "base/cleanup.h"
#include "rootd/cgroup.h"

static struct cgroup_where w;

static void v2_alone(void **state) {
        (void) state;
        cgroup_locate("22 1 0:20 / /sys rw - sysfs sysfs rw\n"
                      "30 22 0:26 / /sys/fs/cgroup rw,nosuid shared:9 - cgroup2 cgroup2 rw,nsdelegate\n",
                      "0::/system.slice/cspace-rootd.service\n", &w);
        assert_string_equal(w.dir[CGROUP_UNIFIED], "/sys/fs/cgroup");
        assert_string_equal(w.dir[CGROUP_MEMORY], "");
        assert_true(w.unified_only);
}

static void v1_beside_a_unified_one(void **state) {
        (void) state;
        cgroup_locate(
                "41 40 0:37 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n"
                "42 40 0:38 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"
                "43 40 0:39 / /sys/fs/cgroup/pids rw master:3 propagate_from:2 - cgroup cgroup rw,pids\n"
                "44 40 0:40 / /sys/fs/cgroup/systemd rw - cgroup cgroup rw,xattr,name=systemd\n"
                "45 40 0:41 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n",
                "4:memory:/a/b\n3:cpu,cpuacct:/\n2:pids:/p\n1:name=systemd:/x\n0::/u\n", &w);
        assert_string_equal(w.dir[CGROUP_UNIFIED], "/sys/fs/cgroup/unified");
        assert_string_equal(w.dir[CGROUP_MEMORY], "/sys/fs/cgroup/memory/a/b");
        assert_string_equal(w.dir[CGROUP_PIDS], "/sys/fs/cgroup/pids/p");
        assert_string_equal(w.dir[CGROUP_CPU], "/sys/fs/cgroup/cpu,cpuacct");
        assert_string_equal(w.dir[CGROUP_CPUACCT], "/sys/fs/cgroup/cpu,cpuacct");
        assert_false(w.unified_only);
}

static void inside_a_container(void **state) {
        (void) state;
        /* Mounted from our own cgroup on, without a cgroup namespace. */
        cgroup_locate("42 40 0:38 /docker/abc /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory\n"
                      "43 40 0:39 /docker/abc /sys/fs/cgroup/pids ro - cgroup cgroup rw,pids\n"
                      "44 40 0:40 /other /sys/fs/cgroup/cpu ro - cgroup cgroup rw,cpu\n",
                      "4:memory:/docker/abc\n3:pids:/docker/abc/sub\n2:cpu:/docker/abc\n", &w);
        assert_string_equal(w.dir[CGROUP_MEMORY], "/sys/fs/cgroup/memory");
        assert_string_equal(w.dir[CGROUP_PIDS], "/sys/fs/cgroup/pids/sub");
        assert_string_equal(w.dir[CGROUP_CPU], "/sys/fs/cgroup/cpu");
        /* Outside of our own cgroup namespace. */
        cgroup_locate("42 40 0:38 / /m rw - cgroup cgroup rw,memory\n", "4:memory:/../../up\n", &w);
        assert_string_equal(w.dir[CGROUP_MEMORY], "/m");
}

static void nothing_and_nonsense(void **state) {
        (void) state;
        cgroup_locate("", "", &w);
        for (unsigned k = 0; k < CGROUP_KIND_MAX_; k++)
                assert_string_equal(w.dir[k], "");
        cgroup_locate("1 2 3\n - \nx - cgroup\n1 2 3 / /m o - cgroup cgroup rw,memory\n - cgroup2 a b\n",
                      "memory\n:memory:\n::\n9:memoryx:/no\n", &w);
        assert_string_equal(w.dir[CGROUP_MEMORY], "");
        assert_string_equal(w.dir[CGROUP_UNIFIED], "");
}

static void escapes_of_mountinfo(void **state) {
        (void) state;
        cgroup_locate("1 2 0:1 / /sys/my\\040cgroup rw - cgroup2 none rw\n", "0::/\n", &w);
        assert_string_equal(w.dir[CGROUP_UNIFIED], "/sys/my cgroup");
}

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(v2_alone),
                cmocka_unit_test(v1_beside_a_unified_one),
                cmocka_unit_test(inside_a_container),
                cmocka_unit_test(nothing_and_nonsense),
                cmocka_unit_test(escapes_of_mountinfo),
        };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
