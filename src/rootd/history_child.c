/* SPDX-License-Identifier: Apache-2.0 */
#include "rootd/history_child.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/close_range.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/fd.h"
#include "rootd/confine.h"
#include "rootd/disk.h"

#define HISTORY_FILES 16
#define HISTORY_PROCESSES 4
#define HISTORY_FILE_BYTES 1 /* it writes none */
#define HISTORY_OOM_ADJ 600
#define FIRST_IMAGE_FD 3
#define HIGH_FD 100

/* What is told is of the host, and has nothing in it that JSON would need escaped. */
static _Noreturn void fail(int out, const char *what, int code) {
        char line[256];
        int n = snprintf(line, sizeof line, "{\"error\":\"%s: %s\",\"code\":\"io_error\"}\n", what, strerror(-code));
        (void) fd_write_all(out, line, (size_t) n, NULL);
        _exit(1);
}

static void take_moments(const struct rootd *r, struct history_start *s) {
        for (size_t i = 0; i < HISTORY_IMAGES_MAX; i++) {
                int copy = -EBADF;
                if (s->images[i] < 0 || !s->moment[i])
                        continue;
                int res = disk_moment(s->images[i], r->dirs.sandboxes, &copy, NULL);
                if (res < 0)
                        fail(s->out, "the disk cannot be copied", res);
                (void) fd_close(s->images[i]);
                s->images[i] = copy;
        }
}

static int place_descriptors(const struct history_start *s) {
        int high[HISTORY_IMAGES_MAX], out = fcntl(s->out, F_DUPFD_CLOEXEC, HIGH_FD);
        for (size_t i = 0; i < HISTORY_IMAGES_MAX; i++)
                high[i] = s->images[i] < 0 ? -EBADF : fcntl(s->images[i], F_DUPFD_CLOEXEC, HIGH_FD);
        int null = open("/dev/null", O_RDWR | O_CLOEXEC);
        if (out < 0 || null < 0 || dup2(null, 0) < 0 || dup2(out, 1) < 0 || dup2(null, 2) < 0 ||
            syscall(SYS_close_range, 3, ~0u, CLOSE_RANGE_CLOEXEC) < 0)
                return -errno;
        for (size_t i = 0; i < HISTORY_IMAGES_MAX; i++)
                if (s->images[i] >= 0 && (high[i] < 0 || dup2(high[i], FIRST_IMAGE_FD + (int) i) < 0))
                        return -errno;
        return 0;
}

static _Noreturn void child(const struct rootd *r, const struct history_start *start, int parent) {
        static char *const no_env[] = { NULL };
        struct history_start s = *start;
        const struct confine c = { .uid = s.uid,
                                   .files = HISTORY_FILES,
                                   .processes = HISTORY_PROCESSES,
                                   .file_bytes = HISTORY_FILE_BYTES,
                                   .oom_score_adj = HISTORY_OOM_ADJ };
        int keep[CGROUP_KIND_MAX_ + 6] = { s.out,         parent,          s.images[0],
                                           s.images[1], r->views.plain, r->dirs.sandboxes };
        memcpy(keep + 6, r->cgroups.base, sizeof r->cgroups.base);
        confine_signals();
        confine_descriptors(keep, ARRAY_SIZE(keep));
        int res = cgroup_enter_v1(&r->cgroups, s.leaf, NULL);
        if (res < 0)
                fail(s.out, "cgroup", res);
        take_moments(r, &s);
        if (setns(r->views.plain, CLONE_NEWNS) < 0 || chdir("/") < 0)
                fail(s.out, "cannot join the view", -errno);
        struct pollfd gone = { .fd = fcntl(parent, F_DUPFD_CLOEXEC, HIGH_FD), .events = POLLIN };
        res = place_descriptors(&s);
        if (res < 0)
                fail(s.out, "descriptors", res);
        res = confine_self(&c, NULL);
        if (res < 0)
                fail(1, "cannot give up rights", res);
        /* After the change of identity, which clears it. The parent may have gone before. */
        if (prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0) < 0 || poll(&gone, 1, 0) != 0)
                _exit(1);
        (void) execve(s.argv[0], s.argv, no_env);
        fail(1, "cspace-history cannot be executed", -errno);
}

int history_child_start(struct rootd *r, const struct history_start *s, pid_t *ret_pid, int *ret_pidfd,
                        struct error *err) {
        int pidfd = -EBADF;
        _cleanup_fd_ int self = (int) syscall(SYS_pidfd_open, getpid(), 0);
        if (self < 0)
                return error_errno(err, errno, "cannot open our own pidfd");
        _cleanup_fd_ int cgroup = cgroup_open_leaf(&r->cgroups, s->leaf);
        pid_t pid = confine_clone(CLONE_NEWPID | CLONE_NEWIPC | CLONE_NEWUTS | CLONE_NEWNET, cgroup, &pidfd);
        if (pid < 0)
                return error_errno(err, pid, "cannot start a process");
        if (pid == 0)
                child(r, s, self);
        *ret_pid = pid;
        *ret_pidfd = pidfd;
        return 0;
}
