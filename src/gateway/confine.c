/* SPDX-License-Identifier: Apache-2.0 */
#include "confine.h"

#include <errno.h>
#include <linux/capability.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "confine/filter.h"

static const char *const allowed[] = {
        /* the loop */
        "epoll_wait", "epoll_pwait", "epoll_pwait2", "epoll_ctl", "poll", "ppoll",
        /* connections */
        "accept4", "connect", "sendto", "sendmsg", "recvfrom", "recvmsg", "shutdown", "getsockopt", "setsockopt",
        "getsockname", "getpeername", "ioctl", "fcntl", "read", "readv", "write", "writev", "close", "fstat", "newfstatat",
        "splice", "pipe2",
        /* the configuration and the table of names travel in memory files */
        "pread64", "memfd_create",
        /* memory */
        "munmap", "mremap", "brk", "madvise",
        /* time, numbers, signals, end */
        "clock_gettime", "clock_nanosleep", "gettimeofday", "getrandom", "getpid", "gettid", "futex", "sched_yield",
        "rt_sigaction", "rt_sigprocmask", "rt_sigreturn", "restart_syscall", "tgkill", "exit", "exit_group",
};

static int add_rules(scmp_filter_ctx ctx, const void *arg) {
        (void) arg;
        int r = filter_names(ctx, SCMP_ACT_ALLOW, allowed, ARRAY_SIZE(allowed));
        /* SOCK_CLOEXEC and SOCK_NONBLOCK are flags in the type. */
        static const uint64_t type_mask = 0xf;
        if (r >= 0)
                r = seccomp_rule_add(ctx, SCMP_ACT_ALLOW, SCMP_SYS(socket), 2, SCMP_A0(SCMP_CMP_EQ, AF_INET, 0),
                                     SCMP_A1(SCMP_CMP_MASKED_EQ, type_mask, SOCK_STREAM));
        if (r >= 0)
                r = seccomp_rule_add(ctx, SCMP_ACT_ALLOW, SCMP_SYS(socket), 2, SCMP_A0(SCMP_CMP_EQ, AF_INET, 0),
                                     SCMP_A1(SCMP_CMP_MASKED_EQ, type_mask, SOCK_DGRAM));
        if (r >= 0)
                r = filter_allow_data_memory(ctx);
        return r;
}

/* Started by cspace-rootd there are none; whoever starts it otherwise gets the same. */
static int drop_capabilities(struct error *err) {
        struct __user_cap_header_struct head = { .version = _LINUX_CAPABILITY_VERSION_3 };
        struct __user_cap_data_struct none[2] = { 0 };
        if (prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0) < 0 || syscall(SYS_capset, &head, none) < 0)
                return error_errno(err, errno, "cannot give up capabilities");
        return 0;
}

/* A build with sanitizers is for finding faults: its run-time library opens files and maps what it likes. */
#if defined(__SANITIZE_ADDRESS__)
#define SANITIZED 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define SANITIZED 1
#endif
#endif
#ifndef SANITIZED
#define SANITIZED 0
#endif

int confine(struct error *err) {
        int r = drop_capabilities(err);
        if (r >= 0)
                r = confine_no_dumps(err);
        if (r < 0 || SANITIZED)
                return r;
        return filter_install(SCMP_ACT_KILL_PROCESS, add_rules, NULL, err);
}
