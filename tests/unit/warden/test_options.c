/* SPDX-License-Identifier: Apache-2.0 */
#include "test.h"

#include <errno.h>
#include <string.h>

#include "options.h"
#include "vmm/qemu_args.h"

#define ID "abcdefghijklmnopqrstuvwxyz"

static int parse(const char *line, struct warden_config *cfg, struct error *err) {
        static char text[1000];
        char *argv[40] = { (char *) (uintptr_t) "cspace-warden" };
        int argc = 1;
        snprintf(text, sizeof(text), "%s", line);
        for (char *save = NULL, *w = strtok_r(text, " ", &save); w; w = strtok_r(NULL, " ", &save))
                argv[argc++] = w;
        return options_parse(argc, argv, cfg, err);
}

static void good_lines(void **state) {
        (void) state;
        struct warden_config c;
        assert_int_equal(parse("--id " ID " --mode boot --engine qemu-tcg --memory 256 --cpus 2", &c, NULL), 0);
        assert_int_equal(c.mode, WARDEN_BOOT);
        assert_string_equal(c.id, ID);
        assert_int_equal(c.vmm.memory_mb, 256);
        assert_int_equal(c.vmm.cpus, 2);
        assert_non_null(strstr(c.vmm.ropen, "ropen.so"));
        assert_int_equal(parse("--cpus 1 --memory 512 --mode restore --engine x --adopt --id " ID " --ropen /r --qemu /q",
                               &c, NULL), 0);
        assert_int_equal(c.mode, WARDEN_ADOPT);
        assert_string_equal(c.vmm.ropen, "/r");
        assert_string_equal(c.vmm.qemu, "/q");
        assert_int_equal(c.vmm.disk_bytes, 0);
        assert_int_equal(parse("--id " ID " --mode restore --engine e --memory 256 --cpus 2 --disk-bytes 21474836480", &c, NULL), 0);
        assert_true(c.vmm.disk_bytes == 21474836480);
}

static void bad_lines(void **state) {
        (void) state;
        static const char *const bad[] = {
                "",
                "--id " ID,
                "--id x --mode boot --engine e --memory 256 --cpus 1",
                "--id " ID " --mode bot --engine e --memory 256 --cpus 1",
                "--id " ID " --mode boot --engine e --memory 64 --cpus 1",
                "--id " ID " --mode boot --engine e --memory 99999999 --cpus 1",
                "--id " ID " --mode boot --engine e --memory 256 --cpus 0",
                "--id " ID " --mode boot --engine e --memory 256 --cpus 33",
                "--id " ID " --mode boot --engine e --memory 256 --cpus",
                "--id " ID " --mode boot --engine e --memory -1 --cpus 1",
                "--id " ID " --mode boot --memory 256 --cpus 1",
                "--id " ID " --mode boot --engine e --memory 256 --cpus 1 --more",
                "--id " ID " --mode restore --engine e --memory 256 --cpus 1 --disk-bytes 0",
                "--id " ID " --mode restore --engine e --memory 256 --cpus 1 --disk-bytes 20G",
        };
        for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
                struct warden_config c;
                struct error e = ERROR_INIT;
                assert_int_equal(parse(bad[i], &c, &e), -EINVAL);
                assert_true(strlen(e.msg) > 8);
        }
}

/* Whether an argument stands directly behind an option. */
static bool has(const struct buf *b, const char *option, const char *value) {
        const char *p = (const char *) buf_data(b), *end = p + b->len;
        for (; p < end; p += strlen(p) + 1) {
                const char *next = p + strlen(p) + 1;
                if (strcmp(p, option) == 0 && (!value || (next < end && strstr(next, value) == next)))
                        return true;
        }
        return false;
}

static size_t count(const struct buf *b, const char *option) {
        const char *p = (const char *) buf_data(b), *end = p + b->len;
        size_t n = 0;
        for (; p < end; p += strlen(p) + 1)
                n += strcmp(p, option) == 0;
        return n;
}

static void qemu_lines(void **state) {
        (void) state;
        struct vmm_config c = { .engine = "qemu-tcg", .qemu = "", .ropen = "/lib/ropen.so", .memory_mb = 300, .cpus = 3,
                                .tap = 6 };
        struct buf boot = BUF_INIT(0), restore = BUF_INIT(0), kvm = BUF_INIT(0), env = BUF_INIT(0);
        size_t n_boot, n_restore, n;
        assert_int_equal(qemu_args(&c, true, 2600000, &boot, &n_boot, NULL), 0);
        assert_int_equal(qemu_args(&c, false, 0, &restore, &n_restore, NULL), 0);
        assert_string_equal((const char *) buf_data(&boot), "/usr/bin/qemu-system-x86_64");

        /* Guest memory: shared with the file only where it is being made. */
        assert_true(has(&boot, "-object", "memory-backend-file,id=mem,size=300M,mem-path=/cspace/mem,share=on"));
        assert_true(has(&restore, "-object", "memory-backend-file,id=mem,size=300M,mem-path=/cspace/mem,share=off"));
        /* The devices are part of the snapshot. */
        assert_int_equal(count(&boot, "-device"), count(&restore, "-device"));
        assert_int_equal(count(&boot, "-serial"), 1);
        assert_int_equal(count(&restore, "-serial"), 1);
        assert_true(has(&restore, "-serial", "null"));
        assert_true(has(&boot, "-kernel", "/proc/self/fd/"));
        assert_false(has(&restore, "-kernel", NULL) || has(&restore, "-initrd", NULL));
        assert_true(has(&restore, "-incoming", "defer"));
        assert_true(has(&boot, "-append", "console=ttyS0 quiet"));
        assert_non_null(memmem(buf_data(&boot), boot.len, "tsc_early_khz=2600000", 21));
        assert_true(has(&boot, "-sandbox", "on,obsolete=deny,elevateprivileges=deny,spawn=deny,resourcecontrol=deny"));
        assert_true(has(&restore, "-sandbox", "on,"));
        assert_true(has(&restore, "-netdev", "tap,id=net,fd=12"));
        assert_true(has(&restore, "-smp", "3"));

        c.engine = "qemu-kvm";
        c.tap = -1;
        assert_int_equal(qemu_args(&c, true, 2600000, &kvm, &n, NULL), 0);
        assert_true(has(&kvm, "-accel", "kvm") && has(&kvm, "-cpu", "host"));
        assert_false(has(&kvm, "-netdev", NULL));
        assert_null(memmem(buf_data(&kvm), kvm.len, "tsc", 3));

        assert_int_equal(qemu_env(&c, &env, &n, NULL), 0);
        assert_int_equal(n, 4);
        static const char first[] = "LD_PRELOAD=/lib/ropen.so\0CSPACE_ROPEN=14:/cspace/mem";
        assert_memory_equal(buf_data(&env), first, sizeof(first));
        buf_done(&boot);
        buf_done(&restore);
        buf_done(&kvm);
        buf_done(&env);
}

static void tsc(void **state) {
        (void) state;
        unsigned a = tsc_khz(), b = tsc_khz();
        if (a == 0)
                skip();
        assert_in_range(a, b - b / 100, b + b / 100);
}

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(good_lines),
                cmocka_unit_test(bad_lines),
                cmocka_unit_test(qemu_lines),
                cmocka_unit_test(tsc),
        };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
