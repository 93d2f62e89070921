/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* Starting a builder: the two children it takes, and what they do. */

#include "rootd/rootd.h"

#define BUILD_ARGS_MAX 24

struct build_start {
        const char *dir, *cache; /* absolute; the only places it may write to */
        const char *leaf;        /* cgroup */
        uid_t base;              /* first of BUILD_UID_COUNT ids */
        int progress, archive;   /* archive: -EBADF without */
        char *const *argv;       /* the first is the path to execute */
};

/* Gives the builder's process, a child of ours and PID 1 of its namespaces. */
int build_child_start(struct rootd *r, const struct build_start *s, pid_t *ret_pid, int *ret_pidfd,
                      struct error *err);
