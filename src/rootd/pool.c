/* SPDX-License-Identifier: Apache-2.0 */
#include "rootd/pool.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/fault.h"
#include "base/fd.h"
#include "base/log.h"
#include "ipc/ipc.h"
#include "rootd/watch.h"

#define IDLE_MS 60    /* a refill waits for this long without a create */
#define RETRY_MS 1000 /* after a slot could not be made */
#define MAKING_MAX 2  /* slots under way at one time */
#define MAKE_TIMEOUT_MS 20000
#define DRAIN_MS 3000

enum making_state {
        MAKING_VM,     /* the VM launcher prepares the namespace */
        MAKING_WARDEN, /* the warden launcher joins it */
        READY,
        DISCARDED, /* launchers told to go; freed when both have */
};

/* A slot in the pool's hands. */
struct entry {
        struct slot slot;
        enum making_state state;
        struct pool *pool;
        struct watch *vm_watch, *warden_watch;
        struct proc vm_proc, warden_proc; /* DISCARDED: waited for */
        uint64_t started;
        struct entry *next;
};

struct pool_wait {
        pool_cb cb;
        void *arg;
        struct pool_wait *next;
};

struct pool {
        struct rootd *rootd;
        uint8_t used[SLOTS_MAX];
        unsigned next_number;
        unsigned target, making, ready;
        struct entry *entries;
        struct pool_wait *waits;
        uv_timer_t *timer;
};

static void refill(struct pool *p);
static void refill_later(struct pool *p, uint64_t ms);

void slot_name(unsigned number, char out[SLOT_NAME_MAX + 1]) {
        (void) snprintf(out, SLOT_NAME_MAX + 1, "s%u", number);
}

void slot_close(struct slot *s) {
        if (!s)
                return;
        launcher_done(&s->vm);
        launcher_done(&s->warden);
        int *fds[] = { &s->tap, &s->netns, &s->dir, &s->ctl, &s->data, &s->qmp, &s->port, &s->net[0], &s->net[1], &s->net[2] };
        for (size_t i = 0; i < ARRAY_SIZE(fds); i++)
                *fds[i] = fd_close(*fds[i]);
}

int pool_reserve(struct pool *p, unsigned number) {
        if (number >= SLOTS_MAX)
                return -ERANGE;
        if (p->used[number])
                return -EEXIST;
        p->used[number] = 1;
        return 0;
}

void pool_release(struct pool *p, unsigned number) {
        if (number < SLOTS_MAX)
                p->used[number] = 0;
}

void slot_close_copies(const struct slot *s) {
        for (size_t i = 0; s && i < NET_SOCKETS; i++)
                if (s->net[i] >= 0)
                        (void) close(s->net[i]);
}

void pool_close_copies(const struct pool *p) {
        for (const struct entry *e = p->entries; e; e = e->next)
                slot_close_copies(&e->slot);
}

/* Round the ring, so that a uid that was just given back is the last to be given out again. */
static int take_number(struct pool *p, unsigned *ret) {
        for (unsigned i = 0; i < SLOTS_MAX; i++) {
                unsigned n = (p->next_number + i) % SLOTS_MAX;
                if (!p->used[n]) {
                        p->used[n] = 1;
                        p->next_number = (n + 1) % SLOTS_MAX;
                        *ret = n;
                        return 0;
                }
        }
        return -EUSERS;
}

/* ---- giving a slot up ----------------------------------------------------------------------- */

static void drop_entry(struct entry *e) {
        struct pool *p = e->pool;
        for (struct entry **at = &p->entries; *at; at = &(*at)->next)
                if (*at == e) {
                        *at = e->next;
                        break;
                }
        e->vm_watch = watch_free(e->vm_watch);
        e->warden_watch = watch_free(e->warden_watch);
        proc_done(&e->vm_proc);
        proc_done(&e->warden_proc);
        slot_close(&e->slot);
        free(e);
}

static void on_discarded_exit(struct proc *proc) {
        struct entry *e = proc->owner;
        struct pool *p = e->pool;
        if ((e->vm_proc.pid && !e->vm_proc.gone) || (e->warden_proc.pid && !e->warden_proc.gone))
                return;
        struct error err = ERROR_INIT;
        if (fd_remove_tree_at(p->rootd->dirs.run_pool, e->slot.name, &err) < 0 ||
            cgroup_remove(&p->rootd->cgroups, e->slot.name, &err) < 0)
                log_warn("slot %s: %s", e->slot.name, err.msg);
        pool_release(p, e->slot.number);
        drop_entry(e);
}

static void watch_end(struct entry *e, struct launcher *l, struct proc *proc) {
        if (l->pid <= 0)
                return;
        int pidfd = fd_steal(&l->pidfd);
        if (proc_watch(proc, e->pool->rootd->loop, l->pid, pidfd, on_discarded_exit, e, NULL) == 0)
                proc_kill(proc);
}

static void discard(struct entry *e) {
        if (e->state == READY)
                e->pool->ready--;
        else if (e->state != DISCARDED)
                e->pool->making--;
        e->state = DISCARDED;
        e->vm_watch = watch_free(e->vm_watch);
        e->warden_watch = watch_free(e->warden_watch);
        watch_end(e, &e->slot.vm, &e->vm_proc);
        watch_end(e, &e->slot.warden, &e->warden_proc);
        if (!e->vm_proc.watch && !e->warden_proc.watch)
                on_discarded_exit(&(struct proc){ .owner = e });
}

/* ---- making one ----------------------------------------------------------------------------- */

int slot_socket(int dir, const char *name, int type, uid_t uid, gid_t gid, mode_t mode, int *ret,
                struct error *err) {
        struct stat st;
        _cleanup_fd_ int fd = -EBADF;
        /* Whoever listens there is a child of an earlier rootd that is just dying: the lock is ours. */
        if (fstatat(dir, name, &st, AT_SYMLINK_NOFOLLOW) == 0 && S_ISSOCK(st.st_mode))
                (void) unlinkat(dir, name, 0);
        int res = ipc_listen_at(dir, name, type, 0600, &fd, err);
        if (res < 0)
                return res;
        if (fchownat(dir, name, uid, gid, AT_SYMLINK_NOFOLLOW) < 0 || fchmodat(dir, name, mode, 0) < 0)
                return error_errno(err, errno, "cannot give \"%s\" to its user", name);
        *ret = fd_steal(&fd);
        return 0;
}

static int make_folder(struct entry *e, struct error *err) {
        struct rootd *r = e->pool->rootd;
        struct slot *s = &e->slot;
        int res = fd_remove_tree_at(r->dirs.run_pool, s->name, err);
        if (res < 0)
                return res;
        if (mkdirat(r->dirs.run_pool, s->name, 0711) < 0)
                return error_errno(err, errno, "cannot create folder \"%s\"", s->name);
        s->dir = fd_open_beneath(r->dirs.run_pool, s->name, O_RDONLY | O_DIRECTORY, 0, err);
        if (s->dir < 0)
                return s->dir;
        if (fchmod(s->dir, 0711) < 0)
                return error_errno(err, errno, "cannot set the mode of a folder");
        res = slot_socket(s->dir, "ctl.sock", SOCK_SEQPACKET, 0, r->opt.gid, 0660, &s->ctl, err);
        if (res == 0)
                res = slot_socket(s->dir, "data.sock", SOCK_STREAM, 0, r->opt.gid, 0660, &s->data, err);
        if (res == 0)
                res = slot_socket(s->dir, "qmp.sock", SOCK_STREAM, s->warden_uid, s->warden_uid, 0600,
                                  &s->qmp, err);
        if (res == 0)
                res = slot_socket(s->dir, "port.sock", SOCK_STREAM, s->warden_uid, s->warden_uid, 0600,
                                  &s->port, err);
        return res;
}

static void give(struct pool *p, struct entry *e) {
        struct pool_wait *w = p->waits;
        p->waits = w->next;
        p->ready--;
        e->vm_watch = watch_free(e->vm_watch);
        e->warden_watch = watch_free(e->warden_watch);
        struct slot *s = malloc(sizeof *s);
        if (!s) {
                struct error err = ERROR_INIT;
                (void) error_set(&err, -ENOMEM, "out of memory");
                p->ready++;
                discard(e);
                w->cb(w->arg, NULL, &err);
                free(w);
                return;
        }
        *s = e->slot;
        e->slot = (struct slot){ .vm = { .pidfd = -EBADF, .sock = -EBADF },
                                 .warden = { .pidfd = -EBADF, .sock = -EBADF },
                                 .tap = -EBADF,
                                 .netns = -EBADF,
                                 .dir = -EBADF,
                                 .ctl = -EBADF,
                                 .data = -EBADF,
                                 .qmp = -EBADF,
                                 .port = -EBADF,
                                 .net = { -EBADF, -EBADF, -EBADF } };
        drop_entry(e);
        w->cb(w->arg, s, NULL);
        free(w);
}

static void fail(struct entry *e, const struct error *err) {
        struct pool *p = e->pool;
        log_error("cannot prepare a sandbox slot: %s", err->msg);
        discard(e);
        /* Those who wait get the reason now rather than a second failure later. */
        struct pool_wait *w = p->waits;
        p->waits = NULL;
        while (w) {
                struct pool_wait *next = w->next;
                w->cb(w->arg, NULL, err);
                free(w);
                w = next;
        }
        refill_later(p, RETRY_MS);
}

static void on_vm(void *arg);
static void on_warden(void *arg);

static int start_warden(struct entry *e, struct error *err) {
        struct rootd *r = e->pool->rootd;
        const struct launch_setup setup = { .kind = LAUNCH_WARDEN,
                                            .cgroups = &r->cgroups,
                                            .leaf = e->slot.name,
                                            .views = &r->views,
                                            .netns = e->slot.netns,
                                            .dir = e->slot.dir };
        int res = launcher_start(&setup, &e->slot.warden, err);
        if (res == 0)
                res = watch_new(r->loop, e->slot.warden.sock, on_warden, e, &e->warden_watch, err);
        if (res == 0)
                e->state = MAKING_WARDEN;
        return res;
}

static void on_vm(void *arg) {
        struct entry *e = arg;
        struct error err = ERROR_INIT;
        int fds[LAUNCH_READY_FDS];
        switch (launcher_read(&e->slot.vm, fds, &err)) {
        case LAUNCH_NOTHING:
                return;
        case LAUNCH_READY:
                if (e->state != MAKING_VM || fds[0] < 0) {
                        (void) error_set(&err, -EPROTO, "a launcher spoke out of turn");
                        break;
                }
                e->slot.tap = fds[0];
                e->slot.netns = fds[1];
                memcpy(e->slot.net, fds + 2, sizeof e->slot.net);
                if (start_warden(e, &err) < 0)
                        break;
                return;
        case LAUNCH_RUNS:
                (void) error_set(&err, -ECHILD, "the VM's launcher died");
                break;
        case LAUNCH_ERROR:
                break;
        }
        fail(e, &err);
}

static void on_warden(void *arg) {
        struct entry *e = arg;
        struct pool *p = e->pool;
        struct error err = ERROR_INIT;
        int fds[LAUNCH_READY_FDS];
        switch (launcher_read(&e->slot.warden, fds, &err)) {
        case LAUNCH_NOTHING:
                return;
        case LAUNCH_READY:
                if (e->state != MAKING_WARDEN) {
                        (void) error_set(&err, -EPROTO, "a launcher spoke out of turn");
                        break;
                }
                e->state = READY;
                e->slot.netns = fd_close(e->slot.netns); /* the two launchers hold it now */
                p->making--;
                p->ready++;
                if (p->waits)
                        give(p, e);
                refill(p);
                return;
        case LAUNCH_RUNS:
                (void) error_set(&err, -ECHILD, "the warden's launcher died");
                break;
        case LAUNCH_ERROR:
                break;
        }
        fail(e, &err);
}

static int make_slot(struct pool *p, struct entry *e, struct error *err) {
        struct rootd *r = p->rootd;
        struct slot *s = &e->slot;
        int res = take_number(p, &s->number);
        if (res < 0)
                return error_set(err, res, "all %u slots of this host are in use", SLOTS_MAX);
        slot_name(s->number, s->name);
        s->warden_uid = instance_warden_uid(&r->instance, s->number);
        s->vm_uid = instance_vm_uid(&r->instance, s->number);
        s->gateway_uid = instance_gateway_uid(&r->instance, s->number);
        fault_point("pool:1");
        res = cgroup_make(&r->cgroups, s->name, err);
        fault_point("pool:2");
        if (res == 0)
                res = make_folder(e, err);
        fault_point("pool:3");
        if (res < 0)
                return res;
        const struct launch_setup setup = { .kind = LAUNCH_VM,
                                            .cgroups = &r->cgroups,
                                            .leaf = s->name,
                                            .views = &r->views,
                                            .netns = -EBADF,
                                            .dir = -EBADF };
        res = launcher_start(&setup, &s->vm, err);
        fault_point("pool:4");
        if (res == 0)
                res = watch_new(r->loop, s->vm.sock, on_vm, e, &e->vm_watch, err);
        return res;
}

static bool begin(struct pool *p) {
        struct entry *e = calloc(1, sizeof *e);
        if (!e)
                return false;
        struct slot *s = &e->slot;
        s->vm = s->warden = (struct launcher){ .pidfd = -EBADF, .sock = -EBADF };
        s->tap = s->netns = s->dir = s->ctl = s->data = s->qmp = s->port = -EBADF;
        s->net[0] = s->net[1] = s->net[2] = -EBADF;
        s->number = SLOTS_MAX;
        e->vm_proc = e->warden_proc = PROC_INIT;
        e->pool = p;
        e->state = MAKING_VM;
        e->started = uv_now(p->rootd->loop);
        e->next = p->entries;
        p->entries = e;
        p->making++;
        struct error err = ERROR_INIT;
        if (make_slot(p, e, &err) < 0) {
                fail(e, &err);
                return false;
        }
        return true;
}

/* ---- how many, and when --------------------------------------------------------------------- */

static unsigned waiting(const struct pool *p) {
        unsigned n = 0;
        for (const struct pool_wait *w = p->waits; w; w = w->next)
                n++;
        return n;
}

static void refill(struct pool *p) {
        while (p->making < MAKING_MAX && p->ready + p->making < p->target + waiting(p))
                if (!begin(p))
                        return;
}

static void on_timer(uv_timer_t *t) {
        struct pool *p = t->data;
        uint64_t now = uv_now(p->rootd->loop);
        for (struct entry *e = p->entries, *next; e; e = next) {
                next = e->next;
                if ((e->state == MAKING_VM || e->state == MAKING_WARDEN) &&
                    now - e->started > MAKE_TIMEOUT_MS) {
                        struct error err = ERROR_INIT;
                        (void) error_set(&err, -ETIMEDOUT, "preparing a slot took more than %d s",
                                         MAKE_TIMEOUT_MS / 1000);
                        fail(e, &err);
                        return;
                }
        }
        refill(p);
        if (p->making > 0)
                refill_later(p, MAKE_TIMEOUT_MS);
}

static void refill_later(struct pool *p, uint64_t ms) {
        (void) uv_timer_start(p->timer, on_timer, ms, 0);
}

void pool_take(struct pool *p, pool_cb cb, void *arg, struct pool_wait **ret) {
        struct pool_wait *w = calloc(1, sizeof *w);
        *ret = NULL;
        if (!w) {
                struct error err = ERROR_INIT;
                (void) error_set(&err, -ENOMEM, "out of memory");
                cb(arg, NULL, &err);
                return;
        }
        w->cb = cb;
        w->arg = arg;
        struct pool_wait **at = &p->waits;
        while (*at)
                at = &(*at)->next;
        *at = w;
        struct entry *e = p->entries;
        while (e && e->state != READY)
                e = e->next;
        if (e && p->waits == w) {
                give(p, e);
                /* A create is under way: the refill would take CPU from it, unless we run short. */
                refill_later(p, p->ready * 2 < p->target ? 0 : IDLE_MS);
                return;
        }
        *ret = w;
        refill_later(p, 0);
}

void pool_cancel(struct pool *p, struct pool_wait *w) {
        for (struct pool_wait **at = &p->waits; *at; at = &(*at)->next)
                if (*at == w) {
                        *at = w->next;
                        free(w);
                        return;
                }
}

unsigned pool_ready(const struct pool *p) {
        return p->ready;
}

int pool_new(struct rootd *r, struct pool **ret, struct error *err) {
        struct pool *p = calloc(1, sizeof *p);
        uv_timer_t *t = calloc(1, sizeof *t);
        if (!p || !t) {
                free(p);
                free(t);
                return error_set(err, -ENOMEM, "out of memory");
        }
        p->rootd = r;
        p->target = r->opt.conf.pool_namespaces;
        p->timer = t;
        (void) uv_timer_init(r->loop, t);
        t->data = p;
        refill_later(p, 0);
        *ret = p;
        return 0;
}

void pool_drain(struct pool *p) {
        uint64_t deadline = uv_now(p->rootd->loop) + DRAIN_MS;
        p->target = 0;
        while (p->waits)
                pool_cancel(p, p->waits);
        for (struct entry *e = p->entries, *next; e; e = next) {
                next = e->next;
                if (e->state != DISCARDED)
                        discard(e);
        }
        refill_later(p, DRAIN_MS); /* so that the loop turns at least then */
        while (p->entries && uv_now(p->rootd->loop) < deadline)
                (void) uv_run(p->rootd->loop, UV_RUN_ONCE);
}

static void on_timer_closed(uv_handle_t *h) {
        free(h);
}

void pool_free(struct pool *p) {
        if (!p)
                return;
        while (p->entries) {
                struct entry *e = p->entries;
                (void) fd_remove_tree_at(p->rootd->dirs.run_pool, e->slot.name, NULL);
                drop_entry(e);
        }
        while (p->waits)
                pool_cancel(p, p->waits);
        uv_close((uv_handle_t *) p->timer, on_timer_closed);
        free(p);
}
