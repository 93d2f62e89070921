/* SPDX-License-Identifier: Apache-2.0 */
#include "rootd/placement.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/fd.h"
#include "base/log.h"
#include "base/str.h"
#include "rootd/childlog.h"
#include "rootd/egress.h"
#include "rootd/packets.h"
#include "rootd/reap.h"
#include "rootd/server.h"

struct placement *placement_find(const struct rootd *r, const char *id) {
        for (struct placement *p = r->placements; p; p = p->next)
                if (str_eq(p->rec.id, id))
                        return p;
        return NULL;
}

struct placement *placement_new(struct rootd *r, const char *id) {
        struct placement *p = calloc(1, sizeof *p);
        if (!p)
                return NULL;
        p->rootd = r;
        p->dir = -EBADF;
        p->warden = p->vm = p->gateway = PROC_INIT;
        p->rec.state = RECORD_PLACING;
        (void) str_copy(p->rec.id, sizeof p->rec.id, id);
        p->next = r->placements;
        r->placements = p;
        r->n_placements++;
        return p;
}

void placement_free(struct placement *p) {
        if (!p)
                return;
        struct rootd *r = p->rootd;
        for (struct placement **at = &r->placements; *at; at = &(*at)->next)
                if (*at == p) {
                        *at = p->next;
                        r->n_placements--;
                        break;
                }
        revive_cancel(p);
        egress_cancel(p);
        childlog_free(p->warden_log);
        childlog_free(p->gateway_log);
        proc_done(&p->warden);
        proc_done(&p->vm);
        proc_done(&p->gateway);
        p->dir = fd_close(p->dir);
        free(p);
}

void placement_free_all(struct rootd *r) {
        while (r->placements)
                placement_free(r->placements);
}

/* ---- logs ----------------------------------------------------------------------------------- */

static struct childlog **open_log(struct placement *p, bool gateway) {
        struct childlog **log = gateway ? &p->gateway_log : &p->warden_log;
        struct error e = ERROR_INIT;
        if (!*log && childlog_new(p->rootd->loop, p->dir, gateway ? "gateway.log" : "warden.log",
                                  gateway ? "cspace-gateway" : "cspace-warden", p->rec.id, log, &e) < 0)
                log_warn("sandbox %s: no log of its %s: %s", p->rec.id, gateway ? "gateway" : "warden", e.msg);
        return log;
}

int placement_log_fd(struct placement *p, bool gateway) {
        struct childlog *log = *open_log(p, gateway);
        int fd = log ? childlog_writer(log) : -EBADF;
        return fd < 0 ? -EBADF : fd;
}

/* ---- processes ------------------------------------------------------------------------------ */

static void on_exit_of(struct proc *proc) {
        struct placement *p = proc->owner;
        const char *what = proc == &p->vm ? "vm" : proc == &p->warden ? "warden" : "gateway";
        reap_poke(p->rootd);
        if (p->rec.state != RECORD_LIVE || p->committing || p->halted) /* ended by us */
                return;
        log_info("sandbox %s: %s (process %d) ended, status %d", p->rec.id, what, proc->pid, proc->status);
        server_exited(p->rootd, p->rec.id, what);
        if (proc == &p->warden) {
                revive_warden(p);
        } else if (proc == &p->gateway) {
                egress_revive(p);
        } else {
                revive_cancel(p);
                if (!proc_alive(&p->gateway))
                        egress_cancel(p); /* its sockets would keep the namespace */
        }
}

int placement_watch_warden(struct placement *p, pid_t warden, int pidfd, struct error *err) {
        proc_done(&p->warden);
        int r = proc_watch(&p->warden, p->rootd->loop, warden, pidfd, on_exit_of, p, err);
        p->rec.warden_pid = (uint32_t) warden;
        p->rec.warden_start = p->warden.start;
        return r;
}

int placement_watch_gateway(struct placement *p, pid_t gateway, int pidfd, struct error *err) {
        proc_done(&p->gateway);
        int r = proc_watch(&p->gateway, p->rootd->loop, gateway, pidfd, on_exit_of, p, err);
        p->rec.gateway_pid = (uint32_t) gateway;
        p->rec.gateway_start = p->gateway.start;
        return r;
}

int placement_watch(struct placement *p, pid_t warden, int warden_pidfd, pid_t vm, int vm_pidfd,
                    struct error *err) {
        _cleanup_fd_ int second = vm_pidfd;
        int r = placement_watch_warden(p, warden, warden_pidfd, err);
        if (r < 0)
                return r;
        r = proc_watch(&p->vm, p->rootd->loop, vm, fd_steal(&second), on_exit_of, p, err);
        p->rec.vm_pid = (uint32_t) vm;
        p->rec.vm_start = p->vm.start;
        return r;
}

void placement_adopt(struct placement *p) {
        struct rootd *r = p->rootd;
        struct error e = ERROR_INIT;
        (void) open_log(p, false);
        if (p->rec.gateway_pid)
                (void) open_log(p, true);
        if (proc_adopt(&p->warden, r->loop, (pid_t) p->rec.warden_pid, p->rec.warden_start, p->rec.warden_uid,
                       on_exit_of, p, &e) < 0) {
                log_warn("sandbox %s: the warden is gone: %s", p->rec.id, e.msg);
                p->warden.gone = true;
        }
        if (proc_adopt(&p->vm, r->loop, (pid_t) p->rec.vm_pid, p->rec.vm_start, p->rec.vm_uid, on_exit_of, p,
                       &e) < 0) {
                log_warn("sandbox %s: the VM is gone: %s", p->rec.id, e.msg);
                p->vm.gone = true;
        }
        packets_adopt(p);
        if (proc_adopt(&p->gateway, r->loop, (pid_t) p->rec.gateway_pid, p->rec.gateway_start, p->rec.gateway_uid,
                       on_exit_of, p, &e) < 0)
                p->gateway.gone = true;
        if (p->warden.gone)
                revive_warden(p);
        if (p->gateway.gone)
                egress_revive(p);
}
