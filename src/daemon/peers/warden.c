/* SPDX-License-Identifier: Apache-2.0 */

#include "warden.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

#include "app.h"
#include "base/cleanup.h"
#include "base/fault.h"
#include "base/fd.h"
#include "base/log.h"

struct warden {
        struct ipc_conn *conn;
        const struct warden_handler *handler;
        void *arg;
};

static void on_packet(void *arg, struct ipc_conn *c, struct ipc_packet *p) {
        (void) c;
        static struct log_limit limit;
        struct warden *w = arg;
        struct ipc_warden_event e;
        unsigned dropped;
        if (p->type == IPC_WARDEN_EVENT && ipc_warden_event_decode(p->body, p->body_n, &e) == 0)
                w->handler->on_event(w->arg, &e);
        else if (log_limit_pass(&limit, 10, &dropped))
                log_warn("a warden sent an unexpected \"%s\", ignoring", ipc_type_name(p->type));
}

static void on_close(void *arg, struct ipc_conn *c, int err) {
        (void) c;
        struct warden *w = arg;
        w->handler->on_close(w->arg, err ? err : -ECONNRESET);
}

static const struct ipc_conn_handler handler = { .on_packet = on_packet, .on_close = on_close, .peer = "the warden" };

int warden_connect(struct app *app, const char *sandbox_id, const struct warden_handler *h, void *arg,
                   struct warden **ret, struct error *err) {
        char name[64], path[CONF_STR_MAX + 64];
        (void) snprintf(name, sizeof name, "sandboxes/%s/ctl.sock", sandbox_id);
        int r = conf_run_path(&app->conf, name, path, sizeof path);
        if (r < 0)
                return error_errno(err, r, "the run folder's path is too long");
        _cleanup_free_ struct warden *w = calloc(1, sizeof *w);
        if (!w)
                return error_set(err, -ENOMEM, "out of memory");
        int fd = -EBADF;
        r = ipc_connect(path, &fd, err);
        if (r < 0)
                return r;
        w->handler = h;
        w->arg = arg;
        r = ipc_conn_new(app->loop, fd, &handler, w, &w->conn, err);
        if (r < 0)
                return r;
        *ret = STEAL(w);
        return 0;
}

void warden_set_handler(struct warden *w, const struct warden_handler *h, void *arg) {
        w->handler = h;
        w->arg = arg;
}

void warden_free(struct warden *w) {
        if (!w)
                return;
        ipc_conn_free(w->conn);
        free(w);
}

static int asked(int r, uint16_t type, struct error *err) {
        if (r == -ENOTCONN)
                return error_set(err, r, "the warden has ended");
        return r < 0 ? error_errno(err, r, "could not ask the warden to %s", ipc_type_name(type)) : 0;
}

int warden_call(struct warden *w, uint16_t type, const void *body, size_t n, unsigned timeout_ms, ipc_reply_cb cb,
                void *arg, struct error *err) {
        fault_point(ipc_type_name(type));
        int r = ipc_conn_call(w->conn, type, body, n, NULL, 0, timeout_ms, cb, arg);
        fault_point(ipc_type_name(type));
        return asked(r, type, err);
}

int warden_call_fd(struct warden *w, uint16_t type, int fd, unsigned timeout_ms, ipc_reply_cb cb, void *arg,
                   struct error *err) {
        fault_point(ipc_type_name(type));
        int r = ipc_conn_call(w->conn, type, NULL, 0, &fd, 1, timeout_ms, cb, arg);
        fault_point(ipc_type_name(type));
        return asked(r, type, err);
}
