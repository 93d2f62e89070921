/* SPDX-License-Identifier: Apache-2.0 */

/*
 * PLACE. The files are opened first (a missing variant costs nothing), then a slot is taken, and
 * from the record on each step is one that a restart can undo:
 *
 *    1 record written into the slot's folder     6 limits set
 *    2 folder becomes <run>/sandboxes/<id>       7 order to the VM's launcher
 *    3 <data>/sandboxes/<id> made                8 order to the warden's launcher
 *    4 disk cloned                               9 both have become their programs
 *    5 files of "boot" made                     10 record says live, 11 answered
 *
 * A failure at any of them is a removal, and the error is answered when nothing is left.
 */
#include <errno.h>
#include <fcntl.h>
#include <linux/fs.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/fault.h"
#include "base/fd.h"
#include "base/log.h"
#include "base/str.h"
#include "rootd/disk.h"
#include "rootd/egress.h"
#include "rootd/order.h"
#include "rootd/placement.h"
#include "rootd/pool.h"
#include "rootd/server.h"
#include "rootd/source.h"

/* Host memory of a sandbox beyond the guest's own: QEMU with its heap and libraries, the warden,
 * kernel memory of both; under TCG also translated code (tb-size) and its tables. */
#define OVERHEAD_KVM_BYTES (160ull << 20)
#define OVERHEAD_TCG_BYTES (384ull << 20)
#define SANDBOX_PIDS_MAX 512
#define SLOT_TIMEOUT_MS 60000  /* waiting for the pool, behind others */
#define START_TIMEOUT_MS 20000 /* from the orders to both programs running */

struct place {
        struct placement *p;
        struct ticket ticket;
        struct source source;
        struct pool_wait *wait;
        struct slot *slot;
        struct watch *vm_watch, *warden_watch;
        bool vm_runs, warden_runs;
        bool grown; /* the disk is larger than what it was cloned from */
        uint64_t started_us;
        uv_timer_t *timer;
        struct error error;
};

/* ---- end of the flow ------------------------------------------------------------------------ */

static void on_timer_closed(uv_handle_t *h) {
        free(h);
}

static void place_free(struct place *f) {
        f->p->place = NULL;
        f->vm_watch = watch_free(f->vm_watch);
        f->warden_watch = watch_free(f->warden_watch);
        if (f->wait)
                pool_cancel(f->p->rootd->pool, f->wait);
        if (f->timer)
                uv_close((uv_handle_t *) f->timer, on_timer_closed);
        slot_close(f->slot);
        free(f->slot);
        source_close(&f->source);
        free(f);
}

struct failure {
        struct rootd *rootd;
        struct ticket ticket;
        struct error error;
};

static void on_undone(void *arg, const struct error *e) {
        struct failure *x = arg;
        if (e)
                log_error("what a failed place left cannot be removed: %s", e->msg);
        ticket_error(x->rootd, &x->ticket, &x->error);
        free(x);
}

static void fail(struct place *f) {
        struct placement *p = f->p;
        struct failure *x = calloc(1, sizeof *x);
        if (!x) {
                ticket_error(p->rootd, &f->ticket, &f->error);
                place_free(f);
                placement_remove(p, NULL, NULL);
                return;
        }
        *x = (struct failure){ p->rootd, f->ticket, f->error };
        place_free(f);
        placement_remove(p, on_undone, x);
}

void place_close_copies(const struct placement *p) {
        if (p->place)
                slot_close_copies(p->place->slot);
}

void place_abort(struct placement *p) {
        struct place *f = p->place;
        struct error e = ERROR_INIT;
        if (!f)
                return;
        (void) error_set(&e, -ECANCELED, "sandbox %s was removed while it was being placed", p->rec.id);
        ticket_error(p->rootd, &f->ticket, &e);
        place_free(f);
}

static void finish(struct place *f) {
        struct placement *p = f->p;
        fault_point("place:9");
        p->rec.state = RECORD_LIVE;
        if (record_write(p->dir, &p->rec, &f->error) < 0) {
                p->rec.state = RECORD_PLACING;
                fail(f);
                return;
        }
        fault_point("place:10");
        struct ipc_placed m = { .warden_pid = p->rec.warden_pid,
                                .warden_uid = p->rec.warden_uid,
                                .vm_uid = p->rec.vm_uid,
                                .place_us = clock_mono_us() - f->started_us,
                                .thawed = f->source.thaw };
        uint8_t body[64];
        size_t n;
        if (ipc_placed_encode(&m, body, sizeof body, &n) == 0)
                ticket_send(p->rootd, &f->ticket, body, n);
        fault_point("place:11");
        log_debug("sandbox %s placed in %llu us", p->rec.id, (unsigned long long) m.place_us);
        int net[NET_SOCKETS];
        for (size_t i = 0; i < NET_SOCKETS; i++)
                net[i] = fd_steal(&f->slot->net[i]);
        place_free(f);
        egress_start(p, net);
        /* One that died in between: its exit was not told while the state was PLACING. */
        if (p->vm.gone)
                server_exited(p->rootd, p->rec.id, "vm");
        if (p->warden.gone) {
                server_exited(p->rootd, p->rec.id, "warden");
                revive_warden(p);
        }
}

/* ---- orders to the launchers ---------------------------------------------------------------- */

static bool program_runs(struct place *f, struct launcher *l, struct watch **watch, const char *what) {
        int fds[LAUNCH_READY_FDS];
        struct error e = ERROR_INIT;
        enum launch_event event = launcher_read(l, fds, &e);
        if (event == LAUNCH_RUNS) {
                *watch = watch_free(*watch);
                return true;
        }
        if (event != LAUNCH_NOTHING && f->error.code == 0)
                (void) error_set(&f->error, e.code ? e.code : -EPROTO, "%s: %s", what,
                                 e.code ? e.msg : "unexpected message");
        return false;
}

static void on_launcher(void *arg) {
        struct place *f = arg;
        if (!f->vm_runs)
                f->vm_runs = program_runs(f, &f->slot->vm, &f->vm_watch, "VM");
        if (!f->warden_runs)
                f->warden_runs = program_runs(f, &f->slot->warden, &f->warden_watch, "warden");
        if (f->error.code < 0)
                fail(f);
        else if (f->vm_runs && f->warden_runs)
                finish(f);
}

static void on_timeout(uv_timer_t *t) {
        struct place *f = t->data;
        (void) error_set(&f->error, -ETIMEDOUT, "%s within %d s",
                         f->slot ? "warden and VM did not start" : "no namespace became ready",
                         (f->slot ? START_TIMEOUT_MS : SLOT_TIMEOUT_MS) / 1000);
        fail(f);
}

static int tell_vm(struct place *f, int stub, struct error *err) {
        struct launch_order o;
        int fds[LAUNCH_FDS_MAX];
        int r = order_vm(f->p->rootd, &f->p->rec, &o, err);
        if (r < 0)
                return r;
        order_fd(&o, fds, WARDEN_FD_STUB, stub);
        return launcher_order(&f->slot->vm, &o, fds, err);
}

static int tell_warden(struct place *f, int stub, const int boot_files[2], struct error *err) {
        struct launch_order o;
        int fds[LAUNCH_FDS_MAX];
        int r = order_warden(f->p->rootd, &f->p->rec, false, f->grown, f->source.thaw, &o, err);
        if (r < 0)
                return r;
        bool boot = boot_files[0] >= 0;
        order_fd(&o, fds, WARDEN_FD_CTL, f->slot->ctl);
        order_fd(&o, fds, WARDEN_FD_DATA, f->slot->data);
        order_fd(&o, fds, WARDEN_FD_STUB, stub);
        order_fd(&o, fds, WARDEN_FD_TAP, f->slot->tap);
        order_fd(&o, fds, WARDEN_FD_DISK, f->source.disk); /* by now the clone's */
        order_fd(&o, fds, WARDEN_FD_MEM, boot ? boot_files[0] : f->source.mem);
        order_fd(&o, fds, WARDEN_FD_STATE, boot ? boot_files[1] : f->source.state);
        order_fd(&o, fds, WARDEN_FD_KERNEL, f->source.kernel);
        order_fd(&o, fds, WARDEN_FD_INITRD, f->source.initrd);
        order_fd(&o, fds, WARDEN_FD_BASE, f->source.base);
        order_fd(&o, fds, WARDEN_FD_DELTA, f->source.delta);
        order_fd(&o, fds, WARDEN_FD_QMP, f->slot->qmp);
        order_fd(&o, fds, WARDEN_FD_PORT, f->slot->port);
        _cleanup_fd_ int log = placement_log_fd(f->p, false);
        order_fd(&o, fds, STDERR_FILENO, log);
        return launcher_order(&f->slot->warden, &o, fds, err);
}

/* ---- the steps ------------------------------------------------------------------------------ */

static int take_folder(struct place *f, struct error *err) {
        struct placement *p = f->p;
        struct rootd *r = p->rootd;
        p->rec.slot = f->slot->number;
        p->rec.warden_uid = f->slot->warden_uid;
        p->rec.vm_uid = f->slot->vm_uid;
        p->rec.gateway_uid = f->slot->gateway_uid;
        p->has_slot = true;
        int res = placement_watch(p, f->slot->warden.pid, fd_steal(&f->slot->warden.pidfd), f->slot->vm.pid,
                                  fd_steal(&f->slot->vm.pidfd), err);
        if (res == 0)
                res = record_write(f->slot->dir, &p->rec, err);
        fault_point("place:1");
        if (res < 0)
                return res;
        if (renameat2(r->dirs.run_pool, f->slot->name, r->dirs.run_sandboxes, p->rec.id, RENAME_NOREPLACE) <
            0)
                return error_errno(err, errno, "cannot make the sandbox's run folder");
        p->recorded = true;
        p->dir = fd_steal(&f->slot->dir);
        fault_point("place:2");
        return 0;
}

/* What a VM maps privately whose memory begins with nothing in it. Read-only for it, like a template's. */
static int empty_memory(int dir, uint32_t memory_mb, int *ret, struct error *err) {
        _cleanup_fd_ int made = -EBADF;
        int r = disk_create(dir, "mem", (uint64_t) memory_mb << 20, &made, err);
        if (r < 0)
                return r;
        r = fd_open_beneath(dir, "mem", O_RDONLY, 0, err);
        if (r < 0)
                return r;
        *ret = r;
        return 0;
}

static int make_files(struct place *f, int boot_files[2], struct error *err) {
        struct placement *p = f->p;
        struct rootd *r = p->rootd;
        if (mkdirat(r->dirs.sandboxes, p->rec.id, 0700) < 0)
                return error_errno(err, errno, "cannot make the sandbox's data folder");
        fault_point("place:3");
        _cleanup_fd_ int dir = fd_open_beneath(r->dirs.sandboxes, p->rec.id, O_RDONLY | O_DIRECTORY, 0, err);
        if (dir < 0)
                return dir;
        int disk = -EBADF;
        struct stat st;
        uint64_t source_bytes = fstat(f->source.disk, &st) == 0 ? (uint64_t) st.st_size : 0;
        int res = disk_clone(f->source.disk, dir, "disk.img", p->rec.disk_bytes, p->rec.vm_uid, &disk,
                             &p->rec.disk_bytes, err);
        fault_point("place:4");
        if (res < 0)
                return res;
        f->grown = p->rec.disk_bytes > source_bytes;
        fd_closep(&f->source.disk);
        f->source.disk = disk;
        if (str_eq(p->rec.mode, "boot")) {
                res = disk_create(dir, "mem", (uint64_t) p->rec.memory_mb << 20, &boot_files[0], err);
                if (res == 0)
                        res = disk_create(dir, "state", 0, &boot_files[1], err);
        } else if (res == 0 && str_eq(p->rec.mode, "start")) {
                res = empty_memory(dir, p->rec.memory_mb, &boot_files[0], err);
        }
        fault_point("place:5");
        return res;
}

static int set_limits(struct place *f, struct error *err) {
        const struct record *rec = &f->p->rec;
        const struct cgroup_limits l = {
                .memory_bytes = ((uint64_t) rec->memory_mb << 20) +
                                (str_eq(rec->engine, "qemu-kvm") ? OVERHEAD_KVM_BYTES : OVERHEAD_TCG_BYTES),
                .pids = SANDBOX_PIDS_MAX,
                .cpus = rec->cpus,
        };
        int r = cgroup_limit(&f->p->rootd->cgroups, f->slot->name, &l, err);
        fault_point("place:6");
        return r;
}

static int start_programs(struct place *f, const int boot_files[2], struct error *err) {
        struct rootd *r = f->p->rootd;
        int sv[2];
        if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, sv) < 0)
                return error_errno(err, errno, "cannot make a socket pair");
        _cleanup_fd_ int warden_end = sv[0], stub_end = sv[1];
        int res = tell_vm(f, stub_end, err);
        fault_point("place:7");
        if (res == 0)
                res = tell_warden(f, warden_end, boot_files, err);
        fault_point("place:8");
        if (res == 0)
                res = watch_new(r->loop, f->slot->vm.sock, on_launcher, f, &f->vm_watch, err);
        if (res == 0)
                res = watch_new(r->loop, f->slot->warden.sock, on_launcher, f, &f->warden_watch, err);
        return res;
}

static void on_slot(void *arg, struct slot *slot, const struct error *e) {
        struct place *f = arg;
        f->wait = NULL;
        f->slot = slot;
        if (!slot) {
                f->error = *e;
                fail(f);
                return;
        }
        (void) uv_timer_start(f->timer, on_timeout, START_TIMEOUT_MS, 0);
        int boot_files[2] = { -EBADF, -EBADF };
        int r = take_folder(f, &f->error);
        if (r == 0)
                r = make_files(f, boot_files, &f->error);
        if (r == 0)
                r = set_limits(f, &f->error);
        if (r == 0)
                r = start_programs(f, boot_files, &f->error);
        boot_files[0] = fd_close(boot_files[0]);
        boot_files[1] = fd_close(boot_files[1]);
        if (r < 0)
                fail(f);
        else
                f->error = ERROR_INIT; /* what a step found and got over is no failure later */
}

/* ---- the request ---------------------------------------------------------------------------- */

static int check(const struct rootd *r, const struct ipc_place *m, struct error *err) {
        if (!id_valid(m->id))
                return error_set(err, -EINVAL, "\"%s\" is not a sandbox id", m->id);
        if (!digest_valid(m->digest))
                return error_set(err, -EINVAL, "\"%s\" is not a template digest", m->digest);
        if (!str_eq(m->mode, "restore") && !str_eq(m->mode, "boot") && !str_eq(m->mode, "start"))
                return error_set(err, -EINVAL, "\"%s\" is none of \"restore\", \"boot\", \"start\"", m->mode);
        if (m->image[0] ? str_eq(m->mode, "boot") || !id_valid(m->image) : str_eq(m->mode, "start"))
                return error_set(err, -EINVAL, "\"%s\" does not go with image \"%s\"", m->mode, m->image);
        if (!engine_valid(m->engine))
                return error_set(err, -EINVAL, "\"%s\" is not an engine", m->engine);
        if (m->memory_mb < LIMIT_MEMORY_MIN_MB)
                return error_set(err, -EINVAL, "memory of %u MiB is below the limit of %d", m->memory_mb,
                                 LIMIT_MEMORY_MIN_MB);
        if (m->cpus < 1)
                return error_set(err, -EINVAL, "a sandbox has at least one CPU");
        if (placement_find(r, m->id))
                return error_set(err, -EEXIST, "sandbox %s is placed already", m->id);
        if (r->n_placements >= r->opt.conf.max_sandboxes)
                return error_set(err, -EDQUOT, "this host has its limit of %u sandboxes",
                                 r->opt.conf.max_sandboxes);
        return 0;
}

static int begin(struct rootd *r, const struct ticket *t, const struct ipc_place *m, struct place **ret,
                 struct error *err) {
        struct source source;
        int res = check(r, m, err);
        if (res == 0)
                res = source_open(r, m, &source, err);
        if (res < 0)
                return res;
        struct place *f = calloc(1, sizeof *f);
        uv_timer_t *timer = calloc(1, sizeof *timer);
        struct placement *p = f && timer ? placement_new(r, m->id) : NULL;
        if (!p) {
                free(f);
                free(timer);
                source_close(&source);
                return error_set(err, -ENOMEM, "out of memory");
        }
        (void) str_copy(p->rec.mode, sizeof p->rec.mode, m->mode);
        (void) str_copy(p->rec.digest, sizeof p->rec.digest, m->digest);
        (void) str_copy(p->rec.engine, sizeof p->rec.engine, m->engine);
        p->rec.memory_mb = m->memory_mb;
        p->rec.cpus = m->cpus;
        p->rec.disk_bytes = m->disk_bytes;
        *f = (struct place){
                .p = p, .ticket = *t, .source = source, .timer = timer, .started_us = t->received_us
        };
        p->place = f;
        (void) uv_timer_init(r->loop, timer);
        timer->data = f;
        (void) uv_timer_start(timer, on_timeout, SLOT_TIMEOUT_MS, 0);
        *ret = f;
        return 0;
}

void place_handle(struct rootd *r, const struct ticket *t, const struct ipc_place *m) {
        struct error e = ERROR_INIT;
        struct place *f = NULL;
        if (begin(r, t, m, &f, &e) < 0) {
                ticket_error(r, t, &e);
                return;
        }
        struct pool_wait *wait;
        pool_take(r->pool, on_slot, f, &wait);
        if (wait) /* else f was called, and may be gone */
                f->wait = wait;
}
