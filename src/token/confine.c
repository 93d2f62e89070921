/* SPDX-License-Identifier: Apache-2.0 */
#include "confine.h"

#include <errno.h>
#include <sys/mman.h>
#include <sys/socket.h>

#include "base/cleanup.h"
#include "confine/filter.h"

static const char *const refused[] = {
        "open", "openat", "openat2", "creat", "execve", "execveat", "fork", "vfork", "ptrace",
        "process_vm_readv", "process_vm_writev", "kill", "tkill", "unlink", "unlinkat", "rename", "renameat",
        "renameat2", "link", "linkat", "symlink", "symlinkat", "mkdir", "mkdirat", "mknod", "mknodat",
        "chmod", "fchmodat", "mount", "unshare", "setns", "bpf", "perf_event_open", "userfaultfd",
        "io_uring_setup", "keyctl", "add_key", "request_key", "bind", "listen", "sendmmsg", "memfd_create",
        "personality", "open_by_handle_at",
};

static int add_rules(scmp_filter_ctx ctx, const void *arg) {
        (void) arg;
        int r = filter_names(ctx, SCMP_ACT_ERRNO(EPERM), refused, ARRAY_SIZE(refused));
        if (r >= 0) /* no addresses but IPv4's */
                r = seccomp_rule_add(ctx, SCMP_ACT_ERRNO(EPERM), SCMP_SYS(socket), 1, SCMP_A0(SCMP_CMP_NE, AF_INET, 0));
        if (r >= 0)
                r = seccomp_rule_add(ctx, SCMP_ACT_ERRNO(EPERM), SCMP_SYS(mmap), 1, SCMP_A2(SCMP_CMP_MASKED_EQ, PROT_EXEC, PROT_EXEC));
        return r < 0 ? r : seccomp_rule_add(ctx, SCMP_ACT_ERRNO(EPERM), SCMP_SYS(mprotect), 1,
                                            SCMP_A2(SCMP_CMP_MASKED_EQ, PROT_EXEC, PROT_EXEC));
}

int confine(struct error *err) {
        return filter_install(SCMP_ACT_ALLOW, add_rules, NULL, err);
}
