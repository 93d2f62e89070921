/* SPDX-License-Identifier: Apache-2.0 */

#include "rootd.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "app.h"
#include "base/cleanup.h"
#include "base/fault.h"
#include "base/fd.h"
#include "base/log.h"
#include "egress/egress.h"
#include "sandbox/reconcile.h"
#include "sandbox/sandbox_flow.h"
#include "timer.h"

#define PROTOCOL_VERSION 1
#define RETRY_MIN_MS 100
#define RETRY_MAX_MS 2000
#define HELLO_TIMEOUT_MS 10000

struct rootd {
        struct app *app;
        char path[CONF_STR_MAX + 32];
        struct ipc_conn *conn;
        bool ready; /* hello answered */
        struct ipc_host_info host;
        struct timer *retry;
        uint64_t retry_ms;
        bool told; /* that it cannot be reached */
};

static void try_connect(void *arg);

static void retry_later(struct rootd *r) {
        if (r->retry || r->app->stopping)
                return;
        r->retry = timer_start(r->app->loop, r->retry_ms, try_connect, r);
        r->retry_ms = r->retry_ms * 2 > RETRY_MAX_MS ? RETRY_MAX_MS : r->retry_ms * 2;
}

static void lost(struct rootd *r, const char *why) {
        bool was_ready = r->ready;
        ipc_conn_free(r->conn);
        r->conn = NULL;
        r->ready = false;
        if (was_ready || !r->told)
                log_warn("cspace-rootd is not reachable at \"%s\" (%s), trying again", r->path, why);
        r->told = true;
        retry_later(r);
}

static void on_packet(void *arg, struct ipc_conn *c, struct ipc_packet *p) {
        (void) c;
        struct rootd *r = arg;
        struct ipc_exited m;
        struct ipc_packets dropped;
        struct ipc_gateway started;
        if (p->type == IPC_EXITED && ipc_exited_decode(p->body, p->body_n, &m) == 0 && id_valid(m.id))
                sandbox_vm_ended(r->app, m.id, m.what);
        else if (p->type == IPC_PACKETS && ipc_packets_decode(p->body, p->body_n, &dropped) == 0 && id_valid(dropped.id))
                egress_packets(r->app, &dropped);
        else if (p->type == IPC_GATEWAY && ipc_gateway_decode(p->body, p->body_n, &started) == 0 && id_valid(started.id))
                egress_gateway_started(r->app, started.id);
        else
                log_warn("cspace-rootd sent an unexpected \"%s\", ignoring", ipc_type_name(p->type));
}

static void on_close(void *arg, struct ipc_conn *c, int err) {
        (void) c;
        lost(arg, err == 0 ? "it closed the connection" : strerror(-err));
}

static const struct ipc_conn_handler handler = { .on_packet = on_packet, .on_close = on_close, .peer = "cspace-rootd" };

static void on_hello(void *arg, int err, const struct error *e, struct ipc_packet *p) {
        struct rootd *r = arg;
        struct ipc_host_info host;
        if (err == -ECANCELED)
                return;
        if (err < 0) {
                if (err != -ECONNRESET) /* else on_close follows */
                        lost(r, e->msg);
                return;
        }
        if (ipc_host_info_decode(p->body, p->body_n, &host) < 0) {
                lost(r, "its hello cannot be read");
                return;
        }
        if (host.version != PROTOCOL_VERSION) {
                lost(r, "it is of another version");
                return;
        }
        r->host = host;
        r->ready = true;
        r->told = false;
        r->retry_ms = RETRY_MIN_MS;
        log_info("connected to cspace-rootd: engine %s (%s)", host.engine, host.engine_reason);
        reconcile_start(r->app);
}

static void try_connect(void *arg) {
        struct rootd *r = arg;
        r->retry = NULL;
        struct error e = ERROR_INIT;
        _cleanup_fd_ int fd = -EBADF;
        uid_t uid;
        pid_t pid;
        if (ipc_connect(r->path, &fd, &e) < 0 || ipc_peer(fd, &uid, &pid) < 0) {
                lost(r, e.msg[0] ? e.msg : "its credentials are not readable");
                return;
        }
        if (uid != 0 && uid != geteuid()) {
                lost(r, "who listens there is not root");
                return;
        }
        if (ipc_conn_new(r->app->loop, fd_steal(&fd), &handler, r, &r->conn, &e) < 0) {
                lost(r, e.msg);
                return;
        }
        struct ipc_hello hello = { .version = PROTOCOL_VERSION };
        uint8_t body[64];
        size_t n;
        int rc = ipc_hello_encode(&hello, body, sizeof body, &n);
        if (rc >= 0)
                rc = ipc_conn_call(r->conn, IPC_HELLO, body, n, NULL, 0, HELLO_TIMEOUT_MS, on_hello, r);
        if (rc < 0)
                lost(r, strerror(-rc));
}

int rootd_new(struct app *app, struct rootd **ret, struct error *err) {
        _cleanup_free_ struct rootd *r = calloc(1, sizeof *r);
        if (!r)
                return error_set(err, -ENOMEM, "out of memory");
        r->app = app;
        r->retry_ms = RETRY_MIN_MS;
        int rc = conf_run_path(&app->conf, "rootd.sock", r->path, sizeof r->path);
        if (rc < 0)
                return error_errno(err, rc, "the run folder's path is too long");
        r->retry = timer_start(app->loop, 0, try_connect, r);
        if (!r->retry)
                return error_set(err, -ENOMEM, "out of memory");
        *ret = STEAL(r);
        return 0;
}

void rootd_stop(struct rootd *r) {
        if (!r)
                return;
        timer_cancel(STEAL(r->retry));
        r->ready = false;
        struct ipc_conn *c = STEAL(r->conn);
        ipc_conn_free(c);
}

void rootd_free(struct rootd *r) {
        rootd_stop(r);
        free(r);
}

bool rootd_connected(const struct rootd *r) {
        return r->ready;
}

const struct ipc_host_info *rootd_host(const struct rootd *r) {
        return &r->host;
}

const char *rootd_engine(const struct rootd *r) {
        return r->host.engine;
}

int rootd_call(struct rootd *r, uint16_t type, const void *body, size_t n, const int *fds, size_t n_fds,
               unsigned timeout_ms, ipc_reply_cb cb, void *arg, struct error *err) {
        if (!r->ready)
                return error_set(err, -ENOTCONN, "cspace-rootd is not reachable");
        fault_point(ipc_type_name(type));
        int rc = ipc_conn_call(r->conn, type, body, n, fds, n_fds, timeout_ms, cb, arg);
        fault_point(ipc_type_name(type));
        if (rc == -ENOTCONN)
                return error_set(err, rc, "cspace-rootd has ended");
        return rc < 0 ? error_errno(err, rc, "could not ask cspace-rootd to %s", ipc_type_name(type)) : 0;
}
