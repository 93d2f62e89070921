/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * Ends everything in a cgroup and waits until it is really gone. Kills again at each turn: without
 * cgroup.kill a process may fork away from under the first one. Bounded; a process that does not
 * die (in uninterruptible sleep) gives -ETIMEDOUT, and the caller keeps its books.
 */

#include "rootd/rootd.h"
#include "rootd/watch.h"

#define REAP_TIMEOUT_MS 10000
#define REAP_PROCS_MAX 3
#define REAP_UIDS_MAX 3

struct reap_target {
        char leaf[CGROUP_LEAF_MAX + 1];
        const struct proc *procs[REAP_PROCS_MAX]; /* NULL: none; must stay until done */
        uid_t uids[REAP_UIDS_MAX];                /* 0: none; used where there are no cgroups */
};

/* e is NULL when all are gone. Never called from inside reap_start(). */
typedef void (*reap_cb)(void *arg, const struct error *e);
int reap_start(struct rootd *r, const struct reap_target *t, reap_cb cb, void *arg, struct error *err);

/* A process has ended: those who wait look at once rather than at their next turn. */
void reap_poke(struct rootd *r);

/* The same for the start of the program, where nothing else is to be done: waits. */
int reap_wait(const struct rootd *r, const struct reap_target *t, struct error *err);
