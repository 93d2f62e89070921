/* SPDX-License-Identifier: Apache-2.0 */

#include "privilege.h"

#include <cap-ng.h>
#include <errno.h>
#include <grp.h>
#include <pwd.h>
#include <seccomp.h>
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

int privilege_filter(struct error *err) {
        static const int refused[] = {
                SCMP_SYS(execve), SCMP_SYS(execveat),
#if !defined(__SANITIZE_ADDRESS__) && !defined(CSPACE_SANITIZED) /* their leak checker traces us */
                SCMP_SYS(ptrace),
#endif
                SCMP_SYS(process_vm_readv), SCMP_SYS(process_vm_writev), SCMP_SYS(process_madvise), SCMP_SYS(pidfd_getfd),
                SCMP_SYS(kcmp), SCMP_SYS(mount), SCMP_SYS(umount2), SCMP_SYS(move_mount), SCMP_SYS(open_tree),
                SCMP_SYS(fsopen), SCMP_SYS(fsmount), SCMP_SYS(fsconfig), SCMP_SYS(fspick), SCMP_SYS(mount_setattr),
                SCMP_SYS(pivot_root), SCMP_SYS(chroot), SCMP_SYS(unshare), SCMP_SYS(setns), SCMP_SYS(mknod),
                SCMP_SYS(mknodat), SCMP_SYS(open_by_handle_at), SCMP_SYS(name_to_handle_at), SCMP_SYS(bpf),
                SCMP_SYS(perf_event_open), SCMP_SYS(userfaultfd), SCMP_SYS(io_uring_setup), SCMP_SYS(io_uring_enter),
                SCMP_SYS(io_uring_register), SCMP_SYS(keyctl), SCMP_SYS(add_key), SCMP_SYS(request_key),
                SCMP_SYS(init_module), SCMP_SYS(finit_module), SCMP_SYS(delete_module), SCMP_SYS(kexec_load),
                SCMP_SYS(kexec_file_load), SCMP_SYS(reboot), SCMP_SYS(swapon), SCMP_SYS(swapoff), SCMP_SYS(acct),
                SCMP_SYS(quotactl), SCMP_SYS(personality), SCMP_SYS(settimeofday), SCMP_SYS(clock_settime),
                SCMP_SYS(adjtimex), SCMP_SYS(clock_adjtime), SCMP_SYS(sethostname), SCMP_SYS(setdomainname),
                SCMP_SYS(iopl), SCMP_SYS(ioperm), SCMP_SYS(syslog), SCMP_SYS(vhangup), SCMP_SYS(lookup_dcookie),
        };
        scmp_filter_ctx ctx = seccomp_init(SCMP_ACT_ALLOW);
        if (!ctx)
                return error_set(err, -ENOMEM, "could not make a system call filter");
        int r = 0;
        for (size_t i = 0; i < ARRAY_SIZE(refused) && r >= 0; i++)
                if (refused[i] >= 0) /* known on this architecture */
                        r = seccomp_rule_add(ctx, SCMP_ACT_ERRNO(EPERM), refused[i], 0);
        if (r >= 0)
                r = seccomp_load(ctx);
        seccomp_release(ctx);
        return r < 0 ? error_errno(err, r, "could not install the system call filter") : 0;
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
