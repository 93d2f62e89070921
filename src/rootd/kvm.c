/* SPDX-License-Identifier: Apache-2.0 */

/*
 * A virtual machine of one page: real mode, one instruction (HLT), one exit. In a child, with a
 * deadline, so that a driver that hangs costs a probe and not the daemon.
 */
#include "rootd/host.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/kvm.h>
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/fd.h"

#define TRY_MS 2000
#define PAGE 4096

static int make_vcpu(int vm, int *ret, struct error *err) {
        uint8_t *page = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (page == MAP_FAILED)
                return error_errno(err, errno, "no memory for a KVM guest");
        page[0] = 0xf4; /* hlt */
        struct kvm_userspace_memory_region mem = { .guest_phys_addr = PAGE,
                                                   .memory_size = PAGE,
                                                   .userspace_addr = (uint64_t) (uintptr_t) page };
        if (ioctl(vm, KVM_SET_USER_MEMORY_REGION, &mem) < 0)
                return error_errno(err, errno, "/dev/kvm opens, but takes no memory");
        int cpu = ioctl(vm, KVM_CREATE_VCPU, 0);
        if (cpu < 0)
                return error_errno(err, errno, "/dev/kvm opens, but makes no virtual CPU");
        struct kvm_sregs sregs;
        if (ioctl(cpu, KVM_GET_SREGS, &sregs) < 0)
                return error_errno(err, errno, "/dev/kvm opens, but its virtual CPU has no registers");
        sregs.cs.base = 0;
        sregs.cs.selector = 0;
        struct kvm_regs regs = { .rip = PAGE, .rflags = 2 };
        if (ioctl(cpu, KVM_SET_SREGS, &sregs) < 0 || ioctl(cpu, KVM_SET_REGS, &regs) < 0)
                return error_errno(err, errno, "/dev/kvm opens, but its virtual CPU takes no registers");
        *ret = cpu;
        return 0;
}

static int run_machine(struct error *err) {
        int kvm = open("/dev/kvm", O_RDWR | O_CLOEXEC);
        if (kvm < 0)
                return error_errno(err, errno, "cannot open /dev/kvm");
        int version = ioctl(kvm, KVM_GET_API_VERSION, 0);
        if (version != KVM_API_VERSION)
                return error_set(err, -ENOSYS, "/dev/kvm has API version %d", version);
        int vm = ioctl(kvm, KVM_CREATE_VM, 0);
        if (vm < 0)
                return error_errno(err, errno, "/dev/kvm opens, but makes no machine");
        int cpu = -EBADF;
        int r = make_vcpu(vm, &cpu, err);
        if (r < 0)
                return r;
        int size = ioctl(kvm, KVM_GET_VCPU_MMAP_SIZE, 0);
        const struct kvm_run *run =
                size > 0 ? mmap(NULL, (size_t) size, PROT_READ | PROT_WRITE, MAP_SHARED, cpu, 0) : MAP_FAILED;
        if (run == MAP_FAILED)
                return error_errno(err, errno, "/dev/kvm opens, but its virtual CPU cannot be mapped");
        if (ioctl(cpu, KVM_RUN, 0) < 0)
                return error_errno(err, errno, "/dev/kvm opens, but its virtual CPU does not run");
        if (run->exit_reason != KVM_EXIT_HLT)
                return error_set(err, -EIO,
                                 "/dev/kvm opens, but its virtual CPU ended with exit %u rather than HLT",
                                 run->exit_reason);
        return 0;
}

int kvm_try(struct error *err) {
        int p[2];
        if (pipe2(p, O_CLOEXEC) < 0)
                return error_errno(err, errno, "cannot make a pipe");
        _cleanup_fd_ int rd = p[0], wr = p[1];
        pid_t pid = fork();
        if (pid < 0)
                return error_errno(err, errno, "cannot fork");
        if (pid == 0) {
                struct error e = ERROR_INIT;
                (void) run_machine(&e);
                (void) fd_write_all(wr, &e, sizeof e, NULL);
                _exit(0);
        }
        wr = fd_close(wr);
        struct pollfd poll_fd = { .fd = rd, .events = POLLIN };
        struct error e;
        int r = poll(&poll_fd, 1, TRY_MS);
        if (r <= 0)
                r = error_set(err, -ETIMEDOUT, "/dev/kvm opens, but a small machine did not end within %d s",
                              TRY_MS / 1000);
        else if (read(rd, &e, sizeof e) != (ssize_t) sizeof e)
                r = error_set(err, -EIO, "/dev/kvm opens, but using it killed the program");
        else
                r = e.code < 0 ? error_set(err, e.code, "%s", e.msg) : 0;
        (void) kill(pid, SIGKILL);
        while (waitpid(pid, NULL, 0) < 0 && errno == EINTR)
                ;
        return r;
}
