/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * One cgroup ("leaf") per sandbox and per build, in whatever hierarchies the host has:
 *
 *   v2       limits and kill in the unified hierarchy
 *   v1       limits in the hierarchies of memory, pids, cpu and cpuacct; a unified one mounted
 *            beside them (hybrid) still gives a kill that no fork can outrun
 *   none     no limits; processes are found by their uid, which no two sandboxes share
 *
 * Leaves lie below a base of this instance: under the root of the v2 hierarchy, so that stopping or
 * restarting our own service does not reach them, and under our own cgroup in v1, so that a
 * limit set on us holds for them. Where the base is, is kept in <run>/rootd/cgroups: a daemon restarted
 * from another session finds what it has made before.
 */

#include <limits.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/error.h"

enum cgroup_kind { CGROUP_UNIFIED, CGROUP_MEMORY, CGROUP_PIDS, CGROUP_CPU, CGROUP_CPUACCT, CGROUP_KIND_MAX_ };
#define CGROUP_LEAF_MAX 15

/* Directories of our own cgroup; "" where the hierarchy is not there. For the unified one: its root. */
struct cgroup_where {
        char dir[CGROUP_KIND_MAX_][PATH_MAX];
        bool unified_only; /* no v1 controller at all */
};

struct cgroups {
        int base[CGROUP_KIND_MAX_]; /* -EBADF where absent */
        bool v2_limits;
        const char *version; /* "v1", "v2", "none" */
        char note[256];      /* what is missing and why; "" when all is there */
};

struct cgroup_limits {
        uint64_t memory_bytes; /* 0: none */
        uint32_t pids;         /* 0: none */
        uint32_t cpus;         /* share of the CPU under contention, in CPUs */
};

/* From the text of /proc/self/mountinfo and /proc/self/cgroup. */
void cgroup_locate(const char *mountinfo, const char *self, struct cgroup_where *ret);

/* Makes the bases. Never fails for want of cgroups: then version is "none". */
int cgroups_open(struct cgroups *cg, int run_fd, const char *name, struct error *err);
void cgroups_close(struct cgroups *cg);
/* Those that are empty, at the end of a program that leaves nothing running. */
void cgroups_remove_bases(int run_fd);

int cgroup_make(const struct cgroups *cg, const char *leaf, struct error *err); /* there already: fine */
int cgroup_limit(const struct cgroups *cg, const char *leaf, const struct cgroup_limits *l,
                 struct error *err);
/* For CLONE_INTO_CGROUP; -EBADF where there is no unified hierarchy. */
int cgroup_open_leaf(const struct cgroups *cg, const char *leaf);
/* Moves the calling process into the v1 hierarchies of leaf. */
int cgroup_enter_v1(const struct cgroups *cg, const char *leaf, struct error *err);

/* SIGKILL to all in it, now. */
void cgroup_kill(const struct cgroups *cg, const char *leaf);
bool cgroup_empty(const struct cgroups *cg, const char *leaf);
int cgroup_remove(const struct cgroups *cg, const char *leaf, struct error *err); /* missing: fine; -EBUSY */
int cgroup_cpu_us(const struct cgroups *cg, const char *leaf, uint64_t *ret);
/* Calls fn for each process of leaf (at most max of them). Returns their number, or -ENOENT without cgroups.
 */
int cgroup_each_pid(const struct cgroups *cg, const char *leaf, unsigned max,
                    void (*fn)(void *arg, pid_t pid), void *arg);
/* Calls fn for each leaf there is in any hierarchy (a name may come more than once). */
void cgroup_each_leaf(const struct cgroups *cg, void (*fn)(void *arg, const char *leaf), void *arg);
