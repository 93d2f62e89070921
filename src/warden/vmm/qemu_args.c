/* SPDX-License-Identifier: Apache-2.0 */
#include "vmm/qemu_args.h"

/*
 * Devices and their order are part of a snapshot: whatever is given in "boot" must be given in
 * "restore" as well, only what stands behind a device may differ (console: a pipe or nothing).
 *
 * Choices that were measured (QEMU 7.2, TCG):
 *   microvm, x-option-roms=off   no BIOS and no option ROM between start and kernel
 *   pit=off                      a PIT that nobody has programmed toggles its output 36 times a second
 *                                and wakes QEMU each time; a kernel that knows its TSC's frequency
 *                                does without
 *   tb-size=64                   translation cache; 32 thrashes, more is memory for nothing
 *   -cpu max                     has ARAT: without it a guest ticks all the time when idle
 *       -erms                    "rep movsb" is a loop of one byte a turn under TCG; without the flag
 *                                kernel and libc copy in vectors: bulk I/O takes a third less
 *       -la57, -smap             one level less to walk at each TLB miss, and no flag to flip around
 *                                each access to user memory
 *   no kernel, no initrd         in "restore": they would only be read into memory again
 *   -incoming defer              the state is then loaded from an inherited descriptor
 *   drop-cache=off               opening the disk must not flush it out of the page cache
 */

#include <errno.h>
#include <stdarg.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/str.h"

#define TCG_CACHE_MB 160
#define HEAP_PIECE (256 * 1024)
#define QEMU_SYSTEM "/usr/bin/qemu-system-x86_64"
#define QEMU_MICROVM "/usr/bin/qemu-system-x86_64-microvm" /* same package: KVM only, far fewer libraries */

struct args {
        struct buf *out;
        size_t n;
        int err;
};

static void add(struct args *a, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
static void add(struct args *a, const char *fmt, ...) {
        va_list ap;
        va_start(ap, fmt);
        int r = buf_vprintf(a->out, fmt, ap);
        va_end(ap);
        if (r >= 0)
                r = buf_append(a->out, "", 1);
        if (r < 0 && a->err == 0)
                a->err = r;
        a->n++;
}

static void add2(struct args *a, const char *option, const char *value) {
        add(a, "%s", option);
        add(a, "%s", value);
}

static const char *binary(const struct vmm_config *c, bool kvm) {
        if (c->qemu && *c->qemu)
                return c->qemu;
        return kvm && access(QEMU_MICROVM, X_OK) == 0 ? QEMU_MICROVM : QEMU_SYSTEM;
}

static void add_machine(struct args *a, const struct vmm_config *c, bool boot, bool kvm) {
        const char *qemu = binary(c, kvm);
        /* What becomes of an image is told by these arguments all the same, to whoever looks at the list of processes. */
        add(a, "%s", !boot && c->thaw ? c->thaw : qemu);
        add2(a, "-M", "microvm,x-option-roms=off,pit=off,memory-backend=mem");
        if (kvm) {
                add2(a, "-accel", "kvm");
                add2(a, "-cpu", "host");
        } else {
                add(a, "-accel");
                add(a, "tcg,thread=multi,tb-size=%d", TCG_CACHE_MB);
                add2(a, "-cpu", "max,-erms,-la57,-smap,-pcid");
        }
        add(a, "-smp");
        add(a, "%u", c->cpus);
        add(a, "-m");
        add(a, "%u", c->memory_mb);
        add(a, "-object");
        add(a, "memory-backend-file,id=mem,size=%uM,mem-path=" QEMU_MEM_PATH ",share=%s", c->memory_mb,
            boot && !c->keep ? "on" : "off");
        add(a, "-nodefaults");
        add(a, "-no-user-config");
        add(a, "-no-reboot");
        add2(a, "-display", "none");
        if (strcmp(qemu, QEMU_MICROVM) != 0) /* which is built without; confine_vm() serves both */
                add2(a, "-sandbox", "on,obsolete=deny,elevateprivileges=deny,spawn=deny,resourcecontrol=deny");
}

static void add_devices(struct args *a, const struct vmm_config *c, bool boot) {
        add(a, "-add-fd");
        add(a, "fd=%d,set=1", QEMU_FD_DISK);
        add(a, "-blockdev");
        /* What a boot leaves half-written is thrown away, so it need not wait for the disk. */
        add(a,
            "driver=file,node-name=file,filename=/dev/fdset/1,locking=off,drop-cache=off,discard=unmap,"
            "cache.direct=off,cache.no-flush=%s",
            boot && !c->keep ? "on" : "off");
        add2(a, "-blockdev", "driver=raw,node-name=disk,file=file,discard=unmap");
        add2(a, "-device", "virtio-blk-device,drive=disk");

        if (c->tap >= 0) {
                add(a, "-netdev");
                add(a, "tap,id=net,fd=%d,vhost=off", QEMU_FD_TAP);
                add2(a, "-device", "virtio-net-device,netdev=net,mac=02:63:73:00:00:02,guest_announce=off");
        }

        add(a, "-chardev");
        add(a, "socket,id=port,fd=%d,server=on,wait=off", QEMU_FD_PORT);
        add2(a, "-device", "virtio-serial-device,max_ports=2");
        add2(a, "-device", "virtserialport,chardev=port,name=cspace,nr=1,id=cspace");

        /* A guest may write to its serial console as much as it likes: while it boots the last of
         * it is kept in memory, afterwards nothing is. */
        if (boot) {
                add(a, "-chardev");
                add(a, "socket,id=console,fd=%d", QEMU_FD_CONSOLE);
                add2(a, "-serial", "chardev:console");
        } else {
                add2(a, "-serial", "null");
        }

        add(a, "-chardev");
        add(a, "socket,id=qmp,fd=%d,server=on,wait=off", QEMU_FD_QMP);
        add2(a, "-mon", "chardev=qmp,mode=control");
        add2(a, "-global", "migration.x-events=on");
}

/*
 * What every guest's kernel is told. It has one tenant, who is root in it: what protects users of one
 * kernel from each other or the kernel from its root costs time under emulation and buys nothing.
 * And an idle guest should be idle: no lockup detector (which also cries wolf after a restore), no
 * compaction and no statistics by the clock. Huge pages only on request: a clone would copy
 * two megabytes for the first byte it writes.
 */
static const char kernel_line[] =
        "console=ttyS0 quiet reboot=t panic=-1 mitigations=off nokaslr nowatchdog "
        "init_on_alloc=0 randomize_kstack_offset=off hardened_usercopy=off lsm=landlock,yama psi=0 audit=0 "
        "transparent_hugepage=madvise cryptomgr.notests "
        "deferred_probe_timeout=0 sysctl.vm.compaction_proactiveness=0 sysctl.vm.stat_interval=60";

static void add_kernel(struct args *a, bool kvm, unsigned khz) {
        add(a, "-kernel");
        add(a, "/proc/self/fd/%d", QEMU_FD_KERNEL);
        add(a, "-initrd");
        add(a, "/proc/self/fd/%d", QEMU_FD_INITRD);
        add(a, "-append");
        /* Under TCG a guest sees the host's TSC, which is right, and timer interrupts, which come late
         * when the host is busy. A kernel that calibrates or checks the one by the other hangs, or
         * throws the TSC away and goes on with a clock that ticks 250 times a second for ever. */
        char tsc[64] = "";
        if (!kvm && khz > 0)
                snprintf(tsc, sizeof(tsc), " norandmaps no_timer_check tsc=reliable tsc_early_khz=%u", khz);
        add(a, "%s%s", kernel_line, tsc);
}

int qemu_args(const struct vmm_config *c, bool boot, unsigned khz, struct buf *out, size_t *ret_n,
              struct error *err) {
        bool kvm = str_eq(c->engine, "qemu-kvm");
        struct args a = { .out = out };
        add_machine(&a, c, boot, kvm);
        add_devices(&a, c, boot);
        if (boot)
                add_kernel(&a, kvm, khz);
        else
                add2(&a, "-incoming", "defer");
        if (a.err < 0)
                return error_errno(err, a.err, "command line of the VM");
        *ret_n = a.n;
        return 0;
}

int qemu_env(const struct vmm_config *c, struct buf *out, size_t *ret_n, struct error *err) {
        struct args a = { .out = out };
        add(&a, "LD_PRELOAD=%s", c->ropen);
        add(&a, "CSPACE_ROPEN=%d:%s", QEMU_FD_MEM, QEMU_MEM_PATH);
        /* An arena of its own would grow a page and an mprotect() at a time under the vCPU thread,
         * some hundred times while a restored guest runs its first command. */
        add(&a, "MALLOC_ARENA_MAX=1");
        add(&a, "MALLOC_TOP_PAD_=%d", HEAP_PIECE);
        if (a.err < 0)
                return error_errno(err, a.err, "environment of the VM");
        *ret_n = a.n;
        return 0;
}

#if defined(__x86_64__)
unsigned tsc_khz(void) {
        struct timespec nap = { .tv_nsec = 20 * 1000 * 1000 };
        uint64_t t0 = clock_mono_us(), c0 = __builtin_ia32_rdtsc();
        nanosleep(&nap, NULL);
        uint64_t t1 = clock_mono_us(), c1 = __builtin_ia32_rdtsc();
        if (t1 <= t0 || c1 <= c0)
                return 0;
        uint64_t khz = (c1 - c0) * 1000 / (t1 - t0);
        return khz >= 100000 && khz <= 20000000 ? (unsigned) khz : 0;
}
#else
unsigned tsc_khz(void) {
        return 0;
}
#endif
