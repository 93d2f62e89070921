/* SPDX-License-Identifier: Apache-2.0 */

/*
 * A gateway lives in two network namespaces at once: its listening sockets are made in the VM's by
 * its launcher, which then goes back to the host's, where the program will dial out. Like a warden's
 * successor (revive.c) it stands in the record before it has its order.
 *
 * A guest that finds a way to end its gateway gains nothing by it, and wins a pause that grows.
 */
#include "rootd/egress.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/fd.h"
#include "base/log.h"
#include "base/str.h"
#include "rootd/order.h"
#include "rootd/pool.h"
#include "rootd/resolvers.h"

#define PAUSE_FIRST_MS 100
#define PAUSE_MAX_MS 30000
#define STEADY_MS 60000 /* a gateway that lived for this long has not been failing */

struct egress {
        struct placement *p;
        struct launcher launcher;
        struct watch *watch;
        int ctl, net[NET_SOCKETS]; /* net: of the slot, for the first one only */
        uv_timer_t *timer; /* the pause before another try */
        unsigned pause_ms;
        uint64_t started;
};

static void on_timer_closed(uv_handle_t *h) {
        free(h);
}

static void drop_launch(struct egress *g) {
        g->watch = watch_free(g->watch);
        launcher_done(&g->launcher);
        g->ctl = fd_close(g->ctl);
        for (size_t i = 0; i < NET_SOCKETS; i++)
                g->net[i] = fd_close(g->net[i]);
}

void egress_cancel(struct placement *p) {
        struct egress *g = p->egress;
        if (!g)
                return;
        p->egress = NULL;
        drop_launch(g);
        uv_close((uv_handle_t *) g->timer, on_timer_closed);
        free(g);
}

static void begin(struct egress *g);

static void on_pause_over(uv_timer_t *t) {
        begin(t->data);
}

static void try_later(struct egress *g) {
        drop_launch(g);
        g->pause_ms = g->pause_ms == 0 ? PAUSE_FIRST_MS : g->pause_ms > PAUSE_MAX_MS / 2 ? PAUSE_MAX_MS : 2 * g->pause_ms;
        (void) uv_timer_start(g->timer, on_pause_over, g->pause_ms, 0);
}

/* ---- starting one --------------------------------------------------------------------------- */

static int add_resolver(void *order, const char *address) {
        int r = launch_order_arg(order, "--resolver");
        return r < 0 ? r : launch_order_arg(order, address);
}

static void give_order(struct egress *g, struct error *err) {
        const struct conf *conf = &g->p->rootd->opt.conf;
        struct launch_order o;
        int fds[LAUNCH_FDS_MAX];
        if (order_gateway(g->p->rootd, &g->p->rec, &o, err) < 0)
                return;
        _cleanup_fd_ int trust = open(conf->trust_store, O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);
        if (trust < 0) {
                (void) error_errno(err, errno, "cannot open [egress] trust_store \"%s\"", conf->trust_store);
                return;
        }
        if (resolvers_each(conf->resolv_conf, add_resolver, &o) < 0) {
                (void) error_set(err, -E2BIG, "too many resolvers");
                return;
        }
        order_fd(&o, fds, GATEWAY_FD_CTL, g->ctl);
        order_fd(&o, fds, GATEWAY_FD_DNS_UDP, g->net[0]);
        order_fd(&o, fds, GATEWAY_FD_DNS_TCP, g->net[1]);
        order_fd(&o, fds, GATEWAY_FD_TCP, g->net[2]);
        order_fd(&o, fds, GATEWAY_FD_TRUST, trust);
        _cleanup_fd_ int log = placement_log_fd(g->p, true);
        order_fd(&o, fds, STDERR_FILENO, log);
        (void) launcher_order(&g->launcher, &o, fds, err);
}

static void on_launcher(void *arg) {
        struct egress *g = arg;
        struct error e = ERROR_INIT;
        int fds[LAUNCH_READY_FDS];
        switch (launcher_read(&g->launcher, fds, &e)) {
        case LAUNCH_NOTHING:
                return;
        case LAUNCH_READY:
                give_order(g, &e);
                if (e.code == 0)
                        return;
                break;
        case LAUNCH_RUNS: /* or died, which its pidfd tells */
                drop_launch(g);
                return;
        case LAUNCH_ERROR:
                break;
        }
        log_error("sandbox %s: no gateway: %s", g->p->rec.id, e.msg);
        drop_launch(g); /* its exit starts the next try */
}

static int launch(struct egress *g, struct error *err) {
        struct placement *p = g->p;
        struct rootd *r = p->rootd;
        char path[48], leaf[SLOT_NAME_MAX + 1];
        (void) snprintf(path, sizeof path, "/proc/%d/ns/net", p->vm.pid);
        _cleanup_fd_ int netns = open(path, O_RDONLY | O_CLOEXEC);
        if (netns < 0 || !proc_alive(&p->vm))
                return error_errno(err, netns < 0 ? errno : ESRCH, "cannot open the VM's network namespace");
        int res = g->ctl >= 0 ? 0 : slot_socket(p->dir, "gw.sock", SOCK_SEQPACKET, 0, r->opt.gid, 0660, &g->ctl, err);
        if (res < 0)
                return res;
        slot_name(p->rec.slot, leaf);
        const struct launch_setup setup = { .kind = LAUNCH_GATEWAY,
                                            .cgroups = &r->cgroups,
                                            .leaf = leaf,
                                            .views = &r->views,
                                            .netns = g->net[0] >= 0 ? -EBADF : netns,
                                            .dir = -EBADF };
        res = launcher_start(&setup, &g->launcher, err);
        if (res == 0)
                res = placement_watch_gateway(p, g->launcher.pid, fd_steal(&g->launcher.pidfd), err);
        if (res == 0)
                res = record_write(p->dir, &p->rec, err);
        if (res == 0)
                res = watch_new(r->loop, g->launcher.sock, on_launcher, g, &g->watch, err);
        return res;
}

static void begin(struct egress *g) {
        struct placement *p = g->p;
        struct error e = ERROR_INIT;
        if (p->rec.state != RECORD_LIVE || p->committing || !proc_alive(&p->vm))
                return;
        g->started = uv_now(p->rootd->loop);
        if (launch(g, &e) < 0) {
                log_error("sandbox %s: no gateway: %s", p->rec.id, e.msg);
                try_later(g);
        }
}

void egress_start(struct placement *p, int ctl, int *net) {
        _cleanup_fd_ int socket = ctl;
        struct egress *g = calloc(1, sizeof *g);
        uv_timer_t *t = calloc(1, sizeof *t);
        if (!g || !t) {
                free(g);
                free(t);
                for (size_t i = 0; net && i < NET_SOCKETS; i++)
                        (void) fd_close(net[i]);
                log_error("sandbox %s: no gateway: out of memory", p->rec.id);
                return;
        }
        *g = (struct egress){
                .p = p, .launcher = { .pidfd = -EBADF, .sock = -EBADF }, .ctl = fd_steal(&socket), .timer = t
        };
        for (size_t i = 0; i < NET_SOCKETS; i++)
                g->net[i] = net ? net[i] : -EBADF;
        (void) uv_timer_init(p->rootd->loop, t);
        t->data = g;
        p->egress = g;
        begin(g);
}

void egress_revive(struct placement *p) {
        struct egress *g = p->egress;
        if (!g) { /* of an earlier rootd */
                egress_start(p, -EBADF, NULL);
                return;
        }
        if (uv_now(p->rootd->loop) - g->started > STEADY_MS)
                g->pause_ms = 0;
        try_later(g);
}
