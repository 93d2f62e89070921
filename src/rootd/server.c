/* SPDX-License-Identifier: Apache-2.0 */
#include "rootd/server.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/fd.h"
#include "base/log.h"
#include "base/str.h"
#include "rootd/placement.h"
#include "rootd/pool.h"
#include "rootd/watch.h"

#define VERSION 1

struct client {
        uint64_t number;
        struct ipc_conn *conn;
        bool greeted;
        struct server *server;
        struct client *next;
};

struct server {
        struct rootd *rootd;
        int fd;
        struct watch *watch;
        uint64_t last_number;
        struct client *clients;
        unsigned n_clients;
        struct log_limit refused;
};

/* ---- answers -------------------------------------------------------------------------------- */

static struct client *find_client(const struct rootd *r, uint64_t number) {
        for (struct client *c = r->server ? r->server->clients : NULL; c; c = c->next)
                if (c->number == number)
                        return c;
        return NULL;
}

void ticket_send(struct rootd *r, const struct ticket *t, const void *body, size_t n) {
        struct client *c = find_client(r, t->client);
        int res = c ? ipc_conn_reply(c->conn, &t->request, body, n, NULL, 0) : -ENOTCONN;
        if (res < 0)
                log_debug("answer to %s is lost: the client is gone", ipc_type_name(t->request.type));
}

void ticket_fd(struct rootd *r, const struct ticket *t, int fd) {
        struct client *c = find_client(r, t->client);
        if (c)
                (void) ipc_conn_reply(c->conn, &t->request, NULL, 0, &fd, 1);
}

void ticket_ok(struct rootd *r, const struct ticket *t) {
        ticket_send(r, t, NULL, 0);
}

void ticket_error(struct rootd *r, const struct ticket *t, const struct error *e) {
        struct client *c = find_client(r, t->client);
        log_info("%s: %s", ipc_type_name(t->request.type), e->msg);
        if (c)
                (void) ipc_conn_reply_error(c->conn, &t->request, e);
}

void ticket_end(struct rootd *r, const struct ticket *t, const struct error *e) {
        if (e)
                ticket_error(r, t, e);
        else
                ticket_ok(r, t);
}

static void tell_exited(struct client *c, const char *id, const char *what) {
        struct ipc_exited m = {};
        uint8_t body[128];
        size_t n;
        if (str_copy(m.id, sizeof m.id, id) == 0 && str_copy(m.what, sizeof m.what, what) == 0 &&
            ipc_exited_encode(&m, body, sizeof body, &n) == 0)
                (void) ipc_conn_event(c->conn, IPC_EXITED, body, n);
}

void server_exited(struct rootd *r, const char *id, const char *what) {
        for (struct client *c = r->server ? r->server->clients : NULL; c; c = c->next)
                if (c->greeted)
                        tell_exited(c, id, what);
}

static void tell_gateway(struct client *c, const char *id) {
        struct ipc_gateway m = {};
        uint8_t body[128];
        size_t n;
        if (str_copy(m.id, sizeof m.id, id) == 0 && ipc_gateway_encode(&m, body, sizeof body, &n) == 0)
                (void) ipc_conn_event(c->conn, IPC_GATEWAY, body, n);
}

void server_gateway(struct rootd *r, const char *id) {
        for (struct client *c = r->server ? r->server->clients : NULL; c; c = c->next)
                if (c->greeted)
                        tell_gateway(c, id);
}

bool server_packets(struct rootd *r, const char *id, const struct net_counts *dropped) {
        struct ipc_packets m = { .spoofed = dropped->spoofed, .not_carried = dropped->not_carried, .flooded = dropped->flooded };
        uint8_t body[128];
        size_t n;
        bool told = false;
        if (str_copy(m.id, sizeof m.id, id) < 0 || ipc_packets_encode(&m, body, sizeof body, &n) < 0)
                return true;
        for (struct client *c = r->server ? r->server->clients : NULL; c; c = c->next)
                told |= c->greeted && ipc_conn_event(c->conn, IPC_PACKETS, body, n) >= 0;
        return told;
}

/* To a client that was not there when it happened. Of gateways also that there is none: it may have known one. */
static void tell_past_exits(struct client *c) {
        for (const struct placement *p = c->server->rootd->placements; p; p = p->next) {
                if (p->rec.state != RECORD_LIVE)
                        continue;
                if (p->vm.gone)
                        tell_exited(c, p->rec.id, "vm");
                if (p->warden.gone)
                        tell_exited(c, p->rec.id, "warden");
                if (p->halted)
                        continue;
                if (p->gateway.pid && !p->gateway.gone)
                        tell_gateway(c, p->rec.id);
                else
                        tell_exited(c, p->rec.id, "gateway");
        }
}

/* ---- requests ------------------------------------------------------------------------------- */

static void hello(struct client *c, const struct ticket *t, const struct ipc_hello *m) {
        struct rootd *r = c->server->rootd;
        if (m->version != VERSION) {
                struct error e = ERROR_INIT;
                (void) error_set(&e, -EPROTO, "client speaks version %u of the protocol, this is version %d",
                                 m->version, VERSION);
                if (m->version != 0)
                        ticket_error(r, t, &e);
                else /* `cspace up` looks whether we answer: nothing to be logged */
                        (void) ipc_conn_reply_error(c->conn, &t->request, &e);
                return;
        }
        struct ipc_host_info info = { .version = VERSION,
                                      .reflink = r->host.reflink,
                                      .pool_ready = pool_ready(r->pool) };
        (void) str_copy(info.engine, sizeof info.engine, r->host.engine);
        (void) str_copy(info.engine_reason, sizeof info.engine_reason, r->host.engine_reason);
        (void) str_copy(info.cgroup, sizeof info.cgroup, r->cgroups.version);
        (void) str_copy(info.data_fs, sizeof info.data_fs, r->host.data_fs);
        uint8_t body[sizeof info + 64];
        size_t n;
        if (ipc_host_info_encode(&info, body, sizeof body, &n) < 0)
                return;
        c->greeted = true;
        ticket_send(r, t, body, n);
        tell_past_exits(c);
}

static void take_fds(struct ipc_packet *p, int fds[2]) {
        for (size_t i = 0; i < 2; i++) {
                fds[i] = i < p->n_fds ? p->fds[i] : -EBADF;
                if (i < p->n_fds)
                        p->fds[i] = -EBADF;
        }
}

#define ON(UPPER, lower, call)                                      \
        case IPC_##UPPER: {                                         \
                struct ipc_##lower m;                               \
                if (ipc_##lower##_decode(p->body, p->body_n, &m) < 0) \
                        return -EBADMSG;                            \
                call;                                               \
                return 0;                                           \
        }

static int dispatch(struct client *c, struct rootd *r, const struct ticket *t, struct ipc_packet *p) {
        int fds[2] = { -EBADF, -EBADF };
        if (p->type == IPC_BUILD || p->type == IPC_PUBLISH || p->type == IPC_TOKEN)
                take_fds(p, fds);
        switch (p->type) {
                ON(HELLO, hello, hello(c, t, &m))
                ON(PLACE, place, place_handle(r, t, &m))
                ON(REMOVE, remove, remove_handle(r, t, &m))
                ON(USAGE, usage, usage_handle(r, t, &m))
                ON(LIST, list, list_handle(r, t))
                ON(BUILD_REMOVE, build_remove, build_remove_handle(r, t, &m))
                ON(TEMPLATE_COMMIT, template_commit, template_commit_handle(r, t, &m))
                ON(TEMPLATE_REMOVE, template_remove, template_remove_handle(r, t, &m))
                ON(IMAGE_BEGIN, image_begin, image_begin_handle(r, t, &m))
                ON(IMAGE_COMMIT, image_commit, image_commit_handle(r, t, &m))
                ON(IMAGE_REMOVE, image_remove, image_remove_handle(r, t, &m))
                ON(IMAGE_USAGE, image_usage, image_usage_handle(r, t, &m))
                ON(IMAGES, images, images_handle(r, t, &m))
                ON(HISTORY, history, history_handle(r, t, &m))
                ON(VARIANT_COMMIT, variant_commit, variant_commit_handle(r, t, &m))
                ON(VARIANT_FREEZE, variant_freeze, variant_freeze_handle(r, t, &m))
                ON(VARIANT_REMOVE, variant_remove, variant_remove_handle(r, t, &m))
        case IPC_PUBLISH: {
                struct ipc_publish m;
                if (ipc_publish_decode(p->body, p->body_n, &m) < 0) {
                        fds[0] = fd_close(fds[0]);
                        fds[1] = fd_close(fds[1]);
                        return -EBADMSG;
                }
                publish_handle(r, t, &m, fds); /* takes both */
                return 0;
        }
        case IPC_BUILD: {
                struct ipc_build m;
                if (ipc_build_decode(p->body, p->body_n, &m) < 0) {
                        fds[0] = fd_close(fds[0]);
                        fds[1] = fd_close(fds[1]);
                        return -EBADMSG;
                }
                build_handle(r, t, &m, fds); /* takes both */
                return 0;
        }
        case IPC_TOKEN: {
                struct ipc_token m;
                fds[1] = fd_close(fds[1]);
                if (ipc_token_decode(p->body, p->body_n, &m) < 0) {
                        fds[0] = fd_close(fds[0]);
                        return -EBADMSG;
                }
                token_handle(r, t, &m, fds[0]); /* takes it */
                return 0;
        }
        default:
                return -EOPNOTSUPP;
        }
}

static void on_packet(void *arg, struct ipc_conn *conn, struct ipc_packet *p) {
        struct client *c = arg;
        struct rootd *r = c->server->rootd;
        struct error e = ERROR_INIT;
        struct ticket t = { .client = c->number,
                            .request = { .type = p->type, .seq = p->seq },
                            .received_us = clock_mono_us() };
        (void) conn;
        if (p->seq == 0)
                return; /* an event: nobody has any for us */
        int res = p->type == IPC_HELLO || c->greeted ? dispatch(c, r, &t, p) : -EACCES;
        if (res == -EACCES)
                (void) error_set(&e, -EPROTO, "the first message must be hello");
        else if (res == -EBADMSG)
                (void) error_set(&e, -EPROTO, "message %s cannot be read", ipc_type_name(p->type));
        else if (res == -EOPNOTSUPP)
                (void) error_set(&e, -EOPNOTSUPP, "message type %u is not known here", p->type);
        if (res < 0)
                ticket_error(r, &t, &e);
}

static void drop_client(struct client *c) {
        struct server *s = c->server;
        for (struct client **at = &s->clients; *at; at = &(*at)->next)
                if (*at == c) {
                        *at = c->next;
                        break;
                }
        s->n_clients--;
        ipc_conn_free(c->conn);
        free(c);
}

static void on_close(void *arg, struct ipc_conn *conn, int err) {
        struct client *c = arg;
        (void) conn;
        if (err < 0)
                log_warn("connection %llu: %s", (unsigned long long) c->number, strerror(-err));
        drop_client(c);
}

/* ---- connections ---------------------------------------------------------------------------- */

static bool may_connect(struct server *s, int fd) {
        uid_t uid;
        pid_t pid;
        unsigned dropped;
        if (ipc_peer(fd, &uid, &pid) < 0)
                return false;
        bool known = uid == 0 || uid == s->rootd->opt.uid;
        if (known && s->n_clients < SERVER_CLIENTS_MAX)
                return true;
        if (log_limit_pass(&s->refused, 5, &dropped))
                log_warn("connection of user %u, process %d, refused: %s", uid, pid,
                         known ? "too many connections" : "only root and cspaced's user may");
        return false;
}

static void on_accept(void *arg) {
        static const struct ipc_conn_handler handler = { .on_packet = on_packet, .on_close = on_close };
        struct server *s = arg;
        _cleanup_fd_ int fd = accept4(s->fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
        if (fd < 0 || !may_connect(s, fd))
                return;
        struct error e = ERROR_INIT;
        struct client *c = calloc(1, sizeof *c);
        if (!c)
                return;
        c->server = s;
        c->number = ++s->last_number;
        if (ipc_conn_new(s->rootd->loop, fd_steal(&fd), &handler, c, &c->conn, &e) < 0) {
                log_error("cannot take a connection: %s", e.msg);
                free(c);
                return;
        }
        c->next = s->clients;
        s->clients = c;
        s->n_clients++;
}

int server_new(struct rootd *r, struct server **ret, struct error *err) {
        _cleanup_free_ struct server *s = calloc(1, sizeof *s);
        if (!s)
                return error_set(err, -ENOMEM, "out of memory");
        s->rootd = r;
        int res = slot_socket(r->dirs.run, "rootd.sock", SOCK_SEQPACKET, 0, r->opt.gid, 0660, &s->fd, err);
        if (res == 0)
                res = fd_nonblock(s->fd, err);
        if (res == 0)
                res = watch_new(r->loop, s->fd, on_accept, s, &s->watch, err);
        if (res < 0)
                return res;
        *ret = STEAL(s);
        return 0;
}

void server_free(struct server *s) {
        if (!s)
                return;
        while (s->clients)
                drop_client(s->clients);
        s->watch = watch_free(s->watch);
        s->fd = fd_close(s->fd);
        (void) unlinkat(s->rootd->dirs.run, "rootd.sock", 0);
        free(s);
}
