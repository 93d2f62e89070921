/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * Which user ids and cgroup names are ours. More than one cspace-rootd can live on a host (each
 * with a run folder of its own), and no two live sandboxes may share a uid; so each daemon has
 * an instance number, 0 for the default run folder, kept in <run>/rootd/instance and held by a lock while
 * it runs.
 *
 *   slot s of instance i:   warden  UID_BASE + (i * SLOTS_MAX + s) * SLOT_UIDS,  VM one above, gateway two
 *   history h:              HISTORY_UID_BASE + i * HISTORY_UIDS + h, for as long as one cspace-history runs
 *   token t:                TOKEN_UID_BASE + i * TOKEN_UIDS + t, for as long as one cspace-token runs
 *   build range b:          BUILD_UID_BASE + b * 65536, shared by all instances, locked for a build
 *
 * Both lie above what systemd gives to containers and below 2^31. A group of the same number
 * belongs to each user.
 */

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/error.h"

#define UID_BASE 2000000000u
#define SLOTS_MAX 4096u
#define SLOT_UIDS 4u
#define INSTANCES_MAX 4096u
#define BUILD_UID_BASE 2080000000u
#define BUILD_UID_COUNT 65536u
#define BUILD_RANGES_MAX 1000u
#define HISTORY_UID_BASE 2145600000u
#define HISTORY_UIDS 4u
#define TOKEN_UID_BASE 2145620000u
#define TOKEN_UIDS 16u

struct instance {
        unsigned number;
        int locks;                       /* INSTANCE_LOCKS: one byte per number, then one per build range */
        bool building[BUILD_RANGES_MAX]; /* ours: a process meets no conflict with its own locks */
};
#define INSTANCE_LOCKS "/run/cspace.instances"

int instance_take(struct instance *i, int run_fd, const char *run_path, struct error *err);
void instance_drop(struct instance *i);

uid_t instance_warden_uid(const struct instance *i, unsigned slot);
uid_t instance_vm_uid(const struct instance *i, unsigned slot);
uid_t instance_gateway_uid(const struct instance *i, unsigned slot);
uid_t instance_history_uid(const struct instance *i, unsigned n);
uid_t instance_token_uid(const struct instance *i, unsigned n);

/* A range nobody uses. */
int build_range_take(struct instance *i, unsigned *ret_range, uid_t *ret_base, struct error *err);
void build_range_drop(struct instance *i, unsigned range);
