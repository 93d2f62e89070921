/* SPDX-License-Identifier: Apache-2.0 */

/*
 * A warden that ended while its VM goes on gets a successor: new control and data sockets under the
 * old names, a launcher that joins the VM's namespace, and `--adopt`. The record names the new
 * process before it has its order, so a rootd that ends in between finds either the warden or a
 * launcher that has gone by itself.
 *
 * A warden that keeps ending is not started for ever; cspaced then gives the sandbox up.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/fd.h"
#include "base/log.h"
#include "base/str.h"
#include "rootd/order.h"
#include "rootd/placement.h"
#include "rootd/pool.h"

#define REVIVES_MAX 3
#define REVIVES_WINDOW_MS 60000

struct revive {
        struct placement *p;
        struct launcher launcher;
        struct watch *watch;
        int ctl, data;
};

void revive_cancel(struct placement *p) {
        struct revive *v = p->revive;
        if (!v)
                return;
        p->revive = NULL;
        v->watch = watch_free(v->watch);
        launcher_done(&v->launcher);
        v->ctl = fd_close(v->ctl);
        v->data = fd_close(v->data);
        free(v);
}

static void give_order(struct revive *v, struct error *err) {
        struct launch_order o;
        int fds[LAUNCH_FDS_MAX];
        if (order_warden(v->p->rootd, &v->p->rec, true, v->p->rec.disk_bytes > 0, false, &o, err) < 0)
                return;
        order_fd(&o, fds, WARDEN_FD_CTL, v->ctl);
        order_fd(&o, fds, WARDEN_FD_DATA, v->data);
        _cleanup_fd_ int log = placement_log_fd(v->p, false);
        order_fd(&o, fds, STDERR_FILENO, log);
        (void) launcher_order(&v->launcher, &o, fds, err);
}

static void on_launcher(void *arg) {
        struct revive *v = arg;
        struct placement *p = v->p;
        struct error e = ERROR_INIT;
        int fds[LAUNCH_READY_FDS];
        switch (launcher_read(&v->launcher, fds, &e)) {
        case LAUNCH_NOTHING:
                return;
        case LAUNCH_READY:
                give_order(v, &e);
                if (e.code == 0)
                        return;
                break;
        case LAUNCH_RUNS: /* or died, which its pidfd tells */
                log_info("sandbox %s: a new warden (process %d) adopts the VM", p->rec.id, p->warden.pid);
                revive_cancel(p);
                return;
        case LAUNCH_ERROR:
                break;
        }
        log_error("sandbox %s: no new warden: %s", p->rec.id, e.msg);
        revive_cancel(p);
}

static int begin(struct revive *v, struct error *err) {
        struct placement *p = v->p;
        struct rootd *r = p->rootd;
        char path[48], leaf[SLOT_NAME_MAX + 1];
        (void) snprintf(path, sizeof path, "/proc/%d/ns/net", p->vm.pid);
        _cleanup_fd_ int netns = open(path, O_RDONLY | O_CLOEXEC);
        if (netns < 0 || !proc_alive(&p->vm))
                return error_errno(err, netns < 0 ? errno : ESRCH, "cannot open the VM's network namespace");
        int res = slot_socket(p->dir, "ctl.sock", SOCK_SEQPACKET, 0, r->opt.gid, 0660, &v->ctl, err);
        if (res == 0)
                res = slot_socket(p->dir, "data.sock", SOCK_STREAM, 0, r->opt.gid, 0660, &v->data, err);
        if (res < 0)
                return res;
        slot_name(p->rec.slot, leaf);
        const struct launch_setup setup = { .kind = LAUNCH_WARDEN,
                                            .cgroups = &r->cgroups,
                                            .leaf = leaf,
                                            .views = &r->views,
                                            .netns = netns,
                                            .dir = p->dir };
        res = launcher_start(&setup, &v->launcher, err);
        if (res < 0)
                return res;
        res = placement_watch_warden(p, v->launcher.pid, fd_steal(&v->launcher.pidfd), err);
        if (res == 0)
                res = record_write(p->dir, &p->rec, err);
        if (res == 0)
                res = watch_new(r->loop, v->launcher.sock, on_launcher, v, &v->watch, err);
        return res;
}

void revive_warden(struct placement *p) {
        struct error e = ERROR_INIT;
        uint64_t now = uv_now(p->rootd->loop);
        if (p->revive)
                revive_cancel(p);
        if (p->rec.state != RECORD_LIVE || p->committing || p->halted || !proc_alive(&p->vm))
                return;
        if (now - p->revives_since > REVIVES_WINDOW_MS) {
                p->revives_since = now;
                p->revives = 0;
        }
        if (++p->revives > REVIVES_MAX) {
                log_error("sandbox %s: its warden ended %u times within a minute, given up", p->rec.id,
                          p->revives);
                return;
        }
        struct revive *v = calloc(1, sizeof *v);
        if (!v)
                return;
        *v = (struct revive){
                .p = p, .launcher = { .pidfd = -EBADF, .sock = -EBADF }, .ctl = -EBADF, .data = -EBADF
        };
        p->revive = v;
        if (begin(v, &e) < 0) {
                log_error("sandbox %s: no new warden: %s", p->rec.id, e.msg);
                revive_cancel(p);
        }
}
