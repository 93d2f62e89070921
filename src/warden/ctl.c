/* SPDX-License-Identifier: Apache-2.0 */
#include "ctl.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/queue.h>
#include <sys/socket.h>

#include "base/cleanup.h"
#include "base/fd.h"
#include "base/log.h"
#include "ipc/ipc.h"
#include "ipc/messages.h"

struct client {
        LIST_ENTRY(client) entry;
        struct ctl *ctl;
        struct ipc_conn *conn;
};

/* A request whose answer takes time. The client may be gone when it comes. */
struct pending {
        LIST_ENTRY(pending) entry;
        struct ctl *ctl;
        struct client *client;
        struct ipc_packet request; /* head only */
};

struct ctl {
        uv_loop_t *loop;
        struct warden *w;
        uv_poll_t poll;
        int fd;
        size_t n_clients;
        LIST_HEAD(, client) clients;
        LIST_HEAD(, pending) pending;
};

static void client_free(struct client *cl) {
        struct pending *p;
        LIST_FOREACH(p, &cl->ctl->pending, entry)
                if (p->client == cl)
                        p->client = NULL;
        LIST_REMOVE(cl, entry);
        cl->ctl->n_clients--;
        ipc_conn_free(cl->conn);
        free(cl);
}

static void refuse(struct ipc_conn *c, const struct ipc_packet *p, int code, const char *text) {
        struct error e = ERROR_INIT;
        error_set(&e, code, "%s", text);
        ipc_conn_reply_error(c, p, &e);
}

/* ---- requests that take time --------------------------------------------------------------- */

static struct pending *pend(struct client *cl, const struct ipc_packet *p) {
        struct pending *r = calloc(1, sizeof(*r));
        if (!r)
                return NULL;
        r->ctl = cl->ctl;
        r->client = cl;
        r->request = *p;
        r->request.body = NULL;
        r->request.body_n = r->request.n_fds = 0;
        LIST_INSERT_HEAD(&cl->ctl->pending, r, entry);
        return r;
}

static void answer(struct pending *r, const struct error *e, const void *body, size_t n) {
        if (r->client && e)
                ipc_conn_reply_error(r->client->conn, &r->request, e);
        else if (r->client)
                ipc_conn_reply(r->client->conn, &r->request, body, n, NULL, 0);
        LIST_REMOVE(r, entry);
        free(r);
}

static void on_ready(void *arg, int err, const struct error *e, const struct warden_times *t) {
        struct ipc_ready m = { t->spawn_us, t->load_us, t->link_us, t->identify_us };
        uint8_t body[64];
        size_t n = 0;
        if (err == 0)
                (void) ipc_ready_encode(&m, body, sizeof(body), &n);
        answer(arg, err < 0 ? e : NULL, body, n);
}

static void on_held(void *arg, int err, const struct error *e) {
        struct pending *r = arg;
        struct ipc_held m = { .vm_us = warden_held_us(r->ctl->w), .synced = warden_synced(r->ctl->w) };
        uint8_t body[16];
        size_t n = 0;
        if (err == 0)
                (void) ipc_held_encode(&m, body, sizeof(body), &n);
        answer(r, err < 0 ? e : NULL, body, n);
}

static void on_done(void *arg, int err, const struct error *e) {
        answer(arg, err < 0 ? e : NULL, NULL, 0);
}

/* ---- requests ------------------------------------------------------------------------------ */

static void on_query(struct client *cl, const struct ipc_packet *p) {
        struct warden_info info;
        warden_query(cl->ctl->w, &info);
        struct ipc_warden_state m = {
                .identified = info.identified,
                .link_up = info.link_up,
                .bytes_in = info.bytes_in,
                .bytes_out = info.bytes_out,
        };
        snprintf(m.state, sizeof(m.state), "%s", warden_state_name(info.state));
        snprintf(m.reason, sizeof(m.reason), "%s", info.reason);
        uint8_t body[ERROR_MSG_MAX + 128];
        size_t n;
        if (ipc_warden_state_encode(&m, body, sizeof(body), &n) < 0)
                return refuse(cl->conn, p, -EIO, "the state cannot be told");
        ipc_conn_reply(cl->conn, p, body, n, NULL, 0);
}

static void on_identify(struct client *cl, const struct ipc_packet *p) {
        struct ipc_identify m;
        if (ipc_identify_decode(p->body, p->body_n, &m) < 0)
                return refuse(cl->conn, p, -EPROTO, "malformed IDENTIFY");
        struct pending *r = pend(cl, p);
        if (!r)
                return refuse(cl->conn, p, -ENOMEM, "out of memory");
        warden_identify(cl->ctl->w, m.json, m.json_n, on_ready, r);
}

static void on_stop(struct client *cl, const struct ipc_packet *p) {
        struct ipc_stop m;
        if (ipc_stop_decode(p->body, p->body_n, &m) < 0)
                return refuse(cl->conn, p, -EPROTO, "malformed STOP");
        struct pending *r = pend(cl, p);
        if (!r)
                return refuse(cl->conn, p, -ENOMEM, "out of memory");
        warden_stop(cl->ctl->w, m.timeout_ms, on_done, r);
}

static void on_snapshot(struct client *cl, const struct ipc_packet *p) {
        struct pending *r = pend(cl, p);
        if (!r)
                return refuse(cl->conn, p, -ENOMEM, "out of memory");
        warden_snapshot(cl->ctl->w, on_done, r);
}

static void on_hold(struct client *cl, struct ipc_packet *p) {
        struct pending *r;
        if (p->body_n > 0)
                return refuse(cl->conn, p, -EPROTO, "malformed request");
        if (p->type == IPC_SAVE && p->n_fds != 1)
                return refuse(cl->conn, p, -EPROTO, "SAVE comes with one descriptor");
        r = pend(cl, p);
        if (!r)
                return refuse(cl->conn, p, -ENOMEM, "out of memory");
        if (p->type == IPC_PAUSE)
                return warden_pause(cl->ctl->w, on_held, r);
        if (p->type == IPC_RESUME)
                return warden_resume(cl->ctl->w, on_held, r);
        int fd = p->fds[0];
        p->fds[0] = -EBADF;
        warden_save(cl->ctl->w, fd, on_done, r);
}

static void on_fsfreeze(struct client *cl, const struct ipc_packet *p) {
        struct ipc_fsfreeze m;
        if (ipc_fsfreeze_decode(p->body, p->body_n, &m) < 0)
                return refuse(cl->conn, p, -EPROTO, "malformed FSFREEZE");
        struct pending *r = pend(cl, p);
        if (!r)
                return refuse(cl->conn, p, -ENOMEM, "out of memory");
        warden_fsfreeze(cl->ctl->w, m.on, on_done, r);
}

static void on_park(struct client *cl, const struct ipc_packet *p) {
        struct ipc_park m;
        if (ipc_park_decode(p->body, p->body_n, &m) < 0)
                return refuse(cl->conn, p, -EPROTO, "malformed PARK");
        struct pending *r = pend(cl, p);
        if (!r)
                return refuse(cl->conn, p, -ENOMEM, "out of memory");
        warden_park(cl->ctl->w, m.keep, on_done, r);
}

static void on_packet(void *arg, struct ipc_conn *c, struct ipc_packet *p) {
        struct client *cl = arg;
        switch (p->type) {
        case IPC_QUERY:
                return on_query(cl, p);
        case IPC_IDENTIFY:
                return on_identify(cl, p);
        case IPC_SNAPSHOT:
                return on_snapshot(cl, p);
        case IPC_STOP:
                return on_stop(cl, p);
        case IPC_FSFREEZE:
                return on_fsfreeze(cl, p);
        case IPC_PAUSE:
        case IPC_RESUME:
        case IPC_SAVE:
                return on_hold(cl, p);
        case IPC_PARK:
                return on_park(cl, p);
        default:
                return refuse(c, p, -ENOTSUP, "no such request to a warden");
        }
}

static void on_close(void *arg, struct ipc_conn *c, int err) {
        (void) c;
        (void) err;
        client_free(arg);
}

static const struct ipc_conn_handler conn_handler = { .on_packet = on_packet, .on_close = on_close };

/* ---- connections --------------------------------------------------------------------------- */

static void on_connection(uv_poll_t *h, int status, int events) {
        struct ctl *c = h->data;
        (void) status;
        (void) events;
        int fd = accept4(c->fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
        if (fd < 0)
                return;
        if (c->n_clients >= CTL_CONNECTIONS_MAX) {
                log_warn("a connection to ctl.sock over the limit of %d is refused", CTL_CONNECTIONS_MAX);
                fd_close(fd);
                return;
        }
        struct client *cl = calloc(1, sizeof(*cl));
        if (!cl) {
                fd_close(fd);
                return;
        }
        if (ipc_conn_new(c->loop, fd, &conn_handler, cl, &cl->conn, NULL) < 0)
                return free(cl);
        cl->ctl = c;
        c->n_clients++;
        LIST_INSERT_HEAD(&c->clients, cl, entry);
}

int ctl_new(uv_loop_t *loop, int listen_fd, struct warden *w, struct ctl **ret, struct error *err) {
        struct ctl *c = calloc(1, sizeof(*c));
        int r = c ? uv_poll_init(loop, &c->poll, listen_fd) : -ENOMEM;
        if (r < 0) {
                free(c);
                fd_close(listen_fd);
                return error_errno(err, r, "ctl.sock");
        }
        c->loop = loop;
        c->w = w;
        c->fd = listen_fd;
        c->poll.data = c;
        LIST_INIT(&c->clients);
        LIST_INIT(&c->pending);
        uv_poll_start(&c->poll, UV_READABLE, on_connection);
        *ret = c;
        return 0;
}

void ctl_event(struct ctl *c, enum warden_state state, const char *reason) {
        if (!c || LIST_EMPTY(&c->clients))
                return;
        struct ipc_warden_event m = { .state = "" };
        snprintf(m.state, sizeof(m.state), "%s", warden_state_name(state));
        snprintf(m.reason, sizeof(m.reason), "%s", reason);
        uint8_t body[ERROR_MSG_MAX + 64];
        size_t n;
        if (ipc_warden_event_encode(&m, body, sizeof(body), &n) < 0)
                return;
        struct client *cl = LIST_FIRST(&c->clients), *next;
        for (; cl; cl = next) {
                next = LIST_NEXT(cl, entry);
                ipc_conn_event(cl->conn, IPC_WARDEN_EVENT, body, n);
        }
}

static void on_poll_closed(uv_handle_t *h) {
        free(h->data);
}

void ctl_free(struct ctl *c) {
        if (!c)
                return;
        struct client *cl;
        while ((cl = LIST_FIRST(&c->clients)))
                client_free(cl);
        struct pending *p;
        while ((p = LIST_FIRST(&c->pending))) {
                LIST_REMOVE(p, entry);
                free(p);
        }
        uv_poll_stop(&c->poll);
        c->fd = fd_close(c->fd);
        uv_close((uv_handle_t *) &c->poll, on_poll_closed);
}
