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
#include "confine/filter.h"

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

static const char *const refused[] = {
#if !defined(__SANITIZE_ADDRESS__) && !defined(CSPACE_SANITIZED) /* their leak checker traces us */
        "ptrace",
#endif
        "execve", "execveat", "process_vm_readv", "process_vm_writev", "process_madvise", "pidfd_getfd",
        "kcmp", "mount", "umount2", "move_mount", "open_tree", "fsopen", "fsmount", "fsconfig", "fspick",
        "mount_setattr", "pivot_root", "chroot", "unshare", "setns", "mknod", "mknodat", "open_by_handle_at",
        "name_to_handle_at", "bpf", "perf_event_open", "userfaultfd", "io_uring_setup", "io_uring_enter",
        "io_uring_register", "keyctl", "add_key", "request_key", "init_module", "finit_module",
        "delete_module", "kexec_load", "kexec_file_load", "reboot", "swapon", "swapoff", "acct", "quotactl",
        "personality", "settimeofday", "clock_settime", "adjtimex", "clock_adjtime", "sethostname",
        "setdomainname", "iopl", "ioperm", "syslog", "vhangup", "lookup_dcookie",
};

static int add_rules(scmp_filter_ctx ctx, const void *arg) {
        (void) arg;
        return filter_names(ctx, SCMP_ACT_ERRNO(EPERM), refused, ARRAY_SIZE(refused));
}

int privilege_filter(struct error *err) {
        return filter_install(SCMP_ACT_ALLOW, add_rules, NULL, err);
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
