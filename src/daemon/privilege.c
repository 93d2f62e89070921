/* SPDX-License-Identifier: Apache-2.0 */

#include "privilege.h"

#include <cap-ng.h>
#include <errno.h>
#include <grp.h>
#include <pwd.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/cleanup.h"

#define GROUPS_MAX 65536 /* NGROUPS_MAX of Linux */

int privilege_lookup(const char *user, struct identity *ret, struct error *err) {
        errno = 0;
        const struct passwd *p = getpwnam(user);
        if (!p)
                return error_set(err, -ENOENT, "user \"%s\" does not exist; `cspace up` makes it", user);
        if (p->pw_uid == 0)
                return error_set(err, -EPERM, "user \"%s\" is root", user);
        ret->uid = p->pw_uid;
        ret->gid = p->pw_gid;
        return 0;
}

int privilege_drop(const struct identity *id, struct error *err) {
        if (setgroups(1, &id->gid) < 0 || setresgid(id->gid, id->gid, id->gid) < 0 ||
            setresuid(id->uid, id->uid, id->uid) < 0)
                return error_errno(err, errno, "could not become user %u", id->uid);
        capng_clear(CAPNG_SELECT_BOTH);
        (void) capng_apply(CAPNG_SELECT_CAPS); /* none are left after setresuid: this holds them away */
        if (setresuid(0, 0, 0) == 0 || getuid() == 0 || geteuid() == 0)
                return error_set(err, -EPERM, "root could be had back after giving it up");
        return 0;
}

void privilege_harden(void) {
        const struct rlimit none = { 0, 0 };
        (void) umask(077);
        (void) setrlimit(RLIMIT_CORE, &none);
        (void) prctl(PR_SET_DUMPABLE, 0);
        (void) prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
}

static bool in_groups(int fd, gid_t gid) {
        gid_t few[32], *groups = few;
        socklen_t n = sizeof few;
        _cleanup_free_ gid_t *many = NULL;
        if (getsockopt(fd, SOL_SOCKET, SO_PEERGROUPS, groups, &n) < 0) {
                if (errno != ERANGE || n > GROUPS_MAX * sizeof *many || !(many = malloc(n)))
                        return false;
                groups = many;
                if (getsockopt(fd, SOL_SOCKET, SO_PEERGROUPS, groups, &n) < 0)
                        return false;
        }
        for (size_t i = 0; i < n / sizeof *groups; i++)
                if (groups[i] == gid)
                        return true;
        return false;
}

bool privilege_peer_trusted(int fd) {
        struct ucred c;
        socklen_t n = sizeof c;
        if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &c, &n) < 0)
                return false;
        return c.uid == 0 || c.uid == geteuid() || c.gid == getegid() || in_groups(fd, getegid());
}
