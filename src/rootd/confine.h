/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * What a child of rootd gives up before it runs a program. All by raw system calls: glibc's
 * setresuid() speaks to the other threads that its copied books say there are, and the child was
 * made by clone3() without glibc's knowledge.
 */

#include <stdint.h>
#include <sys/types.h>

#include "base/error.h"

struct confine {
        uid_t uid;
        gid_t gid;           /* the only one; 0: of the same number as uid */
        uint64_t files;      /* RLIMIT_NOFILE */
        uint64_t processes;  /* RLIMIT_NPROC of this uid */
        uint64_t file_bytes; /* RLIMIT_FSIZE; 0: leave */
        int oom_score_adj;
};

/* Signals to their defaults, none blocked, a session of its own, the usual priority. */
void confine_signals(void);
/* How early the kernel's out-of-memory killer takes this process; ours is not to be inherited. */
int confine_oom(int adj, struct error *err);
/* Closes every descriptor above 2 but these. */
void confine_descriptors(const int *keep, size_t n);
/* Limits, then identity, then capabilities: after it nothing can be won back. */
int confine_self(const struct confine *c, struct error *err);

/* As fork(), with clone3's flags (CLONE_NEW*), into a v2 cgroup when cgroup_fd is not negative.
 * Gives 0 in the child and the pid (and *ret_pidfd) in the parent. */
pid_t confine_clone(uint64_t flags, int cgroup_fd, int *ret_pidfd);
