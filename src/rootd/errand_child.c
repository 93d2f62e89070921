/* SPDX-License-Identifier: Apache-2.0 */
#include "rootd/errand_child.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/close_range.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/fd.h"

#define FIRST_FD 3
#define HIGH_FD 100

static _Noreturn void fail(const struct errand_start *s, int out, const char *what, int code) {
        s->fail(out, what, code);
        _exit(1);
}

static int place_descriptors(const struct errand_start *s, int to) {
        int high[ERRAND_FDS_MAX], out = fcntl(to, F_DUPFD_CLOEXEC, HIGH_FD);
        for (size_t i = 0; i < ERRAND_FDS_MAX; i++)
                high[i] = s->fds[i] < 0 ? -EBADF : fcntl(s->fds[i], F_DUPFD_CLOEXEC, HIGH_FD);
        int null = open("/dev/null", O_RDWR | O_CLOEXEC);
        if (out < 0 || null < 0 || dup2(null, 0) < 0 || dup2(out, 1) < 0 || dup2(null, 2) < 0 ||
            syscall(SYS_close_range, 3, ~0u, CLOSE_RANGE_CLOEXEC) < 0)
                return -errno;
        for (size_t i = 0; i < ERRAND_FDS_MAX; i++)
                if (s->fds[i] >= 0 && (high[i] < 0 || dup2(high[i], FIRST_FD + (int) i) < 0))
                        return -errno;
        return 0;
}

static void keep_only(const struct errand *e, const struct errand_start *s, int parent) {
        const struct rootd *r = e->rootd;
        int keep[CGROUP_KIND_MAX_ + ERRAND_FDS_MAX + 4] = { e->out, parent, s->view, r->dirs.sandboxes };
        memcpy(keep + 4, s->fds, sizeof s->fds);
        memcpy(keep + 4 + ERRAND_FDS_MAX, r->cgroups.base, sizeof r->cgroups.base);
        confine_descriptors(keep, sizeof keep / sizeof keep[0]);
}

static _Noreturn void child(const struct errand *e, const struct errand_start *start, int parent) {
        struct errand_start s = *start;
        const struct rootd *r = e->rootd;
        struct error err = ERROR_INIT;
        confine_signals();
        keep_only(e, &s, parent);
        int res = cgroup_enter_v1(&r->cgroups, e->leaf, NULL);
        if (res < 0)
                fail(&s, e->out, "cgroup", res);
        res = s.prepare ? s.prepare(r, &s, &err) : 0;
        if (res < 0)
                fail(&s, e->out, err.msg[0] ? err.msg : "cannot prepare", res);
        if ((s.view >= 0 && setns(s.view, CLONE_NEWNS) < 0) || chdir("/") < 0)
                fail(&s, e->out, "cannot join the view", -errno);
        struct pollfd gone = { .fd = fcntl(parent, F_DUPFD_CLOEXEC, HIGH_FD), .events = POLLIN };
        res = place_descriptors(&s, e->out);
        if (res < 0)
                fail(&s, e->out, "descriptors", res);
        s.confine.uid = s.uid;
        s.confine.gid = s.gid;
        res = confine_self(&s.confine, NULL);
        if (res < 0)
                fail(&s, 1, "cannot give up rights", res);
        /* After the change of identity, which clears it. The parent may have gone before. */
        if (prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0) < 0 || poll(&gone, 1, 0) != 0)
                _exit(1);
        (void) execve(s.argv[0], s.argv, s.env);
        fail(&s, 1, "the program cannot be executed", -errno);
}

int errand_child_start(struct errand *e, const struct errand_start *s, pid_t *ret_pid, int *ret_pidfd, struct error *err) {
        int pidfd = -EBADF;
        _cleanup_fd_ int self = (int) syscall(SYS_pidfd_open, getpid(), 0);
        if (self < 0)
                return error_errno(err, errno, "cannot open our own pidfd");
        _cleanup_fd_ int cgroup = cgroup_open_leaf(&e->rootd->cgroups, e->leaf);
        pid_t pid = confine_clone(CLONE_NEWPID | CLONE_NEWIPC | CLONE_NEWUTS | s->namespaces, cgroup, &pidfd);
        if (pid < 0)
                return error_errno(err, pid, "cannot start a process");
        if (pid == 0)
                child(e, s, self);
        *ret_pid = pid;
        *ret_pidfd = pidfd;
        return 0;
}
