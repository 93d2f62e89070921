/* SPDX-License-Identifier: Apache-2.0 */
#include "confine.h"

#include <errno.h>
#include <sched.h>
#include <sys/socket.h>

#include "base/cleanup.h"
#include "confine/filter.h"

static const char *const allowed[] = {
        /* the loop */
        "epoll_wait", "epoll_pwait", "epoll_pwait2", "epoll_ctl", "epoll_create1", "poll", "ppoll",
        "eventfd2", "pipe2", "timerfd_create", "timerfd_settime",
        /* descriptors that are there already, and accepted ones */
        "read", "readv", "write", "writev", "close", "fstat", "newfstatat", "lseek", "ioctl", "fcntl",
        "accept4", "connect", "sendto", "sendmsg", "recvfrom", "recvmsg", "shutdown", "getsockopt",
        "setsockopt", "getsockname", "getpeername", "fsync", "fdatasync",
        /* memory */
        "munmap", "mremap", "brk", "madvise",
        /* time, numbers, signals, end */
        "clock_gettime", "clock_nanosleep", "nanosleep", "gettimeofday", "getrandom", "getpid", "gettid", "futex",
        "sched_yield", "rt_sigaction", "rt_sigprocmask", "rt_sigreturn", "restart_syscall", "tgkill", "exit",
        "exit_group",
};

static const char *const for_threads[] = {
        "clone", "set_robust_list", "rseq", "sched_getaffinity", "prctl",
};

static int add_rules(scmp_filter_ctx ctx, const void *arg) {
        const bool threads = *(const bool *) arg;
        int r = filter_names(ctx, SCMP_ACT_ALLOW, allowed, ARRAY_SIZE(allowed));
        if (r >= 0 && threads)
                r = filter_names(ctx, SCMP_ACT_ALLOW, for_threads, ARRAY_SIZE(for_threads));
        if (r >= 0)
                r = seccomp_rule_add(ctx, SCMP_ACT_ALLOW, SCMP_SYS(socket), 1, SCMP_A0(SCMP_CMP_EQ, AF_UNIX, 0));
        if (r >= 0)
                r = seccomp_rule_add(ctx, SCMP_ACT_ALLOW, SCMP_SYS(socketpair), 1, SCMP_A0(SCMP_CMP_EQ, AF_UNIX, 0));
        if (r >= 0 && threads) /* only to be asked: no new limit */
                r = seccomp_rule_add(ctx, SCMP_ACT_ALLOW, SCMP_SYS(prlimit64), 1, SCMP_A2(SCMP_CMP_EQ, 0, 0));
        if (r >= 0)
                r = filter_allow_data_memory(ctx);
        /* glibc falls back to clone. */
        if (r >= 0)
                r = seccomp_rule_add(ctx, SCMP_ACT_ERRNO(ENOSYS), SCMP_SYS(clone3), 0);
        return r;
}

int confine(bool threads, struct error *err) {
        int r = confine_no_dumps(err);
        return r < 0 ? r : filter_install(SCMP_ACT_KILL_PROCESS, add_rules, &threads, err);
}

static const char *const denied_to_vm[] = {
        "fork", "vfork", "setuid", "setgid", "setreuid", "setregid", "setresuid", "setresgid", "setgroups", "setfsuid",
        "setfsgid", "capset", "ptrace", "process_vm_readv", "process_vm_writev", "process_madvise", "pidfd_getfd",
        "kcmp", "mount", "umount2", "move_mount", "open_tree", "fsopen", "fsmount", "fsconfig", "fspick",
        "mount_setattr", "pivot_root", "chroot", "unshare", "setns", "bpf", "perf_event_open", "add_key", "keyctl",
        "request_key", "userfaultfd", "kexec_load", "kexec_file_load", "init_module", "finit_module", "delete_module",
        "reboot", "swapon", "swapoff", "acct", "quotactl", "quotactl_fd", "personality", "ioperm", "iopl", "modify_ldt",
        "uselib", "sysfs", "settimeofday", "clock_settime", "clock_adjtime", "adjtimex", "sethostname",
        "setdomainname", "lookup_dcookie", "io_uring_setup", "open_by_handle_at", "syslog", "vhangup", "nfsservctl",
};

static int add_vm_rules(scmp_filter_ctx ctx, const void *arg) {
        (void) arg;
        int r = filter_names(ctx, SCMP_ACT_ERRNO(EPERM), denied_to_vm, ARRAY_SIZE(denied_to_vm));
        /* Threads are made, processes are not; clone3 hides its flags behind a pointer, and glibc falls back. */
        if (r >= 0)
                r = seccomp_rule_add(ctx, SCMP_ACT_ERRNO(EPERM), SCMP_SYS(clone), 1,
                                     SCMP_A0(SCMP_CMP_MASKED_EQ, CLONE_THREAD, 0));
        if (r >= 0)
                r = seccomp_rule_add(ctx, SCMP_ACT_ERRNO(ENOSYS), SCMP_SYS(clone3), 0);
        if (r >= 0)
                r = seccomp_rule_add(ctx, SCMP_ACT_ERRNO(EPERM), SCMP_SYS(socket), 1, SCMP_A0(SCMP_CMP_NE, AF_UNIX, 0));
        return r;
}

int confine_vm(struct error *err) {
        return filter_install(SCMP_ACT_ALLOW, add_vm_rules, NULL, err);
}
