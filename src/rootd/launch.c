/* SPDX-License-Identifier: Apache-2.0 */
#include "rootd/launch.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/close_range.h>
#include <linux/mount.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/fd.h"
#include "rootd/confine.h"
#include "rootd/net.h"

#define HIGH_FD 100 /* received descriptors wait above the numbers they will have */

struct report {
        enum launch_event event;
        struct error error;
};

/* ---- both sides: a packet with descriptors -------------------------------------------------- */

static int send_packet(int sock, const void *data, size_t n, const int *fds, size_t n_fds) {
        union {
                const void *in;
                void *out;
        } u = { .in = data };
        struct iovec iov = { u.out, n };
        _Alignas(struct cmsghdr) uint8_t control[CMSG_SPACE(sizeof(int) * LAUNCH_FDS_MAX)] = {};
        struct msghdr msg = { .msg_iov = &iov, .msg_iovlen = 1 };
        if (n_fds > 0) {
                msg.msg_control = control;
                msg.msg_controllen = CMSG_SPACE(sizeof(int) * n_fds);
                struct cmsghdr *c = CMSG_FIRSTHDR(&msg);
                c->cmsg_level = SOL_SOCKET;
                c->cmsg_type = SCM_RIGHTS;
                c->cmsg_len = CMSG_LEN(sizeof(int) * n_fds);
                memcpy(CMSG_DATA(c), fds, sizeof(int) * n_fds);
        }
        return sendmsg(sock, &msg, MSG_NOSIGNAL) < 0 ? -errno : 0;
}

/* Exactly n bytes or the end (0); descriptors to fds. */
static ssize_t recv_packet(int sock, void *data, size_t n, int flags, int *fds, size_t *n_fds) {
        _Alignas(struct cmsghdr) uint8_t control[CMSG_SPACE(sizeof(int) * LAUNCH_FDS_MAX)];
        struct iovec iov = { data, n };
        struct msghdr msg = {
                .msg_iov = &iov, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control
        };
        ssize_t r;
        do
                r = recvmsg(sock, &msg, MSG_CMSG_CLOEXEC | flags);
        while (r < 0 && errno == EINTR);
        if (r < 0)
                return errno == ECONNRESET ? 0 : -errno;
        *n_fds = 0;
        struct cmsghdr *c = CMSG_FIRSTHDR(&msg);
        if (c && c->cmsg_level == SOL_SOCKET && c->cmsg_type == SCM_RIGHTS) {
                *n_fds = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);
                memcpy(fds, CMSG_DATA(c), *n_fds * sizeof(int));
        }
        if (r != 0 && (size_t) r != n)
                return -EPROTO;
        return r;
}

/* ---- in the launcher ------------------------------------------------------------------------ */

static int prepare_vm(int ret_fds[LAUNCH_READY_FDS], struct error *err) {
        int r = net_prepare(&ret_fds[0], err);
        if (r < 0)
                return r;
        ret_fds[1] = open("/proc/self/ns/net", O_RDONLY | O_CLOEXEC);
        if (ret_fds[1] < 0)
                return error_errno(err, errno, "cannot open the network namespace");
        /* What arrives before a gateway runs waits in them, and is what starts it. */
        return net_listen(ret_fds + 2, err);
}

/*
 * A copy of the view with the sandbox's folder in it. Bound rather than only entered: a working
 * directory outside of the root would be a way up to the host's. The folder is renamed later,
 * and the bind follows it.
 */
static int prepare_warden(const struct launch_setup *s, struct error *err) {
        _cleanup_fd_ int tree =
                (int) syscall(SYS_open_tree, s->dir, "", AT_EMPTY_PATH | OPEN_TREE_CLONE | O_CLOEXEC);
        if (tree < 0)
                return error_errno(err, errno, "cannot copy the sandbox's folder");
        struct mount_attr attr = { .attr_set = MOUNT_ATTR_RDONLY | MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV |
                                               MOUNT_ATTR_NOEXEC };
        if (syscall(SYS_mount_setattr, tree, "", AT_EMPTY_PATH, &attr, sizeof attr) < 0)
                return error_errno(err, errno, "cannot make the sandbox's folder read-only");
        if (setns(s->netns, CLONE_NEWNET) < 0)
                return error_errno(err, errno, "cannot join the network namespace");
        if (setns(s->views->plain, CLONE_NEWNS) < 0 || unshare(CLONE_NEWNS) < 0)
                return error_errno(err, errno, "cannot join the view");
        if (syscall(SYS_move_mount, tree, "", AT_FDCWD, "/sandbox", MOVE_MOUNT_F_EMPTY_PATH) < 0)
                return error_errno(err, errno, "cannot mount the sandbox's folder");
        return 0;
}

static int place_descriptors(const struct launch_order *o, int *fds, struct error *err) {
        for (uint32_t i = 0; i < o->n_fds; i++) {
                int high = fcntl(fds[i], F_DUPFD_CLOEXEC, HIGH_FD);
                if (high < 0)
                        return error_errno(err, errno, "cannot move a descriptor");
                (void) close(fds[i]);
                fds[i] = high;
        }
        int null = open("/dev/null", O_RDWR | O_CLOEXEC);
        if (null < 0)
                return error_errno(err, errno, "cannot open /dev/null");
        if (dup2(null, 0) < 0 || dup2(null, 1) < 0 || dup2(null, 2) < 0)
                return error_errno(err, errno, "cannot set the standard streams");
        /* What remains open up to exec, to report its failure, closes with it. */
        if (syscall(SYS_close_range, 3, ~0u, CLOSE_RANGE_CLOEXEC) < 0)
                return error_errno(err, errno, "cannot close descriptors");
        for (uint32_t i = 0; i < o->n_fds; i++)
                if (dup2(fds[i], o->fds[i]) < 0)
                        return error_errno(err, errno, "cannot set descriptor %d", o->fds[i]);
        return 0;
}

static int become(const struct launch_setup *s, const struct launch_order *o, int *fds, struct error *err) {
        static char argv_bytes[LAUNCH_ARGV_BYTES];
        char *argv[LAUNCH_ARGV_MAX + 1] = {};
        static char text_log[] = "CSPACE_LOG_FORMAT=text";
        char *const env[] = { o->text_log ? text_log : NULL, NULL };
        memcpy(argv_bytes, o->argv, sizeof argv_bytes);
        size_t at = 0;
        for (uint32_t i = 0; i < o->argc; i++) {
                argv[i] = argv_bytes + at;
                at += strlen(argv[i]) + 1;
        }
        if (s->kind != LAUNCH_WARDEN && setns(o->kvm ? s->views->kvm : s->views->plain, CLONE_NEWNS) < 0)
                return error_errno(err, errno, "cannot join the view");
        if (chdir(s->kind == LAUNCH_WARDEN ? "/sandbox" : "/") < 0)
                return error_errno(err, errno, "cannot change the directory");
        const struct confine c = { .uid = o->uid,
                                   .files = o->files,
                                   .processes = o->processes,
                                   .file_bytes = o->file_bytes,
                                   .oom_score_adj = o->oom_score_adj };
        int r = place_descriptors(o, fds, err);
        if (r == 0)
                r = confine_self(&c, err);
        if (r < 0)
                return r;
        (void) execve(argv[0], argv, env);
        return error_errno(err, errno, "cannot execute \"%s\"", argv[0]);
}

static _Noreturn void launcher_main(const struct launch_setup *s, int sock) {
        static struct report report;
        static struct launch_order order;
        int fds[LAUNCH_READY_FDS] = { -EBADF, -EBADF, -EBADF, -EBADF, -EBADF }, got[LAUNCH_FDS_MAX];
        int keep[CGROUP_KIND_MAX_ + 5] = { sock, s->netns, s->dir, s->views->plain, s->views->kvm };
        memcpy(keep + 5, s->cgroups->base, sizeof s->cgroups->base);
        confine_signals();
        confine_descriptors(keep, ARRAY_SIZE(keep));
        int r = cgroup_enter_v1(s->cgroups, s->leaf, &report.error);
        if (r == 0)
                r = s->kind == LAUNCH_VM       ? prepare_vm(fds, &report.error)
                    : s->kind == LAUNCH_WARDEN ? prepare_warden(s, &report.error)
                                               : 0;
        report.event = r < 0 ? LAUNCH_ERROR : LAUNCH_READY;
        if (send_packet(sock, &report, sizeof report, fds, r == 0 && s->kind == LAUNCH_VM ? LAUNCH_READY_FDS : 0) < 0 ||
            r < 0)
                _exit(126);
        if (s->kind == LAUNCH_VM) {
                for (size_t i = 0; i < LAUNCH_READY_FDS; i++)
                        (void) fd_close(fds[i]); /* the tap must end with the VM, not with us */
        }
        size_t n_fds = 0;
        if (recv_packet(sock, &order, sizeof order, 0, got, &n_fds) <= 0 || n_fds != order.n_fds)
                _exit(0); /* rootd went, or gave the slot up */
        if (become(s, &order, got, &report.error) < 0) {
                report.event = LAUNCH_ERROR;
                (void) send_packet(sock, &report, sizeof report, NULL, 0);
        }
        _exit(127);
}

/* ---- in rootd ------------------------------------------------------------------------------- */

int launcher_start(const struct launch_setup *s, struct launcher *ret, struct error *err) {
        int sv[2];
        if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, sv) < 0)
                return error_errno(err, errno, "cannot make a socket pair");
        _cleanup_fd_ int ours = sv[0], theirs = sv[1];
        int r = fd_nonblock(ours, err);
        if (r < 0)
                return r;
        _cleanup_fd_ int cgroup = cgroup_open_leaf(s->cgroups, s->leaf);
        uint64_t flags = CLONE_NEWPID | CLONE_NEWIPC | CLONE_NEWUTS;
        if (s->kind == LAUNCH_VM)
                flags |= CLONE_NEWNET;
        int pidfd = -EBADF;
        pid_t pid = confine_clone(flags, cgroup, &pidfd);
        if (pid < 0)
                return error_errno(err, pid, "cannot start a process");
        if (pid == 0)
                launcher_main(s, theirs);
        *ret = (struct launcher){ .pid = pid, .pidfd = pidfd, .sock = fd_steal(&ours) };
        return 0;
}

enum launch_event launcher_read(struct launcher *l, int ret_fds[LAUNCH_READY_FDS], struct error *err) {
        struct report report = {};
        int fds[LAUNCH_FDS_MAX];
        size_t n_fds = 0;
        ssize_t r = recv_packet(l->sock, &report, sizeof report, MSG_DONTWAIT, fds, &n_fds);
        if (r == -EAGAIN)
                return LAUNCH_NOTHING;
        if (r == 0)
                return LAUNCH_RUNS;
        if (r > 0 && report.event == LAUNCH_ERROR) {
                (void) error_set(err, report.error.code, "%s", report.error.msg);
                return LAUNCH_ERROR;
        }
        if (r > 0 && report.event == LAUNCH_READY && (n_fds == 0 || n_fds == LAUNCH_READY_FDS)) {
                for (size_t i = 0; i < LAUNCH_READY_FDS; i++)
                        ret_fds[i] = n_fds > 0 ? fds[i] : -EBADF;
                return LAUNCH_READY;
        }
        for (size_t i = 0; i < n_fds; i++)
                (void) fd_close(fds[i]);
        (void) error_errno(err, r < 0 ? (int) r : -EPROTO, "cannot read from a launcher");
        return LAUNCH_ERROR;
}

int launcher_order(struct launcher *l, const struct launch_order *o, const int *fds, struct error *err) {
        int r = send_packet(l->sock, o, sizeof *o, fds, o->n_fds);
        if (r == -EPIPE)
                return error_set(err, r, "a process that was to become a VM or its warden was ended from outside");
        return r < 0 ? error_errno(err, r, "cannot give a launcher its order") : 0;
}

void launcher_done(struct launcher *l) {
        l->pidfd = fd_close(l->pidfd);
        l->sock = fd_close(l->sock);
}

int launch_order_arg(struct launch_order *o, const char *arg) {
        size_t n = strlen(arg) + 1;
        if (o->argc >= LAUNCH_ARGV_MAX || n > sizeof o->argv - o->argv_bytes)
                return -E2BIG;
        memcpy(o->argv + o->argv_bytes, arg, n);
        o->argv_bytes += (uint32_t) n;
        o->argc++;
        return 0;
}
