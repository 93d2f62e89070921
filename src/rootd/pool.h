/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * Slots: all that a sandbox needs and that can be made before it has a name. A slot's number decides
 * its uids (instance.h) and its cgroup's name.
 *
 *   number taken -> cgroup, folder, sockets -> VM launcher (makes the network namespace)
 *                -> warden launcher (joins it) -> READY -> taken by a PLACE
 *
 * Nothing of a slot in the pool outlives rootd but its empty cgroup and its folder below
 * <run>/rootd/pool, which the next start removes: the launchers go when their socket closes, and the
 * namespace with its tap goes with them.
 */

#include "rootd/launch.h"
#include "rootd/net.h"
#include "rootd/rootd.h"

#define SLOT_NAME_MAX CGROUP_LEAF_MAX

struct slot {
        unsigned number;
        char name[SLOT_NAME_MAX + 1]; /* of its cgroup, and of its folder while in the pool: "s12" */
        uid_t warden_uid, vm_uid, gateway_uid;
        struct launcher vm, warden;
        int tap, netns, dir;
        int ctl, data, qmp, port; /* listening */
        int net[NET_SOCKETS];         /* of the gateway, in the namespace */
};

typedef void (*pool_cb)(void *arg, struct slot *slot /* owned by the callee; NULL on error */,
                        const struct error *e);
struct pool_wait;

int pool_new(struct rootd *r, struct pool **ret, struct error *err);
void pool_free(struct pool *p);
/* At the end of the program: discards all that is ready and runs the loop until it is gone. */
void pool_drain(struct pool *p);
unsigned pool_ready(const struct pool *p);

/* cb is called at once when a slot is ready (then *ret is NULL), else later. */
void pool_take(struct pool *p, pool_cb cb, void *arg, struct pool_wait **ret);
void pool_cancel(struct pool *p, struct pool_wait *w); /* no callback after this */

/* Closes what rootd holds of a slot; its number stays in use. NULL is fine. */
void slot_close(struct slot *s);
/* A number that a placement of an earlier run has; -EEXIST when doubled. */
int pool_reserve(struct pool *p, unsigned number);
/* The number may be used again: no process of its uids is alive. */
void pool_release(struct pool *p, unsigned number);
/* As egress_close_copies(). */
void pool_close_copies(const struct pool *p);
void slot_close_copies(const struct slot *s);
void slot_name(unsigned number, char out[SLOT_NAME_MAX + 1]);

/* The sockets of a sandbox in its folder; existing ones are replaced. */
int slot_socket(int dir, const char *name, int type, uid_t uid, gid_t gid, mode_t mode, int *ret,
                struct error *err);
