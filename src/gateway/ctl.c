/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Of the connections, the one that configured last is cspaced's own (`main_client`): it gets the records, one batch
 * at a time, the next when the last is acknowledged; what was under way when it broke is sent again.
 */

#include "ctl.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "audit_queue.h"
#include "base/cleanup.h"
#include "base/fd.h"
#include "base/json.h"
#include "base/log.h"
#include "config.h"
#include "dns/dns_names.h"
#include "ipc/ipc.h"
#include "ipc/messages.h"
#include "policy/binding.h"
#include "usage.h"

struct client {
        LIST_ENTRY(client) entry;
        struct ctl *ctl;
        struct ipc_conn *conn;
};

struct ctl {
        struct gateway *gw;
        uv_poll_t poll;
        uv_timer_t timer;       /* gathers records */
        uv_timer_t names_timer; /* keeps the tables of names apart */
        unsigned n_open;
        int fd;
        void (*first)(void *arg); /* NULL once called */
        void *first_arg;
        size_t n_clients;
        LIST_HEAD(, client) clients;
        struct client *main_client;
        bool batch_out, names_out;
        bool names_hurry; /* once more when names_out is over */
        uint64_t generation;
        uint64_t names_sent, names_version; /* acknowledged; under way */
};

static void schedule(struct ctl *c);

/* ---- records and names go out -------------------------------------------------------------- */

static void on_batch_taken(void *arg, int err, const struct error *e, struct ipc_packet *p) {
        struct ctl *c = arg;
        (void) e;
        (void) p;
        c->batch_out = false;
        if (err == 0)
                audit_queue_taken(c->gw->audit);
        if (err != -ECANCELED)
                schedule(c);
}

static void send_names(struct ctl *c, bool now);

static void on_names_taken(void *arg, int err, const struct error *e, struct ipc_packet *p) {
        struct ctl *c = arg;
        (void) e;
        (void) p;
        c->names_out = false;
        if (err == 0)
                c->names_sent = c->names_version;
        bool hurry = c->names_hurry;
        c->names_hurry = false;
        if (hurry && err != -ECANCELED)
                send_names(c, true);
}

static int names_to_memfd(struct ctl *c) {
        _cleanup_json_ json_t *j = NULL;
        int r = dns_names_save(c->gw->names, &j, NULL);
        _cleanup_free_ char *text = r == 0 ? json_to_str(j) : NULL;
        _cleanup_fd_ int fd = text ? memfd_create("names", MFD_CLOEXEC) : -1;
        if (fd < 0 || fd_write_all(fd, text, strlen(text), NULL) < 0)
                return -EIO;
        return fd_steal(&fd);
}

static void on_names_timer(uv_timer_t *t);

/* now: who asks wants to know all that there is before anything else. */
static void send_names(struct ctl *c, bool now) {
        struct ipc_gw_names m = { .version = dns_names_version(c->gw->names) };
        uint8_t body[16];
        size_t n;
        c->names_hurry = now && c->names_out;
        bool early = !now && uv_is_active((uv_handle_t *) &c->names_timer);
        if (!c->main_client || c->names_out || early || m.version == c->names_sent ||
            ipc_gw_names_encode(&m, body, sizeof body, &n) < 0)
                return;
        int fd = names_to_memfd(c);
        if (fd < 0)
                return;
        c->names_version = m.version;
        c->names_out = true;
        if (ipc_conn_call(c->main_client->conn, IPC_GW_NAMES, body, n, &fd, 1, CTL_ANSWER_MS, on_names_taken, c) < 0)
                c->names_out = false;
        (void) fd_close(fd);
        (void) uv_timer_start(&c->names_timer, on_names_timer, CTL_NAMES_DELAY_MS, 0);
}

static void on_names_timer(uv_timer_t *t) {
        send_names(t->data, false);
}

static void send_batch(uv_timer_t *t) {
        struct ctl *c = t->data;
        struct ipc_gw_audit m;
        const char *lines;
        size_t n;
        send_names(c, false); /* a new name comes with a record */
        if (!c->main_client || c->batch_out || !audit_queue_peek(c->gw->audit, &lines, &m.lines_n, &m.dropped))
                return;
        m.lines = lines;
        uint8_t *body = malloc(m.lines_n + 64);
        if (body && ipc_gw_audit_encode(&m, body, m.lines_n + 64, &n) == 0) {
                c->batch_out = true; /* before the call: its callback may come from inside */
                if (ipc_conn_call(c->main_client->conn, IPC_GW_AUDIT, body, n, NULL, 0, CTL_ANSWER_MS, on_batch_taken, c) < 0)
                        c->batch_out = false;
        }
        free(body);
}

static void schedule(struct ctl *c) {
        if (c->main_client && !c->batch_out && audit_queue_bytes(c->gw->audit) > 0 &&
            !uv_is_active((uv_handle_t *) &c->timer))
                (void) uv_timer_start(&c->timer, send_batch, CTL_BATCH_DELAY_MS, 0);
}

static void on_record(void *arg) {
        schedule(arg);
}

/* ---- requests ------------------------------------------------------------------------------ */

static void refuse(struct ipc_conn *c, const struct ipc_packet *p, int code, const char *text) {
        struct error e = ERROR_INIT;
        (void) error_set(&e, code, "%s", text);
        (void) ipc_conn_reply_error(c, p, &e);
}

/* The whole contents; the sender may go on writing into its memfd, so it is read once. */
static int read_all(int fd, char **ret, size_t *ret_n, struct error *err) {
        struct stat st;
        if (fd < 0 || fstat(fd, &st) < 0 || !S_ISREG(st.st_mode) || st.st_size < 0 || st.st_size > GW_CONFIG_MAX)
                return error_set(err, -EINVAL, "the configuration comes in a memfd of at most %u bytes", GW_CONFIG_MAX);
        size_t n = (size_t) st.st_size, at = 0;
        char *text = malloc(n + 1);
        if (!text)
                return error_set(err, -ENOMEM, "out of memory");
        while (at < n) {
                ssize_t r = pread(fd, text + at, n - at, (off_t) at);
                if (r < 0 && errno == EINTR)
                        continue;
                if (r <= 0)
                        break;
                at += (size_t) r;
        }
        text[at] = '\0';
        *ret = text;
        *ret_n = at;
        return 0;
}

static void on_config(struct client *cl, struct ipc_packet *p) {
        struct ctl *c = cl->ctl;
        struct error e = ERROR_INIT;
        struct ipc_gw_config m;
        struct ipc_gw_configured done = { .rules = 0 };
        char *text = NULL;
        size_t n = 0;
        uint8_t body[sizeof done + 64];
        int r = ipc_gw_config_decode(p->body, p->body_n, &m) < 0 ? error_set(&e, -EPROTO, "malformed GW_CONFIG") : 0;
        if (r == 0)
                r = read_all(p->n_fds == 1 ? p->fds[0] : -EBADF, &text, &n, &e);
        if (r == 0)
                r = config_apply(c->gw, text, n, &e);
        if (text)
                explicit_bzero(text, n);
        free(text);
        if (r < 0) {
                (void) ipc_conn_reply_error(cl->conn, p, &e);
                return;
        }
        c->generation = m.generation;
        c->main_client = cl;
        done.rules = (uint32_t) policy_n_rules(c->gw->policy);
        if (ipc_gw_configured_encode(&done, body, sizeof body, &n) < 0)
                refuse(cl->conn, p, -EIO, "the answer cannot be written");
        else
                (void) ipc_conn_reply(cl->conn, p, body, n, NULL, 0);
        void (*first)(void *arg) = STEAL(c->first);
        if (first)
                first(c->first_arg);
        schedule(c);
}

static void on_query(struct client *cl, const struct ipc_packet *p) {
        struct gateway *gw = cl->ctl->gw;
        struct usage_total t = usage_total(gw->usage);
        send_names(cl->ctl, true);
        struct ipc_gw_state m = {
                .configured = gw->configured,
                .generation = cl->ctl->generation,
                .connections = gw->n_conns,
                .requests = t.requests,
                .bytes_out = t.bytes_out,
                .bytes_in = t.bytes_in,
                .names = dns_names_count(gw->names),
                .records_dropped = audit_queue_dropped(gw->audit),
        };
        uint8_t body[sizeof m + 64];
        size_t n;
        if (ipc_gw_state_encode(&m, body, sizeof body, &n) < 0)
                refuse(cl->conn, p, -EIO, "the state cannot be told");
        else
                (void) ipc_conn_reply(cl->conn, p, body, n, NULL, 0);
}

static void on_secret(struct client *cl, const struct ipc_packet *p) {
        struct ipc_gw_secret m;
        struct error e = ERROR_INIT;
        int r = 0;
        if (ipc_gw_secret_decode(p->body, p->body_n, &m) < 0)
                r = error_set(&e, -EPROTO, "malformed GW_SECRET");
        else if (m.secret_n == 0)
                bindings_drop_secret(cl->ctl->gw->bindings, m.credential);
        else
                r = bindings_set_secret(cl->ctl->gw->bindings, m.credential, m.secret, m.secret_n, (int64_t) m.expires_ms, &e);
        if (r < 0)
                (void) ipc_conn_reply_error(cl->conn, p, &e);
        else
                (void) ipc_conn_reply(cl->conn, p, NULL, 0, NULL, 0);
}

static void on_packet(void *arg, struct ipc_conn *c, struct ipc_packet *p) {
        if (p->type == IPC_GW_CONFIG)
                on_config(arg, p);
        else if (p->type == IPC_GW_SECRET)
                on_secret(arg, p);
        else if (p->type == IPC_GW_QUERY)
                on_query(arg, p);
        else
                refuse(c, p, -ENOTSUP, "no such request to a gateway");
}

/* ---- connections --------------------------------------------------------------------------- */

static void client_free(struct client *cl) {
        LIST_REMOVE(cl, entry);
        cl->ctl->n_clients--;
        if (cl->ctl->main_client == cl)
                cl->ctl->main_client = NULL;
        ipc_conn_free(cl->conn);
        free(cl);
}

static void on_close(void *arg, struct ipc_conn *c, int err) {
        (void) c;
        (void) err;
        client_free(arg);
}

static const struct ipc_conn_handler conn_handler = { .on_packet = on_packet, .on_close = on_close };

static void on_connection(uv_poll_t *h, int status, int events) {
        struct ctl *c = h->data;
        (void) status;
        (void) events;
        int fd = accept4(c->fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
        if (fd < 0)
                return;
        if (c->n_clients >= CTL_CONNECTIONS_MAX) {
                log_warn("a connection to ctl.sock over the limit of %d is refused", CTL_CONNECTIONS_MAX);
                (void) fd_close(fd);
                return;
        }
        struct client *cl = calloc(1, sizeof *cl);
        if (!cl) {
                (void) fd_close(fd);
                return;
        }
        if (ipc_conn_new(c->gw->loop, fd, &conn_handler, cl, &cl->conn, NULL) < 0) {
                free(cl);
                return;
        }
        cl->ctl = c;
        c->n_clients++;
        LIST_INSERT_HEAD(&c->clients, cl, entry);
}

/* ---- start and end ------------------------------------------------------------------------- */

static void on_closed(uv_handle_t *h) {
        struct ctl *c = h->data;
        if (--c->n_open == 0)
                free(c);
}

int ctl_new(struct gateway *gw, int listen_fd, void (*first)(void *arg), void *arg, struct ctl **ret, struct error *err) {
        struct ctl *c = calloc(1, sizeof *c);
        int r = c ? uv_poll_init(gw->loop, &c->poll, listen_fd) : -ENOMEM;
        if (r < 0) {
                free(c);
                (void) fd_close(listen_fd);
                return error_errno(err, r, "ctl.sock");
        }
        c->gw = gw;
        c->first = first;
        c->first_arg = arg;
        c->fd = listen_fd;
        (void) uv_timer_init(gw->loop, &c->timer);
        (void) uv_timer_init(gw->loop, &c->names_timer);
        c->n_open = 3;
        c->poll.data = c->timer.data = c->names_timer.data = c;
        LIST_INIT(&c->clients);
        audit_queue_notify(gw->audit, on_record, c);
        (void) uv_poll_start(&c->poll, UV_READABLE, on_connection);
        *ret = c;
        return 0;
}

void ctl_free(struct ctl *c) {
        if (!c)
                return;
        while (!LIST_EMPTY(&c->clients))
                client_free(LIST_FIRST(&c->clients));
        audit_queue_notify(c->gw->audit, NULL, NULL);
        uv_poll_stop(&c->poll);
        c->fd = fd_close(c->fd);
        uv_close((uv_handle_t *) &c->poll, on_closed);
        uv_close((uv_handle_t *) &c->timer, on_closed);
        uv_close((uv_handle_t *) &c->names_timer, on_closed);
}
