/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * What a sandbox has on this host, in memory. The record (record.h) is its part that outlives us;
 * its state machine is that of record.h's enum.
 */

#include "rootd/net_counters.h"
#include "rootd/record.h"
#include "rootd/rootd.h"
#include "rootd/watch.h"

struct place;
struct removal;
struct revive;
struct egress;

struct placement {
        struct rootd *rootd;
        struct record rec;
        bool has_slot; /* rec.slot is ours */
        bool recorded; /* its folder below <run>/sandboxes may be there */
        int dir;       /* that folder; -EBADF while there is none */
        struct proc warden, vm, gateway;
        struct childlog *warden_log, *gateway_log; /* NULL: none could be made */
        struct place *place;     /* PLACING: the flow */
        struct removal *removal; /* REMOVING */
        struct revive *revive;   /* LIVE: a new warden on its way */
        struct egress *egress;   /* LIVE: what keeps the gateway alive */
        uint64_t revives_since;
        unsigned revives;
        bool committing; /* a variant is being made of its files */
        bool halted; /* its processes were ended on purpose, its files stay */
        unsigned imaging; /* images being made of it */
        struct net_counts packets; /* dropped ones that cspaced was told of */
        uint64_t packets_round;    /* in which they were last looked at */
        struct placement *next;
};

struct placement *placement_find(const struct rootd *r, const char *id);
/* Empty, in state PLACING, in the list. NULL when out of memory. */
struct placement *placement_new(struct rootd *r, const char *id);
/* Out of the list; NULL is fine. */
void placement_free(struct placement *p);
void placement_free_all(struct rootd *r);

/* For descriptor 2 of a warden or gateway about to be started; the caller closes it. -EBADF: it has no log. */
int placement_log_fd(struct placement *p, bool gateway);

/* Takes the pidfds; the record gets pids and start times. */
int placement_watch(struct placement *p, pid_t warden, int warden_pidfd, pid_t vm, int vm_pidfd,
                    struct error *err);
int placement_watch_warden(struct placement *p, pid_t warden, int pidfd, struct error *err);
int placement_watch_gateway(struct placement *p, pid_t gateway, int pidfd, struct error *err);
/* The same for what an earlier rootd started. Processes that are gone are no error. */
void placement_adopt(struct placement *p);

/*
 * Removes all that the placement has, in whatever state it is; then frees it and calls cb. With an
 * error it stays, REMOVING, for another try. A second call while one is under way joins it. cb is
 * never called from inside.
 */
typedef void (*removal_cb)(void *arg, const struct error *e);
void placement_remove(struct placement *p, removal_cb cb, void *arg);

/* Starts another warden, unless the VM is gone too or it was tried too often. */
void revive_warden(struct placement *p);
void revive_cancel(struct placement *p);

/* Gives up the flow of a PLACE (called by placement_remove() alone). */
void place_abort(struct placement *p);
/* As egress_close_copies(). */
void place_close_copies(const struct placement *p);

/* At start: adopts live placements, finishes or undoes the others, sweeps what is nobody's. */
int reconcile(struct rootd *r, struct error *err);
