/* SPDX-License-Identifier: Apache-2.0 */

/*
 * sun_path holds 107 characters, and run folders of tests and of users with long names go beyond
 * that. A longer path is reached through a descriptor of its folder in /proc/self/fd.
 */

#include "io/unix_addr.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>

#include "base/fd.h"
#include "base/limits.h"

static int set_path(struct unix_addr *a, const char *path) {
        size_t n = strlen(path);
        if (n >= sizeof a->sa.sun_path)
                return -ENAMETOOLONG;
        memcpy(a->sa.sun_path, path, n + 1);
        a->len = (socklen_t) (offsetof(struct sockaddr_un, sun_path) + n + 1);
        return 0;
}

int unix_addr_init(const char *path, struct unix_addr *ret, struct error *err) {
        struct unix_addr a = { .sa.sun_family = AF_UNIX, .dirfd = -EBADF };
        size_t n = strlen(path);
        if (n == 0 || n >= LIMIT_PATH)
                return error_set(err, -EINVAL, "socket path of %zu bytes", n);
        if (set_path(&a, path) == 0) {
                *ret = a;
                return 0;
        }

        const char *slash = strrchr(path, '/');
        const char *name = slash ? slash + 1 : path;
        char dir[LIMIT_PATH], via[sizeof a.sa.sun_path + 1];
        size_t dn = slash ? (size_t) (slash - path) : 0;
        if (dn == 0)
                return error_set(err, -ENAMETOOLONG, "socket name \"%s\" is too long", name);
        memcpy(dir, path, dn);
        dir[dn] = '\0';
        a.dirfd = open(dir, O_PATH | O_DIRECTORY | O_CLOEXEC);
        if (a.dirfd < 0)
                return error_errno(err, errno, "folder \"%s\"", dir);
        int len = snprintf(via, sizeof via, "/proc/self/fd/%d/%s", a.dirfd, name);
        if (len < 0 || (size_t) len >= sizeof via || set_path(&a, via) < 0) {
                unix_addr_done(&a);
                return error_set(err, -ENAMETOOLONG, "socket name \"%s\" is too long", name);
        }
        *ret = a;
        return 0;
}

void unix_addr_done(struct unix_addr *a) {
        a->dirfd = fd_close(a->dirfd);
}
