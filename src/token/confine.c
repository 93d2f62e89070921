/* SPDX-License-Identifier: Apache-2.0 */
#include "confine.h"

#include <errno.h>
#include <seccomp.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>

#include "base/cleanup.h"

static const int refused[] = {
        SCMP_SYS(open),     SCMP_SYS(openat),   SCMP_SYS(openat2),  SCMP_SYS(creat),    SCMP_SYS(execve),   SCMP_SYS(execveat),
        SCMP_SYS(fork),     SCMP_SYS(vfork),    SCMP_SYS(ptrace),   SCMP_SYS(process_vm_readv), SCMP_SYS(process_vm_writev),
        SCMP_SYS(kill),     SCMP_SYS(tkill),    SCMP_SYS(unlink),   SCMP_SYS(unlinkat), SCMP_SYS(rename),   SCMP_SYS(renameat),
        SCMP_SYS(renameat2), SCMP_SYS(link),    SCMP_SYS(linkat),   SCMP_SYS(symlink),  SCMP_SYS(symlinkat), SCMP_SYS(mkdir),
        SCMP_SYS(mkdirat),  SCMP_SYS(mknod),    SCMP_SYS(mknodat),  SCMP_SYS(chmod),    SCMP_SYS(fchmodat), SCMP_SYS(mount),
        SCMP_SYS(unshare),  SCMP_SYS(setns),    SCMP_SYS(bpf),      SCMP_SYS(perf_event_open), SCMP_SYS(userfaultfd),
        SCMP_SYS(io_uring_setup), SCMP_SYS(keyctl), SCMP_SYS(add_key), SCMP_SYS(request_key), SCMP_SYS(bind), SCMP_SYS(listen),
        SCMP_SYS(sendmmsg), SCMP_SYS(memfd_create), SCMP_SYS(personality), SCMP_SYS(open_by_handle_at),
};

static int add_rules(scmp_filter_ctx ctx) {
        int r = 0;
        for (size_t i = 0; i < ARRAY_SIZE(refused) && r >= 0; i++)
                if (refused[i] >= 0) /* known on this architecture */
                        r = seccomp_rule_add(ctx, SCMP_ACT_ERRNO(EPERM), refused[i], 0);
        if (r >= 0) /* no addresses but IPv4's */
                r = seccomp_rule_add(ctx, SCMP_ACT_ERRNO(EPERM), SCMP_SYS(socket), 1, SCMP_A0(SCMP_CMP_NE, AF_INET, 0));
        if (r >= 0)
                r = seccomp_rule_add(ctx, SCMP_ACT_ERRNO(EPERM), SCMP_SYS(mmap), 1, SCMP_A2(SCMP_CMP_MASKED_EQ, PROT_EXEC, PROT_EXEC));
        return r < 0 ? r : seccomp_rule_add(ctx, SCMP_ACT_ERRNO(EPERM), SCMP_SYS(mprotect), 1,
                                            SCMP_A2(SCMP_CMP_MASKED_EQ, PROT_EXEC, PROT_EXEC));
}

int confine(struct error *err) {
        if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) < 0)
                return error_errno(err, errno, "cannot give up privileges");
        scmp_filter_ctx ctx = seccomp_init(SCMP_ACT_ALLOW);
        if (!ctx)
                return error_set(err, -ENOMEM, "seccomp: out of memory");
        int r = add_rules(ctx);
        if (r >= 0)
                r = seccomp_load(ctx);
        seccomp_release(ctx);
        return r < 0 ? error_errno(err, r, "seccomp") : 0;
}
