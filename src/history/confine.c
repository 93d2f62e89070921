/* SPDX-License-Identifier: Apache-2.0 */
#include "confine.h"

#include <errno.h>
#include <linux/fiemap.h>
#include <linux/fs.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "bounds.h"
#include "confine/filter.h"

#ifndef HISTORY_SANITIZED
/* glibc's qsort() asks once how much memory there is (sysinfo). Its fstat() is newfstatat() with an empty path, which a
 * filter cannot see: so that is done before. */
static const char *const allowed[] = {
        "pread64", "fadvise64", "write", "munmap", "mremap", "brk", "madvise", "futex", "exit", "exit_group",
        "sysinfo", "restart_syscall", "rt_sigreturn", "clock_gettime",
};

static int add_rules(scmp_filter_ctx ctx, const void *arg) {
        (void) arg;
        int r = filter_names(ctx, SCMP_ACT_ALLOW, allowed, ARRAY_SIZE(allowed));

        if (r >= 0)
                r = seccomp_rule_add(ctx, SCMP_ACT_ALLOW, SCMP_SYS(ioctl), 1, SCMP_A1(SCMP_CMP_EQ, FS_IOC_FIEMAP, 0));
        /* Memory that is not executable; of files, to be read alone. */
        if (r >= 0)
                r = seccomp_rule_add(ctx, SCMP_ACT_ALLOW, SCMP_SYS(mmap), 2, SCMP_A2(SCMP_CMP_MASKED_EQ, PROT_EXEC, 0),
                                     SCMP_A3(SCMP_CMP_MASKED_EQ, MAP_ANONYMOUS, MAP_ANONYMOUS));
        if (r >= 0)
                r = seccomp_rule_add(ctx, SCMP_ACT_ALLOW, SCMP_SYS(mmap), 2, SCMP_A2(SCMP_CMP_EQ, PROT_READ, 0),
                                     SCMP_A3(SCMP_CMP_EQ, MAP_PRIVATE | MAP_POPULATE, 0));
        if (r >= 0)
                r = seccomp_rule_add(ctx, SCMP_ACT_ALLOW, SCMP_SYS(mprotect), 1,
                                     SCMP_A2(SCMP_CMP_MASKED_EQ, PROT_EXEC, 0));
        return r;
}
#endif

static int set_limits(void) {
        const struct {
                int what;
                rlim_t soft, hard;
        } limits[] = {
                { RLIMIT_CORE, 0, 0 },
                { RLIMIT_CPU, HISTORY_CPU_S, HISTORY_CPU_S + 5 },
#ifndef HISTORY_SANITIZED /* a sanitizer's run time needs terabytes of addresses, and calls of its own */
                { RLIMIT_AS, HISTORY_MEMORY_BYTES, HISTORY_MEMORY_BYTES },
#endif
        };

        for (size_t i = 0; i < ARRAY_SIZE(limits); i++) {
                struct rlimit now, want = { limits[i].soft, limits[i].hard };
                if (getrlimit((__rlimit_resource_t) limits[i].what, &now) < 0)
                        return -errno;
                if (now.rlim_max < want.rlim_max) /* the parent was stricter */
                        want.rlim_max = now.rlim_max;
                if (want.rlim_cur > want.rlim_max)
                        want.rlim_cur = want.rlim_max;
                if (setrlimit((__rlimit_resource_t) limits[i].what, &want) < 0)
                        return -errno;
        }
        alarm(HISTORY_WALL_S);
        return 0;
}

int confine(struct error *err) {
        int r = set_limits();

        if (r < 0)
                return error_errno(err, r, "cannot set limits");
        r = confine_no_dumps(err);
#ifndef HISTORY_SANITIZED
        if (r >= 0)
                r = filter_install(SCMP_ACT_KILL_PROCESS, add_rules, NULL, err);
#endif
        return r;
}
