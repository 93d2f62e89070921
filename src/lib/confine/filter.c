/* SPDX-License-Identifier: Apache-2.0 */
#include "confine/filter.h"

#include <errno.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>

int filter_names(scmp_filter_ctx ctx, uint32_t action, const char *const *names, size_t n) {
        for (size_t i = 0; i < n; i++) {
                int nr = seccomp_syscall_resolve_name(names[i]);
                int r = nr == __NR_SCMP_ERROR || nr < 0 ? 0 : seccomp_rule_add(ctx, action, nr, 0);
                if (r < 0)
                        return r;
        }
        return 0;
}

int filter_allow_data_memory(scmp_filter_ctx ctx) {
        const struct scmp_arg_cmp data = SCMP_A2(SCMP_CMP_MASKED_EQ, PROT_EXEC, 0);
        int r = seccomp_rule_add(ctx, SCMP_ACT_ALLOW, SCMP_SYS(mmap), 1, data);
        return r < 0 ? r : seccomp_rule_add(ctx, SCMP_ACT_ALLOW, SCMP_SYS(mprotect), 1, data);
}

int filter_install(uint32_t otherwise, filter_rules add, const void *arg, struct error *err) {
        if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) < 0)
                return error_errno(err, errno, "cannot give up privileges");
        scmp_filter_ctx ctx = seccomp_init(otherwise);
        if (!ctx)
                return error_set(err, -ENOMEM, "seccomp: out of memory");
        int r = add(ctx, arg);
        if (r >= 0)
                r = seccomp_load(ctx);
        seccomp_release(ctx);
        return r < 0 ? error_errno(err, r, "seccomp") : 0;
}

int confine_no_dumps(struct error *err) {
        const struct rlimit no_core = { 0, 0 };
        if (prctl(PR_SET_DUMPABLE, 0, 0, 0, 0) < 0 || setrlimit(RLIMIT_CORE, &no_core) < 0)
                return error_errno(err, errno, "cannot give up privileges");
        return 0;
}
