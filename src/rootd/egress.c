/* SPDX-License-Identifier: Apache-2.0 */

/*
 * A gateway lives in two network namespaces at once: its listening sockets are in the VM's, and the program runs in the
 * host's, where it dials out. Most sandboxes send nothing for most of their life, so the sockets wait here, and the
 * first packet for any of them starts the program, which finds that packet in the socket's queue.
 *
 *             what is there                         what moves it on
 * WAITING     the sockets, watched                  a packet: STARTING
 * STARTING    sockets and launcher                  the launcher's end: RUNS, or the end of the process: PAUSED
 * RUNS        the process, which has the sockets    its end: PAUSED
 * PAUSED      nothing: the kernel refuses           the timer: sockets made anew, WAITING
 *
 * Like a warden's successor (revive.c) it stands in the record before it has its order. When rootd ends while it waits, the
 * sockets end too, and the next rootd makes others.
 *
 * A guest that finds a way to end its gateway gains nothing by it, and wins a pause that grows.
 */
#include "rootd/egress.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/fault.h"
#include "base/fd.h"
#include "base/log.h"
#include "base/str.h"
#include "rootd/order.h"
#include "rootd/pool.h"
#include "rootd/resolvers.h"
#include "rootd/server.h"

#define PAUSE_FIRST_MS 100
#define PAUSE_MAX_MS 30000
#define STEADY_MS 60000 /* a gateway that lived for this long has not been failing */

struct egress {
        struct placement *p;
        int net[NET_SOCKETS];               /* WAITING, STARTING; else -EBADF */
        struct watch *packets[NET_SOCKETS]; /* WAITING */
        struct launcher launcher;           /* STARTING, with its watch */
        struct watch *watch;
        uv_timer_t *timer; /* PAUSED */
        unsigned pause_ms;
        uint64_t started;
};

static void on_timer_closed(uv_handle_t *h) {
        free(h);
}

static void watch_no_packets(struct egress *g) {
        for (size_t i = 0; i < NET_SOCKETS; i++)
                g->packets[i] = watch_free(g->packets[i]);
}

/* What there is of sockets and launcher goes, or is the process's alone. */
static void let_go(struct egress *g) {
        g->watch = watch_free(g->watch);
        launcher_done(&g->launcher);
        watch_no_packets(g);
        for (size_t i = 0; i < NET_SOCKETS; i++)
                g->net[i] = fd_close(g->net[i]);
}

void egress_cancel(struct placement *p) {
        struct egress *g = p->egress;
        if (!g)
                return;
        p->egress = NULL;
        let_go(g);
        uv_close((uv_handle_t *) g->timer, on_timer_closed);
        free(g);
}

void egress_close_copies(const struct placement *p) {
        for (size_t i = 0; p->egress && i < NET_SOCKETS; i++)
                if (p->egress->net[i] >= 0)
                        (void) close(p->egress->net[i]);
}

static void wait_for_packet(struct egress *g);

static void on_pause_over(uv_timer_t *t) {
        wait_for_packet(t->data);
}

static void try_later(struct egress *g) {
        let_go(g);
        g->pause_ms = g->pause_ms == 0 ? PAUSE_FIRST_MS : g->pause_ms > PAUSE_MAX_MS / 2 ? PAUSE_MAX_MS : 2 * g->pause_ms;
        (void) uv_timer_start(g->timer, on_pause_over, g->pause_ms, 0);
}

/* ---- starting one --------------------------------------------------------------------------- */

static int add_resolver(void *order, const char *address) {
        int r = launch_order_arg(order, "--resolver");
        return r < 0 ? r : launch_order_arg(order, address);
}

static int give_order(struct egress *g, int ctl, struct error *err) {
        const struct conf *conf = &g->p->rootd->opt.conf;
        struct launch_order o;
        int fds[LAUNCH_FDS_MAX];
        int r = order_gateway(g->p->rootd, &g->p->rec, &o, err);
        if (r < 0)
                return r;
        _cleanup_fd_ int trust = open(conf->trust_store, O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);
        if (trust < 0)
                return error_errno(err, errno, "cannot open [egress] trust_store \"%s\"", conf->trust_store);
        if (resolvers_each(conf->resolv_conf, add_resolver, &o) < 0)
                return error_set(err, -E2BIG, "too many resolvers");
        order_fd(&o, fds, GATEWAY_FD_CTL, ctl);
        order_fd(&o, fds, GATEWAY_FD_DNS_UDP, g->net[0]);
        order_fd(&o, fds, GATEWAY_FD_DNS_TCP, g->net[1]);
        order_fd(&o, fds, GATEWAY_FD_TCP, g->net[2]);
        order_fd(&o, fds, GATEWAY_FD_TRUST, trust);
        _cleanup_fd_ int log = placement_log_fd(g->p, true);
        order_fd(&o, fds, STDERR_FILENO, log);
        return launcher_order(&g->launcher, &o, fds, err);
}

static void on_launcher(void *arg) {
        struct egress *g = arg;
        struct error e = ERROR_INIT;
        int fds[LAUNCH_READY_FDS];
        enum launch_event event = launcher_read(&g->launcher, fds, &e);
        if (event == LAUNCH_NOTHING || event == LAUNCH_READY) /* it has its order already */
                return;
        if (event == LAUNCH_ERROR)
                log_error("sandbox %s: no gateway: %s", g->p->rec.id, e.msg);
        let_go(g); /* it runs, or died, which its pidfd tells and which leads to the next try */
}

static int launch(struct egress *g, struct error *err) {
        struct placement *p = g->p;
        struct rootd *r = p->rootd;
        char leaf[SLOT_NAME_MAX + 1];
        _cleanup_fd_ int ctl = -EBADF;
        int res = slot_socket(p->dir, "gw.sock", SOCK_SEQPACKET, 0, r->opt.gid, 0660, &ctl, err);
        if (res < 0)
                return res;
        server_gateway(r, p->rec.id); /* its configuration can be made while it starts */
        slot_name(p->rec.slot, leaf);
        const struct launch_setup setup = {
                .kind = LAUNCH_GATEWAY, .cgroups = &r->cgroups, .leaf = leaf, .views = &r->views, .netns = -EBADF, .dir = -EBADF
        };
        fault_point("gateway:1");
        res = launcher_start(&setup, &g->launcher, err);
        if (res == 0)
                res = placement_watch_gateway(p, g->launcher.pid, fd_steal(&g->launcher.pidfd), err);
        fault_point("gateway:2");
        if (res == 0)
                res = record_write(p->dir, &p->rec, err);
        fault_point("gateway:3");
        if (res == 0)
                res = watch_new(r->loop, g->launcher.sock, on_launcher, g, &g->watch, err);
        if (res == 0)
                res = give_order(g, ctl, err);
        fault_point("gateway:4");
        return res;
}

static void on_packet(void *arg) {
        struct egress *g = arg;
        struct placement *p = g->p;
        struct error e = ERROR_INIT;
        watch_no_packets(g);
        g->started = uv_now(p->rootd->loop);
        if (launch(g, &e) == 0)
                return;
        log_error("sandbox %s: no gateway: %s", p->rec.id, e.msg);
        let_go(g); /* a launcher that got no order ends */
        if (!proc_alive(&p->gateway)) { /* else its end leads to the next try */
                server_exited(p->rootd, p->rec.id, "gateway");
                try_later(g);
        }
}

static void wait_for_packet(struct egress *g) {
        struct placement *p = g->p;
        struct error e = ERROR_INIT;
        if (p->rec.state != RECORD_LIVE || p->committing || !proc_alive(&p->vm)) {
                let_go(g); /* sockets would keep the namespace of a VM that is gone */
                return;
        }
        int r = g->net[0] >= 0 ? 0 : net_listen_in(p->vm.pidfd, g->net, &e);
        for (size_t i = 0; i < NET_SOCKETS && r == 0; i++)
                r = watch_new(p->rootd->loop, g->net[i], on_packet, g, &g->packets[i], &e);
        if (r < 0) {
                log_error("sandbox %s: no gateway: %s", p->rec.id, e.msg);
                try_later(g);
        }
}

void egress_start(struct placement *p, int net[NET_SOCKETS]) {
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
        *g = (struct egress){ .p = p, .launcher = { .pidfd = -EBADF, .sock = -EBADF }, .timer = t };
        for (size_t i = 0; i < NET_SOCKETS; i++)
                g->net[i] = net ? net[i] : -EBADF;
        (void) uv_timer_init(p->rootd->loop, t);
        t->data = g;
        p->egress = g;
        wait_for_packet(g);
}

void egress_revive(struct placement *p) {
        struct egress *g = p->egress;
        if (!g) { /* of an earlier rootd */
                egress_start(p, NULL);
                return;
        }
        if (uv_now(p->rootd->loop) - g->started > STEADY_MS)
                g->pause_ms = 0;
        try_later(g);
}
