/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * One cgroup (v2) for each command: the only way to name "this command and all that came out of
 * it" when a descendant has left the session, the process group and its parent. Where there is no
 * cgroup v2 (the agent as a plain service), signals go to the processes whose session is the
 * command's or who descend from it.
 *
 * Making a cgroup is not free under emulation, so an empty one is used again; one in which
 * something still runs after its command ended is looked at again whenever another command ends.
 */

#include <stdbool.h>
#include <sys/types.h>

#include "base/error.h"

struct cgroup;
struct cgroups;

/* dir: an existing folder of a cgroup2 mount in which a subfolder may be made, or NULL. */
int cgroups_new(const char *dir, struct cgroups **ret, struct error *err);
void cgroups_free(struct cgroups *m);

struct cgroup *cgroup_get(struct cgroups *m); /* NULL where there are none */
void cgroup_put(struct cgroup *c);            /* NULL is fine */
int cgroup_fd(const struct cgroup *c);        /* for CLONE_INTO_CGROUP */
bool cgroup_populated(const struct cgroup *c);

/* Stops all commands and what came out of them before their next instruction, or lets them go on; those started
 * meanwhile begin stopped. A process that moved itself out of its cgroup is not reached. */
int cgroups_freeze(struct cgroups *m, bool frozen);

/* Sends sig to all processes of the tree of leader. c may be NULL. 0, or -ESRCH when none is left. */
int cgroup_signal_tree(struct cgroup *c, pid_t leader, int sig);
