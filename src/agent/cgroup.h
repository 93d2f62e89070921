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
 *
 * Where all commands together have a limit of processes (boot.c sets it), each gets at its start a share of
 * what is free then: one that takes all it can, a fork bomb, leaves room for the next, and so on.
 */

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/error.h"

#define CGROUP_PIDS_DIVISOR 2 /* a command may have one part in so many of the processes that are free, */
#define CGROUP_PIDS_STEPS 16  /* rounded to steps of the total, so that the usual start finds its limit set; */
#define CGROUP_PIDS_MIN 64    /* but never fewer than this */

struct cgroup;
struct cgroups;

/* How many processes a command may have that starts while used of total are there. */
uint64_t cgroup_pids_share(uint64_t total, uint64_t used);

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
