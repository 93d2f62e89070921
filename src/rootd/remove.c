/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Removal of a placement, also half-made, also interrupted before:
 *
 *    1 record says removing        4 cgroup removed, uids free
 *    2 processes gone              5 sockets removed
 *    3 disk removed                6 record and folder removed
 *
 * Nothing here asks the guest, the VMM or the warden for anything.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/fault.h"
#include "base/fd.h"
#include "base/log.h"
#include "base/str.h"
#include "rootd/egress.h"
#include "rootd/packets.h"
#include "rootd/placement.h"
#include "rootd/pool.h"
#include "rootd/reap.h"
#include "rootd/server.h"

struct waiter {
        removal_cb cb;
        void *arg;
        struct waiter *next;
};

struct removal {
        struct waiter *waiters;
};

static void answer_all(struct waiter *w, const struct error *e) {
        while (w) {
                struct waiter *next = w->next;
                w->cb(w->arg, e);
                free(w);
                w = next;
        }
}

/* ---- undoing -------------------------------------------------------------------------------- */

static int remove_run_folder(struct placement *p, struct error *err) {
        struct rootd *r = p->rootd;
        static const char *const sockets[] = { "ctl.sock", "data.sock", "gw.sock", "qmp.sock", "port.sock" };
        char name[SLOT_NAME_MAX + 1];
        if (p->dir >= 0)
                for (size_t i = 0; i < ARRAY_SIZE(sockets); i++)
                        if (unlinkat(p->dir, sockets[i], 0) < 0 && errno != ENOENT)
                                return error_errno(err, errno, "cannot remove \"%s\"", sockets[i]);
        fault_point("remove:5");
        /* A place that failed before its second step. */
        slot_name(p->rec.slot, name);
        int res = p->has_slot ? fd_remove_tree_at(r->dirs.run_pool, name, err) : 0;
        if (res == 0 && p->recorded)
                res = fd_remove_tree_at(r->dirs.run_sandboxes, p->rec.id, err);
        fault_point("remove:6");
        return res;
}

static int undo(struct placement *p, struct error *err) {
        struct rootd *r = p->rootd;
        char leaf[SLOT_NAME_MAX + 1];
        int res = fd_remove_tree_at(r->dirs.sandboxes, p->rec.id, err);
        fault_point("remove:3");
        slot_name(p->rec.slot, leaf);
        if (res == 0 && p->has_slot)
                res = cgroup_remove(&r->cgroups, leaf, err);
        fault_point("remove:4");
        if (res == 0)
                res = remove_run_folder(p, err);
        if (res < 0)
                return error_wrap(err, "sandbox %s", p->rec.id);
        if (p->has_slot)
                pool_release(r->pool, p->rec.slot);
        return 0;
}

static void conclude(struct placement *p, const struct error *failed) {
        struct error e = ERROR_INIT;
        struct waiter *waiters = p->removal->waiters;
        if (failed)
                e = *failed;
        else
                (void) undo(p, &e);
        free(p->removal);
        p->removal = NULL;
        if (e.code < 0) {
                log_error("cannot remove: %s", e.msg);
                answer_all(waiters, &e);
                return;
        }
        placement_free(p);
        answer_all(waiters, NULL);
}

static void on_reaped(void *arg, const struct error *e) {
        fault_point("remove:2");
        conclude(arg, e);
}

static void target_of(const struct placement *p, struct reap_target *t) {
        *t = (struct reap_target){ .procs = { &p->warden, &p->vm, &p->gateway },
                                   .uids = { p->rec.warden_uid, p->rec.vm_uid, p->rec.gateway_uid } };
        slot_name(p->rec.slot, t->leaf);
}

/* The record may be below the pool still, or nowhere; then there is nothing to rewrite. */
static void mark(struct placement *p) {
        struct error e = ERROR_INIT;
        p->rec.state = RECORD_REMOVING;
        if (p->dir >= 0 && record_write(p->dir, &p->rec, &e) < 0)
                log_warn("sandbox %s: %s", p->rec.id, e.msg); /* the disk is full, and removing helps */
        fault_point("remove:1");
}

void placement_remove(struct placement *p, removal_cb cb, void *arg) {
        struct error e = ERROR_INIT;
        if (!p->removal) {
                p->removal = calloc(1, sizeof *p->removal);
                struct reap_target t;
                if (p->removal) {
                        packets_tell(p);
                        mark(p);
                        target_of(p, &t);
                        place_abort(p);
                        revive_cancel(p);
                        egress_cancel(p);
                        if (!p->has_slot)
                                t = (struct reap_target){ .leaf = "none" };
                        if (reap_start(p->rootd, &t, on_reaped, p, &e) < 0) {
                                free(p->removal);
                                p->removal = NULL;
                        }
                }
        }
        struct waiter *w = cb ? calloc(1, sizeof *w) : NULL;
        if (!p->removal || (cb && !w)) {
                (void) error_set(&e, -ENOMEM, "out of memory");
                log_error("sandbox %s is not removed: %s", p->rec.id, e.msg);
                free(w);
                if (cb)
                        cb(arg, &e);
                return;
        }
        if (w) {
                *w = (struct waiter){ cb, arg, p->removal->waiters };
                p->removal->waiters = w;
        }
}

/* ---- the request ---------------------------------------------------------------------------- */

struct request {
        struct rootd *rootd;
        struct ticket ticket;
};

static void on_removed(void *arg, const struct error *e) {
        struct request *q = arg;
        ticket_end(q->rootd, &q->ticket, e);
        free(q);
}

void remove_handle(struct rootd *r, const struct ticket *t, const struct ipc_remove *m) {
        struct error e = ERROR_INIT;
        if (!id_valid(m->id)) {
                (void) error_set(&e, -EINVAL, "\"%s\" is not a sandbox id", m->id);
                ticket_error(r, t, &e);
                return;
        }
        struct placement *p = placement_find(r, m->id);
        if (p && (p->committing || p->imaging)) {
                (void) error_set(&e, -EBUSY, "a snapshot or image of sandbox %s is being stored", m->id);
                ticket_error(r, t, &e);
                return;
        }
        if (!p) { /* never placed here, or the host was started again since: perhaps a disk is left */
                if (fd_remove_tree_at(r->dirs.sandboxes, m->id, &e) < 0)
                        ticket_error(r, t, &e);
                else
                        ticket_ok(r, t);
                return;
        }
        struct request *q = calloc(1, sizeof *q);
        if (!q) {
                (void) error_set(&e, -ENOMEM, "out of memory");
                ticket_error(r, t, &e);
                return;
        }
        *q = (struct request){ r, *t };
        placement_remove(p, on_removed, q);
}
