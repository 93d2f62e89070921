/* SPDX-License-Identifier: Apache-2.0 */
#include "rootd/confine.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/capability.h>
#include <linux/close_range.h>
#include <linux/sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/fd.h"

void confine_signals(void) {
        for (int sig = 1; sig < NSIG; sig++)
                (void) signal(sig, SIG_DFL);
        sigset_t none;
        (void) sigemptyset(&none);
        (void) sigprocmask(SIG_SETMASK, &none, NULL);
        (void) setsid();
        (void) setpriority(PRIO_PROCESS, 0, 0); /* rootd's own is higher */
}

void confine_descriptors(const int *keep, size_t n) {
        unsigned from = 3;
        for (;;) {
                unsigned next = ~0u;
                for (size_t i = 0; i < n; i++)
                        if (keep[i] >= (int) from && (unsigned) keep[i] < next)
                                next = (unsigned) keep[i];
                if (next > from)
                        (void) syscall(SYS_close_range, from, next - 1, 0);
                if (next == ~0u)
                        return;
                from = next + 1;
        }
}

static int limit(int resource, uint64_t value, struct error *err) {
        struct rlimit old, new = { value, value };
        /* Never above what we have: raising it would need CAP_SYS_RESOURCE, which a container lacks. */
        if (syscall(SYS_prlimit64, 0, resource, NULL, &old) == 0 && old.rlim_max < value)
                new = (struct rlimit){ old.rlim_max, old.rlim_max };
        if (syscall(SYS_prlimit64, 0, resource, &new, NULL) < 0)
                return error_errno(err, errno, "cannot set resource limit %d", resource);
        return 0;
}

int confine_oom(int adj, struct error *err) {
        char text[16];
        _cleanup_fd_ int fd = open("/proc/self/oom_score_adj", O_WRONLY | O_CLOEXEC);
        int n = snprintf(text, sizeof text, "%d", adj);
        if (fd >= 0 && write(fd, text, (size_t) n) < 0 && errno != EACCES)
                return error_errno(err, errno, "cannot set oom_score_adj");
        return 0;
}

static int set_limits(const struct confine *c, struct error *err) {
        int r = confine_oom(c->oom_score_adj, err);
        if (r == 0)
                r = limit(RLIMIT_NOFILE, c->files, err);
        if (r == 0)
                r = limit(RLIMIT_NPROC, c->processes, err);
        /* 1 rather than 0: with a core_pattern that is a pipe, only 1 stops the dump. */
        if (r == 0)
                r = limit(RLIMIT_CORE, 1, err);
        if (r == 0 && c->file_bytes > 0)
                r = limit(RLIMIT_FSIZE, c->file_bytes, err);
        return r;
}

static int drop_identity(uid_t uid, gid_t gid, struct error *err) {
        if (syscall(SYS_setgroups, 0, NULL) < 0 || syscall(SYS_setresgid, gid, gid, gid) < 0 ||
            syscall(SYS_setresuid, uid, uid, uid) < 0)
                return error_errno(err, errno, "cannot become user %u", uid);
        return 0;
}

int confine_self(const struct confine *c, struct error *err) {
        int r = set_limits(c, err);
        if (r < 0)
                return r;
        for (int cap = 0; cap < 64; cap++)
                if (prctl(PR_CAPBSET_DROP, cap, 0, 0, 0) < 0) {
                        if (errno == EINVAL)
                                break; /* beyond the last one this kernel knows */
                        return error_errno(err, errno, "cannot drop capability %d", cap);
                }
        r = drop_identity(c->uid, c->gid ? c->gid : (gid_t) c->uid, err);
        if (r < 0)
                return r;
        struct __user_cap_header_struct head = { .version = _LINUX_CAPABILITY_VERSION_3 };
        struct __user_cap_data_struct none[2] = {};
        if (syscall(SYS_capset, &head, none) < 0)
                return error_errno(err, errno, "cannot give up capabilities");
        if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) < 0)
                return error_errno(err, errno, "cannot set no_new_privs");
        (void) umask(077);
        (void) clearenv();
        return 0;
}

pid_t confine_clone(uint64_t flags, int cgroup_fd, int *ret_pidfd) {
        int pidfd = -EBADF;
        struct clone_args args = {
                .flags = flags | CLONE_PIDFD | (cgroup_fd >= 0 ? CLONE_INTO_CGROUP : 0u),
                .pidfd = (uint64_t) (uintptr_t) &pidfd,
                .exit_signal = SIGCHLD,
        };
        if (flags & CLONE_PARENT)
                args.exit_signal = 0; /* a sibling has its creator's */
        if (cgroup_fd >= 0)
                args.cgroup = (unsigned) cgroup_fd;
        long pid = syscall(SYS_clone3, &args, sizeof args);
        if (pid < 0)
                return -errno;
        if (pid > 0)
                *ret_pidfd = pidfd;
        return (pid_t) pid;
}
