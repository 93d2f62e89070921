/* SPDX-License-Identifier: Apache-2.0 */

/*
 *   rootd --clone3(NEWNS)--> porter   covers and write-protects the host's mounts, as root of the host
 *   porter --clone3(NEWUSER, NEWNS, NEWPID, ..., PARENT)--> builder   a child of rootd again
 *   porter --pid, pidfd--> rootd, and ends
 *   rootd: writes the uid and gid maps, then one byte to the builder
 *   builder: becomes root of its namespace, execs
 *
 * The porter is what makes the mounts stick: a mount namespace made by a less privileged user
 * namespace inherits its mounts locked, so nothing in the builder can lay bare what was covered
 * or make writable what was not.
 */
#include "rootd/build_child.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/close_range.h>
#include <limits.h>
#include <linux/mount.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/fd.h"
#include "base/str.h"
#include "ipc/ipc.h"
#include "rootd/confine.h"

#ifndef AT_RECURSIVE
#define AT_RECURSIVE 0x8000
#endif
#define BUILD_FILES_MAX 65536
#define BUILD_OOM_ADJ 500
#define ENV_MAX 16
#define KEEP_MAX 4
#define RESOLVER_MAX (64 * 1024)

enum { PORTER_PID = 1, PORTER_FAILED };

/* ---- mounts ---------------------------------------------------------------------------------- */

static int set_attr(const char *path, uint64_t set, uint64_t clear, unsigned flags) {
        struct mount_attr attr = { .attr_set = set, .attr_clr = clear };
        return syscall(SYS_mount_setattr, AT_FDCWD, path, flags, &attr, sizeof attr) < 0 ? -errno : 0;
}

static int cover(const char *path, const char *mode, struct error *err) {
        struct stat st;
        if (stat(path, &st) < 0 || !S_ISDIR(st.st_mode))
                return 0; /* not there, or covered with its parent */
        if (mount("cspace", path, "tmpfs", MS_NOSUID | MS_NODEV, mode) < 0)
                return error_errno(err, errno, "cannot cover \"%s\"", path);
        return 0;
}

struct keep {
        const char *path;
        bool writable;
        int tree;
};

static int keep_trees(struct keep *k, size_t n, struct error *err) {
        for (size_t i = 0; i < n; i++) {
                k[i].tree = (int) syscall(SYS_open_tree, AT_FDCWD, k[i].path, OPEN_TREE_CLONE | O_CLOEXEC);
                if (k[i].tree < 0)
                        return error_errno(err, errno, "cannot keep \"%s\"", k[i].path);
        }
        return 0;
}

static int put_trees(const struct keep *k, size_t n, struct error *err) {
        for (size_t i = 0; i < n; i++) {
                int r = fd_mkdir_p_at(AT_FDCWD, k[i].path, 0755, err);
                if (r < 0)
                        return r;
                if (syscall(SYS_move_mount, k[i].tree, "", AT_FDCWD, k[i].path, MOVE_MOUNT_F_EMPTY_PATH) < 0)
                        return error_errno(err, errno, "cannot mount \"%s\"", k[i].path);
        }
        return 0;
}

/* Where the names of the network are resolved: often a link into /run, which is covered. */
struct resolver {
        char path[PATH_MAX];
        char *text; /* NULL: nothing to do */
        size_t n;
};

static void read_resolver(struct resolver *v) {
        v->text = NULL;
        if (realpath("/etc/resolv.conf", v->path) && str_has_prefix(v->path, "/run/"))
                (void) fd_read_file_at(AT_FDCWD, v->path, RESOLVER_MAX, &v->text, &v->n, NULL);
}

static int write_resolver(const struct resolver *v, struct error *err) {
        char dir[PATH_MAX];
        if (!v->text)
                return 0;
        (void) str_copy(dir, sizeof dir, v->path);
        *strrchr(dir, '/') = 0;
        int r = fd_mkdir_p_at(AT_FDCWD, dir, 0755, err);
        return r < 0 ? r : fd_replace_file_at(AT_FDCWD, v->path, v->text, v->n, 0644, err);
}

static const char *const emptied[] = { "/tmp", "/var/tmp", "/run", "/dev/shm" };

static int arrange_mounts(const struct rootd *r, const struct build_start *s, struct error *err) {
        char sources[CONF_STR_MAX + 1];
        struct keep keep[KEEP_MAX] = { { s->dir, true, -EBADF },
                                       { s->cache, true, -EBADF },
                                       { r->opt.conf.libexec, false, -EBADF } };
        size_t n = 3;
        (void) str_copy(sources, sizeof sources, r->opt.conf.sources);
        char *slash = strrchr(sources, '/');
        if (slash && slash > sources && !str_has_prefix(sources, "/etc/")) {
                *slash = 0;
                keep[n++] = (struct keep){ sources, false, -EBADF };
        }
        if (mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) < 0)
                return error_errno(err, errno, "cannot make the mounts private");
        static struct resolver resolver;
        read_resolver(&resolver);
        int res = keep_trees(keep, n, err);
        for (size_t i = 0; i < ARRAY_SIZE(emptied) && res == 0; i++)
                res = cover(emptied[i], "mode=1777", err);
        const char *const hidden[] = { r->opt.conf.data, r->opt.conf.run, "/home", "/root" };
        for (size_t i = 0; i < ARRAY_SIZE(hidden) && res == 0; i++)
                res = cover(hidden[i], "mode=0755,size=1m", err);
        if (res == 0)
                res = put_trees(keep, n, err);
        if (res == 0)
                res = write_resolver(&resolver, err);
        if (res < 0)
                return res;
        res = set_attr("/", MOUNT_ATTR_RDONLY, 0, AT_RECURSIVE);
        if (res < 0)
                return error_errno(err, res, "cannot make the host's files read-only");
        /* A proc of its own is mountable only while an unrestricted one is in sight. */
        res = set_attr("/proc", 0, MOUNT_ATTR_RDONLY, 0);
        for (size_t i = 0; i < n && res == 0; i++)
                if (keep[i].writable)
                        res = set_attr(keep[i].path, 0, MOUNT_ATTR_RDONLY, 0);
        for (size_t i = 0; i < ARRAY_SIZE(emptied); i++)
                (void) set_attr(emptied[i], 0, MOUNT_ATTR_RDONLY, 0);
        return res < 0 ? error_errno(err, res, "cannot open the build's folders for writing") : 0;
}

/* ---- the builder ----------------------------------------------------------------------------- */

static void make_env(char **env) {
        static const char *const passed[] = { "http_proxy", "https_proxy", "ftp_proxy",
                                              "no_proxy",   "HTTP_PROXY",  "HTTPS_PROXY",
                                              "NO_PROXY",   "all_proxy",   "ALL_PROXY" };
        static char path[] = "PATH=/usr/sbin:/usr/bin:/sbin:/bin";
        size_t n = 0;
        env[n++] = path;
        static char text[ARRAY_SIZE(passed)][1024];
        for (size_t i = 0; i < ARRAY_SIZE(passed) && n < ENV_MAX - 1; i++) {
                const char *value = getenv(passed[i]);
                if (!value ||
                    snprintf(text[i], sizeof text[i], "%s=%s", passed[i], value) >= (int) sizeof text[i])
                        continue;
                env[n++] = text[i];
        }
        env[n] = NULL;
}

static int become_root_of_namespace(void) {
        const struct rlimit core = { 1, 1 };
        struct rlimit files;
        if (syscall(SYS_setgroups, 0, NULL) < 0 || syscall(SYS_setresgid, 0, 0, 0) < 0 ||
            syscall(SYS_setresuid, 0, 0, 0) < 0)
                return -errno;
        (void) syscall(SYS_prlimit64, 0, RLIMIT_CORE, &core, NULL);
        if (syscall(SYS_prlimit64, 0, RLIMIT_NOFILE, NULL, &files) == 0) {
                files.rlim_max = files.rlim_max < BUILD_FILES_MAX ? files.rlim_max : BUILD_FILES_MAX;
                files.rlim_cur = files.rlim_max;
                (void) syscall(SYS_prlimit64, 0, RLIMIT_NOFILE, &files, NULL);
        }
        (void) umask(022);
        if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) < 0)
                return -errno;
        /* After the change of identity, which clears it. */
        return prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0) < 0 ? -errno : 0;
}

static _Noreturn void builder_main(const struct build_start *s, int go) {
        char *env[ENV_MAX];
        char byte;
        if (read(go, &byte, 1) != 1) /* rootd went before it had written the maps */
                _exit(126);
        make_env(env);
        int null = open("/dev/null", O_RDWR | O_CLOEXEC);
        if (become_root_of_namespace() < 0 || null < 0 || chdir("/") < 0)
                _exit(126);
        int progress = fcntl(s->progress, F_DUPFD_CLOEXEC, 100);
        int archive = s->archive >= 0 ? fcntl(s->archive, F_DUPFD_CLOEXEC, 100) : -EBADF;
        if (syscall(SYS_close_range, 3, ~0u, CLOSE_RANGE_CLOEXEC) < 0 || dup2(null, 0) < 0 ||
            dup2(progress, 1) < 0)
                _exit(126);
        if (archive >= 0 && dup2(archive, 3) < 0)
                _exit(126);
        (void) execve(s->argv[0], s->argv, env);
        _exit(127);
}

static _Noreturn void porter_main(struct rootd *r, const struct build_start *s, int report, int go) {
        struct error e = ERROR_INIT;
        int pidfd = -EBADF;
        confine_signals();
        const int keep[] = { report,
                             go,
                             s->progress,
                             s->archive,
                             r->cgroups.base[0],
                             r->cgroups.base[1],
                             r->cgroups.base[2],
                             r->cgroups.base[3],
                             r->cgroups.base[4] };
        _Static_assert(CGROUP_KIND_MAX_ == 5, "all bases are kept");
        confine_descriptors(keep, ARRAY_SIZE(keep));
        int res = cgroup_enter_v1(&r->cgroups, s->leaf, &e);
        if (res == 0)
                res = confine_oom(BUILD_OOM_ADJ, &e);
        if (res == 0)
                res = arrange_mounts(r, s, &e);
        pid_t pid = 0;
        if (res == 0) {
                pid = confine_clone(CLONE_NEWUSER | CLONE_NEWNS | CLONE_NEWPID | CLONE_NEWIPC | CLONE_NEWUTS |
                                            CLONE_PARENT,
                                    -EBADF, &pidfd);
                if (pid == 0)
                        builder_main(s, go);
                if (pid < 0)
                        res = error_errno(&e, pid, "cannot make a user namespace");
        }
        if (res < 0)
                (void) ipc_send(report, PORTER_FAILED, 0, 0, &e, sizeof e, NULL, 0, NULL);
        else
                (void) ipc_send(report, PORTER_PID, 0, 0, &pid, sizeof pid, &pidfd, 1, NULL);
        _exit(0);
}

/* ---- in rootd -------------------------------------------------------------------------------- */

static int write_map(pid_t pid, const char *file, uid_t base, struct error *err) {
        char path[48], text[48];
        (void) snprintf(path, sizeof path, "/proc/%d/%s", pid, file);
        int n = snprintf(text, sizeof text, "0 %u %u\n", base, BUILD_UID_COUNT);
        _cleanup_fd_ int fd = open(path, O_WRONLY | O_CLOEXEC);
        if (fd < 0 || write(fd, text, (size_t) n) < 0)
                return error_errno(err, errno, "cannot write %s of the builder", file);
        return 0;
}

static int hear_porter(int sock, pid_t *ret_pid, int *ret_pidfd, struct error *err) {
        static uint8_t buf[IPC_PACKET_MAX];
        struct ipc_packet p;
        int r = ipc_recv(sock, buf, &p, err);
        if (r < 0)
                return r;
        if (r == 0)
                return error_set(err, -ECHILD, "the porter died");
        if (p.type == PORTER_PID && p.body_n == sizeof *ret_pid && p.n_fds == 1) {
                memcpy(ret_pid, p.body, sizeof *ret_pid);
                *ret_pidfd = p.fds[0];
                return 0;
        }
        ipc_packet_close_fds(&p);
        struct error e = ERROR_INIT;
        if (p.type == PORTER_FAILED && p.body_n == sizeof e)
                memcpy(&e, p.body, sizeof e);
        return error_set(err, e.code ? e.code : -EPROTO, "%s", e.code ? e.msg : "the porter spoke nonsense");
}

int build_child_start(struct rootd *r, const struct build_start *s, pid_t *ret_pid, int *ret_pidfd,
                      struct error *err) {
        int sv[2], go[2], porter_fd = -EBADF;
        if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, sv) < 0)
                return error_errno(err, errno, "cannot make a socket pair");
        _cleanup_fd_ int ours = sv[0], theirs = sv[1];
        if (pipe2(go, O_CLOEXEC) < 0)
                return error_errno(err, errno, "cannot make a pipe");
        _cleanup_fd_ int go_r = go[0], go_w = go[1];
        _cleanup_fd_ int cgroup = cgroup_open_leaf(&r->cgroups, s->leaf);
        pid_t porter = confine_clone(CLONE_NEWNS, cgroup, &porter_fd);
        if (porter < 0)
                return error_errno(err, porter, "cannot start the porter");
        if (porter == 0)
                porter_main(r, s, theirs, go_r);
        theirs = fd_close(theirs);
        go_r = fd_close(go_r);
        (void) fd_close(porter_fd);
        pid_t pid = 0;
        _cleanup_fd_ int pidfd = -EBADF;
        int res = hear_porter(ours, &pid, &pidfd, err);
        while (waitpid(porter, NULL, 0) < 0 && errno == EINTR)
                ;
        if (res == 0)
                res = write_map(pid, "gid_map", s->base, err);
        if (res == 0)
                res = write_map(pid, "uid_map", s->base, err);
        if (res == 0)
                res = fd_write_all(go_w, "g", 1, err);
        if (res < 0) {
                if (pidfd >= 0) { /* it waits for the byte, and goes when the pipe closes */
                        go_w = fd_close(go_w);
                        (void) waitid(P_PIDFD, (id_t) pidfd, &(siginfo_t){}, WEXITED);
                }
                return error_wrap(err, "cannot start the builder");
        }
        *ret_pid = pid;
        *ret_pidfd = fd_steal(&pidfd);
        return 0;
}
