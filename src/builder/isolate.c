/* SPDX-License-Identifier: Apache-2.0 */

/*
 * What the builder does to its namespaces before the first tool runs. cspace-rootd made them; here
 * they lose what a package script could reach: the sockets in /run, files in /tmp, the network.
 */
#include "isolate.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <net/if.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/fd.h"
#include "base/str.h"

#define RESOLV_CONF "/etc/resolv.conf"
#define RESOLV_MAX (64 * 1024)

int isolate_check_uids(struct error *err) {
        _cleanup_free_ char *map = NULL;
        unsigned inside = 1, outside = 0, count = 0;

        int r = fd_read_file_at(AT_FDCWD, "/proc/self/uid_map", 4096, &map, NULL, err);
        if (r < 0)
                return r;
        if (sscanf(map, "%u %u %u", &inside, &outside, &count) != 3 || inside != 0)
                return error_set(err, -EPERM, "no uid 0 in this user namespace");
        if (outside == 0 || count < 65535)
                return error_set(err, -EPERM,
                                 "refusing to run with the host's uids: start it as root of a user namespace of 65536 uids");
        if (geteuid() != 0)
                return error_set(err, -EPERM, "not root of the user namespace");
        return 0;
}

static int mount_empty(const char *dir, const char *options, struct error *err) {
        if (access(dir, F_OK) < 0 && errno == ENOENT)
                return 0;
        if (mount("tmpfs", dir, "tmpfs", MS_NOSUID | MS_NODEV, options) < 0)
                return error_errno(err, errno, "cannot mount an empty %s", dir);
        return 0;
}

/* resolv.conf is often a link into /run, which is about to be emptied. */
static int keep_resolver(const char *target, const char *text, size_t n, struct error *err) {
        char path[PATH_MAX];

        if (!str_has_prefix(target, "/run/"))
                return 0;
        if (str_copy(path, sizeof path, target + 1) < 0)
                return 0;
        char *slash = strrchr(path, '/');
        _cleanup_fd_ int root = open("/", O_PATH | O_DIRECTORY | O_CLOEXEC);
        *slash = '\0';
        int r = fd_mkdir_p_at(root, path, 0755, err);
        *slash = '/';
        return r < 0 ? r : fd_replace_file_at(root, path, text, n, 0644, err);
}

/* Brings back what an empty mount has covered, by the descriptor opened before. */
static int keep_path(int fd, const char *path, struct error *err) {
        char rel[PATH_MAX], self[64];
        struct stat st;

        if (access(path, F_OK) == 0)
                return 0;
        if (fstat(fd, &st) < 0 || str_copy(rel, sizeof rel, path + 1) < 0)
                return error_set(err, -EINVAL, "cannot keep %s", path);
        _cleanup_fd_ int root = open("/", O_PATH | O_DIRECTORY | O_CLOEXEC);
        char *slash = strrchr(rel, '/');
        if (!slash)
                return error_set(err, -EINVAL, "cannot keep %s", path);
        *slash = '\0';
        int r = fd_mkdir_p_at(root, rel, 0755, err);
        *slash = '/';
        if (r < 0)
                return r;
        if (S_ISDIR(st.st_mode))
                r = mkdirat(root, rel, 0755);
        else
                r = fd_close(openat(root, rel, O_CREAT | O_WRONLY | O_CLOEXEC, 0644)) < 0 ? 0 : -1;
        (void) snprintf(self, sizeof self, "/proc/self/fd/%d", fd);
        if (r < 0 || mount(self, path, NULL, MS_BIND | MS_REC, NULL) < 0)
                return error_errno(err, errno, "cannot keep %s", path);
        return 0;
}

static int empty_all(struct error *err) {
        static const struct {
                const char *dir, *options;
        } empty[] = {
                { "/tmp", "mode=1777,size=1g" },
                { "/var/tmp", "mode=1777,size=1g" },
                { "/run", "mode=0755,size=64m" },
                { "/dev/shm", "mode=1777,size=64m" },
        };

        for (size_t i = 0; i < ARRAY_SIZE(empty); i++) {
                int r = mount_empty(empty[i].dir, empty[i].options, err);
                if (r < 0)
                        return r;
        }
        return 0;
}

int isolate_mounts(const char *const *keep, struct error *err) {
        _cleanup_free_ char *resolv = NULL;
        char target[PATH_MAX] = "";
        int fds[ISOLATE_KEEP_MAX], r = 0;
        size_t n = 0, kept = 0;

        for (; kept < ISOLATE_KEEP_MAX && keep[kept]; kept++)
                fds[kept] = open(keep[kept], O_PATH | O_CLOEXEC);

        if (realpath(RESOLV_CONF, target))
                (void) fd_read_file_at(AT_FDCWD, target, RESOLV_MAX, &resolv, &n, NULL);
        if (mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) < 0)
                return error_errno(err, errno, "cannot make the mounts private");
        if (mount("proc", "/proc", "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC, NULL) < 0)
                return error_errno(err, errno, "cannot mount /proc");
        r = empty_all(err);
        for (size_t i = 0; i < kept; i++) {
                if (r == 0 && fds[i] >= 0)
                        r = keep_path(fds[i], keep[i], err);
                (void) fd_close(fds[i]);
        }
        if (r < 0)
                return r;
        return resolv ? keep_resolver(target, resolv, n, err) : 0;
}

int isolate_network(struct error *err) {
        struct ifreq ifr = { .ifr_name = "lo" };

        if (unshare(CLONE_NEWNET) < 0)
                return error_errno(err, errno, "cannot make a network namespace");
        _cleanup_fd_ int s = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
        if (s < 0 || ioctl(s, SIOCGIFFLAGS, &ifr) < 0)
                return error_errno(err, errno, "cannot reach the loopback device");
        ifr.ifr_flags = (short) (ifr.ifr_flags | IFF_UP);
        if (ioctl(s, SIOCSIFFLAGS, &ifr) < 0)
                return error_errno(err, errno, "cannot bring up the loopback device");
        return 0;
}
