/* SPDX-License-Identifier: Apache-2.0 */
#include "rootd/view.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/mount.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/fd.h"
#include "base/str.h"

#ifndef AT_RECURSIVE
#define AT_RECURSIVE 0x8000
#endif

static int set_attr(const char *path, uint64_t set, unsigned flags, struct error *err) {
        struct mount_attr attr = { .attr_set = set };
        if (syscall(SYS_mount_setattr, AT_FDCWD, path, flags, &attr, sizeof attr) < 0)
                return error_errno(err, errno, "cannot make \"%s\" read-only", path);
        return 0;
}

/* Binds host path `from` (absolute) at the same place below the new root, which is ".". */
static int bind_in(const char *from, bool directory, struct error *err) {
        const char *to = from + 1;
        int r = 0;
        if (directory) {
                r = fd_mkdir_p_at(AT_FDCWD, to, 0755, err);
                if (r < 0)
                        return r;
        } else {
                _cleanup_fd_ int fd = open(to, O_WRONLY | O_CREAT | O_CLOEXEC, 0444);
                if (fd < 0)
                        return error_errno(err, errno, "cannot create \"%s\"", to);
        }
        if (mount(from, to, NULL, MS_BIND | MS_REC, NULL) < 0)
                return error_errno(err, errno, "cannot bind \"%s\"", from);
        return set_attr(to, MOUNT_ATTR_RDONLY | MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV, AT_RECURSIVE, err);
}

/* /bin and /lib* are links into /usr on a merged system, folders elsewhere. */
static int bind_system(struct error *err) {
        static const char *const names[] = { "/usr", "/bin", "/lib", "/lib32", "/lib64", "/libx32" };
        for (size_t i = 0; i < ARRAY_SIZE(names); i++) {
                struct stat st;
                char target[256];
                if (lstat(names[i], &st) < 0)
                        continue;
                if (S_ISLNK(st.st_mode)) {
                        ssize_t n = readlink(names[i], target, sizeof target - 1);
                        if (n < 0)
                                return error_errno(err, errno, "cannot read link %s", names[i]);
                        target[n] = 0;
                        if (symlink(target, names[i] + 1) < 0)
                                return error_errno(err, errno, "cannot make link %s", names[i]);
                        continue;
                }
                int r = bind_in(names[i], true, err);
                if (r < 0)
                        return r;
        }
        if (mkdir("etc", 0755) < 0)
                return error_errno(err, errno, "cannot create etc");
        return access("/etc/ld.so.cache", R_OK) == 0 ? bind_in("/etc/ld.so.cache", false, err) : 0;
}

static int make_node(const char *path, unsigned major_n, unsigned minor_n, struct error *err) {
        char host[64];
        mode_t old = umask(0);
        int r = mknod(path, S_IFCHR | 0666, makedev(major_n, minor_n));
        int saved = errno;
        (void) umask(old);
        if (r == 0)
                return 0;
        /* A container may have the device and not the right to make it: then the host's own. */
        (void) snprintf(host, sizeof host, "/%s", path);
        _cleanup_fd_ int fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0444);
        if (fd < 0 || mount(host, path, NULL, MS_BIND, NULL) < 0)
                return error_errno(err, saved, "cannot make device \"%s\"", path);
        return 0;
}

static int make_dev(bool kvm, struct error *err) {
        if (mkdir("dev", 0755) < 0)
                return error_errno(err, errno, "cannot create dev");
        int r = make_node("dev/null", 1, 3, err);
        if (r == 0)
                r = make_node("dev/zero", 1, 5, err);
        if (r == 0)
                r = make_node("dev/urandom", 1, 9, err);
        struct stat st;
        /* A node of our own, open to whoever is in this view, leaves the host's as strict as it is. */
        if (r == 0 && kvm && stat("/dev/kvm", &st) == 0)
                r = make_node("dev/kvm", major(st.st_rdev), minor(st.st_rdev), err);
        return r;
}

static int make_proc(struct error *err) {
        if (mkdir("proc", 0555) < 0)
                return error_errno(err, errno, "cannot create proc");
        if (mount("proc", "proc", "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC, "hidepid=invisible,subset=pid") <
            0)
                return error_errno(err, errno, "cannot mount proc");
        return 0;
}

static int bind_extra(const char *dir, struct error *err) {
        struct stat st;
        if (!dir[0] || str_has_prefix(dir, "/usr/") || stat(dir, &st) < 0)
                return 0;
        return bind_in(dir, true, err);
}

static int fill(const struct options *o, bool kvm, struct error *err) {
        char qemu_dir[CONF_STR_MAX + 1];
        (void) str_copy(qemu_dir, sizeof qemu_dir, o->conf.qemu);
        char *slash = strrchr(qemu_dir, '/');
        if (slash)
                *slash = 0;
        int r = bind_system(err);
        if (r == 0)
                r = bind_extra(o->conf.libexec, err);
        if (r == 0)
                r = bind_extra(qemu_dir, err);
        if (r == 0)
                r = make_dev(kvm, err);
        if (r == 0)
                r = make_proc(err);
        if (r == 0 && mkdir("sandbox", 0555) < 0)
                r = error_errno(err, errno, "cannot create sandbox");
        return r;
}

/* In a child, as root of the host: leaves it in the finished view. */
static int enter_new(const struct options *o, bool kvm, struct error *err) {
        char at[CONF_STR_MAX + 16];
        if (unshare(CLONE_NEWNS) < 0 || mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) < 0)
                return error_errno(err, errno, "cannot make a mount namespace");
        (void) snprintf(at, sizeof at, "%s/rootd/pool",
                        o->conf.run); /* any folder: it is covered here alone */
        if (mount("cspace", at, "tmpfs", MS_NOSUID | MS_NOEXEC, "mode=0755,size=1m,nr_inodes=1k") < 0 ||
            chdir(at) < 0)
                return error_errno(err, errno, "cannot mount a tmpfs");
        int r = fill(o, kvm, err);
        if (r == 0)
                r = set_attr(".", MOUNT_ATTR_RDONLY, 0, err);
        if (r < 0)
                return r;
        if (syscall(SYS_pivot_root, ".", ".") < 0 || umount2(".", MNT_DETACH) < 0 || chdir("/") < 0)
                return error_errno(err, errno, "cannot change the root");
        return 0;
}

/* The child tells how it went, and stays until we hold the namespace. */
static void child(const struct options *o, bool kvm, int report, int hold) {
        struct error e = ERROR_INIT;
        char c;
        (void) enter_new(o, kvm, &e);
        int r = fd_write_all(report, &e, sizeof e, NULL);
        _exit(r == 0 && read(hold, &c, 1) == 0 ? 0 : 1);
}

static int make_one(const struct options *o, bool kvm, int *ret, struct error *err) {
        int report[2], hold[2];
        if (pipe2(report, O_CLOEXEC) < 0)
                return error_errno(err, errno, "cannot make a pipe");
        _cleanup_fd_ int report_r = report[0], report_w = report[1];
        if (pipe2(hold, O_CLOEXEC) < 0)
                return error_errno(err, errno, "cannot make a pipe");
        _cleanup_fd_ int hold_r = hold[0], hold_w = hold[1];
        pid_t pid = fork();
        if (pid < 0)
                return error_errno(err, errno, "cannot fork");
        if (pid == 0) {
                (void) fd_close(hold_w);
                child(o, kvm, report_w, hold_r);
        }
        report_w = fd_close(report_w);
        struct error e;
        char path[64];
        int r = 0, ns = -EBADF;
        if (read(report_r, &e, sizeof e) != (ssize_t) sizeof e)
                r = error_set(err, -EIO, "the child that makes it died");
        else if (e.code < 0)
                r = error_set(err, e.code, "%s", e.msg);
        (void) snprintf(path, sizeof path, "/proc/%d/ns/mnt", pid);
        if (r == 0 && (ns = open(path, O_RDONLY | O_CLOEXEC)) < 0)
                r = error_errno(err, errno, "cannot open %s", path);
        hold_w = fd_close(hold_w);
        while (waitpid(pid, NULL, 0) < 0 && errno == EINTR)
                ;
        if (r < 0)
                return error_wrap(err, "cannot make the view of wardens and VMs");
        *ret = ns;
        return 0;
}

int views_make(struct views *v, const struct options *o, bool with_kvm, struct error *err) {
        *v = (struct views){ -EBADF, -EBADF };
        int r = make_one(o, false, &v->plain, err);
        if (r == 0 && with_kvm)
                r = make_one(o, true, &v->kvm, err);
        if (r < 0)
                views_close(v);
        return r;
}

void views_close(struct views *v) {
        v->plain = fd_close(v->plain);
        v->kvm = fd_close(v->kvm);
}
