/* SPDX-License-Identifier: Apache-2.0 */
#include "../test.h"

#include <errno.h>
#include <string.h>

#include "rootd/host.h"
#include "rootd/instance.h"
#include "rootd/launch.h"
#include "rootd/source.h"

static void flags_of_cpuinfo(void **state) {
        (void) state;
        assert_true(host_cpuinfo_has_virt("processor\t: 0\nflags\t\t: fpu vme svm sse\n"));
        assert_true(host_cpuinfo_has_virt("flags\t\t: fpu vmx\n"));
        assert_true(host_cpuinfo_has_virt("flags : vmx")); /* cut short */
        assert_false(host_cpuinfo_has_virt(""));
        assert_false(host_cpuinfo_has_virt("flags\t\t: fpu vmxx svm_lock xsvm hypervisor\n"));
        assert_false(host_cpuinfo_has_virt("model name\t: vmx svm\nflags\t\t: fpu\nbugs : svm\n"));
        assert_true(host_cpuinfo_has_virt("flags\t: a\nflags\t: b svm\n"));
}

static void engines(void **state) {
        (void) state;
        struct host h = {};
        host_probe_engine(&h, "tcg");
        assert_string_equal(h.engine, "qemu-tcg");
        host_probe_engine(&h, "fake");
        assert_string_equal(h.engine, "fake");
        host_probe_engine(&h, "auto");
        assert_true(strcmp(h.engine, "qemu-tcg") == 0 || strcmp(h.engine, "qemu-kvm") == 0);
        assert_true(strlen(h.engine_reason) > 0);
        assert_true(engine_valid("fake") && engine_valid("qemu-kvm") && engine_valid("qemu-tcg"));
        assert_false(engine_valid("") || engine_valid("qemu") || engine_valid("qemu-tcg/.."));
}

static void uids(void **state) {
        (void) state;
        struct instance first = { .number = 0 }, last = { .number = INSTANCES_MAX - 1 };
        assert_int_equal(instance_warden_uid(&first, 0), 2000000000);
        assert_int_equal(instance_vm_uid(&first, 0), 2000000001);
        assert_int_equal(instance_warden_uid(&first, SLOTS_MAX - 1) + SLOT_UIDS,
                         instance_warden_uid(&(struct instance){ .number = 1 }, 0));
        assert_int_equal(instance_gateway_uid(&first, 0), 2000000002);
        assert_true(instance_gateway_uid(&last, SLOTS_MAX - 1) < BUILD_UID_BASE);
}

static void arguments_of_an_order(void **state) {
        (void) state;
        struct launch_order o = {};
        char longest[LAUNCH_ARGV_BYTES];
        memset(longest, 'x', sizeof longest - 1);
        longest[sizeof longest - 1] = 0;
        assert_int_equal(launch_order_arg(&o, longest), 0);
        assert_int_equal(launch_order_arg(&o, ""), -E2BIG);
        o = (struct launch_order){};
        for (unsigned i = 0; i < LAUNCH_ARGV_MAX; i++)
                assert_int_equal(launch_order_arg(&o, "ab"), 0);
        assert_int_equal(launch_order_arg(&o, "ab"), -E2BIG);
        assert_int_equal(o.argc, LAUNCH_ARGV_MAX);
        assert_memory_equal(o.argv, "ab\0ab\0", 6);
}

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(flags_of_cpuinfo),      cmocka_unit_test(engines),
                cmocka_unit_test(uids),                  cmocka_unit_test(arguments_of_an_order),
        };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
