/* SPDX-License-Identifier: Apache-2.0 */

/*
 * The start of the program: what an earlier one left is adopted, finished or swept away, so that
 * afterwards the books and the host say the same.
 *
 *   <run>/sandboxes/<id> with a record   live: adopted. Else: its processes killed, its disk,
 *                                        cgroup and folder removed
 *   ... without a record                 the folder alone is left: removed
 *   <run>/rootd/pool/s<n>                a slot nobody took: removed
 *   cgroups s<n>, b<n>, h<n>, t<n> of none of these  killed and removed
 *
 * Disks of sandboxes without a record stay (the host was started again): LIST names them, and
 * cspaced decides.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/fault.h"
#include "base/fd.h"
#include "base/log.h"
#include "base/str.h"
#include "rootd/placement.h"
#include "rootd/pool.h"
#include "rootd/reap.h"

static void each_entry(int dirfd, void (*fn)(struct rootd *r, const char *name), struct rootd *r) {
        int fd = openat(dirfd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        DIR *d = fd >= 0 ? fdopendir(fd) : NULL;
        if (!d) {
                (void) fd_close(fd);
                return;
        }
        for (const struct dirent *e; (e = readdir(d));)
                if (e->d_name[0] != '.')
                        fn(r, e->d_name);
        (void) closedir(d);
}

/* A process of a placement that is being undone: killed even where no cgroup would tell of it. */
static void take_proc(struct rootd *r, struct proc *p, uint32_t pid, uint64_t start, uid_t uid) {
        if (pid)
                (void) proc_adopt(p, r->loop, (pid_t) pid, start, uid, NULL, NULL, NULL);
}

static int undo(struct rootd *r, const struct record *rec, struct error *err) {
        struct proc warden = PROC_INIT, vm = PROC_INIT, gateway = PROC_INIT;
        struct reap_target t = { .uids = { rec->warden_uid, rec->vm_uid, rec->gateway_uid } };
        slot_name(rec->slot, t.leaf);
        take_proc(r, &warden, rec->warden_pid, rec->warden_start, rec->warden_uid);
        take_proc(r, &vm, rec->vm_pid, rec->vm_start, rec->vm_uid);
        take_proc(r, &gateway, rec->gateway_pid, rec->gateway_start, rec->gateway_uid);
        proc_kill(&warden);
        proc_kill(&vm);
        proc_kill(&gateway);
        proc_done(&warden);
        proc_done(&vm);
        proc_done(&gateway);
        int res = reap_wait(r, &t, err);
        if (res == 0)
                res = fd_remove_tree_at(r->dirs.sandboxes, rec->id, err);
        if (res == 0)
                res = cgroup_remove(&r->cgroups, t.leaf, err);
        if (res == 0)
                res = fd_remove_tree_at(r->dirs.run_sandboxes, rec->id, err);
        return res;
}

static void adopt(struct rootd *r, const struct record *rec, int dir) {
        struct placement *p = placement_new(r, rec->id);
        if (!p) {
                log_error("sandbox %s is not adopted: out of memory", rec->id);
                (void) fd_close(dir);
                return;
        }
        p->rec = *rec;
        p->dir = dir;
        p->has_slot = p->recorded = true;
        if (pool_reserve(r->pool, rec->slot) < 0)
                log_error("sandbox %s: slot %u is taken twice", rec->id, rec->slot);
        placement_adopt(p);
        log_info("sandbox %s adopted", rec->id);
}

static void one_folder(struct rootd *r, const char *id) {
        struct error e = ERROR_INIT;
        struct record rec;
        if (!id_valid(id)) {
                log_warn("folder \"%s\" of no sandbox is left alone", id);
                return;
        }
        int dir = fd_open_beneath(r->dirs.run_sandboxes, id, O_RDONLY | O_DIRECTORY, 0, &e);
        int res = dir < 0 ? dir : record_read(dir, &rec, &e);
        if (res == 0 && (!str_eq(rec.id, id) || rec.slot >= SLOTS_MAX ||
                         rec.warden_uid != instance_warden_uid(&r->instance, rec.slot) ||
                         rec.vm_uid != instance_vm_uid(&r->instance, rec.slot) ||
                         rec.gateway_uid != instance_gateway_uid(&r->instance, rec.slot)))
                res = error_set(&e, -EBADMSG, "the record is of another sandbox or instance");
        if (res == 0 && rec.state == RECORD_LIVE) {
                adopt(r, &rec, dir);
                return;
        }
        (void) fd_close(dir);
        if (res == 0) {
                log_info("sandbox %s was being %s: undone", id,
                         rec.state == RECORD_PLACING ? "placed" : "removed");
                res = undo(r, &rec, &e);
        } else if (res == -ENOENT) {
                res = fd_remove_tree_at(r->dirs.run_sandboxes, id, &e);
        }
        if (res < 0)
                log_error("sandbox %s: %s", id, e.msg);
}

static void one_pool_folder(struct rootd *r, const char *name) {
        struct error e = ERROR_INIT;
        if (fd_remove_tree_at(r->dirs.run_pool, name, &e) < 0)
                log_error("pool folder \"%s\": %s", name, e.msg);
}

static void one_leaf(void *arg, const char *leaf) {
        struct rootd *r = arg;
        struct error e = ERROR_INIT;
        uint64_t slot;
        struct reap_target t = {};
        if (leaf[0] == 's' && str_to_u64(leaf + 1, SLOTS_MAX - 1, &slot) == 0)
                for (const struct placement *p = r->placements; p; p = p->next)
                        if (p->has_slot && p->rec.slot == slot)
                                return;
        if (leaf[0] != 's' && leaf[0] != 'b' && leaf[0] != 'h' && leaf[0] != 't')
                return;
        (void) str_copy(t.leaf, sizeof t.leaf, leaf);
        if (reap_wait(r, &t, &e) < 0 || cgroup_remove(&r->cgroups, leaf, &e) < 0)
                log_error("cgroup \"%s\": %s", leaf, e.msg);
}

int reconcile(struct rootd *r, struct error *err) {
        (void) err;
        each_entry(r->dirs.run_sandboxes, one_folder, r);
        fault_point("reconcile:1");
        each_entry(r->dirs.run_pool, one_pool_folder, r);
        fault_point("reconcile:2");
        cgroup_each_leaf(&r->cgroups, one_leaf, r);
        return 0;
}
