/* SPDX-License-Identifier: Apache-2.0 */
#include "dns_io.h"

#include <errno.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "audit_queue.h"
#include "base/buf.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "base/fd.h"
#include "base/str.h"
#include "dns/dns_server.h"
#include "io/stream.h"

struct client {
        LIST_ENTRY(client) entry;
        struct dns_io *d;
        struct stream *s;
        struct buf in;
        uv_timer_t timer;
};

struct dns_io {
        struct gateway *gw;
        struct dns_server *server;
        uv_poll_t udp;
        int udp_fd;
        struct listener *listener;
        LIST_HEAD(, client) clients;
        size_t n_clients;
};

static size_t answer(struct dns_io *d, const uint8_t *query, size_t n, enum dns_transport transport,
                     uint8_t out[DNS_ANSWER_MAX]) {
        struct dns_result r;
        dns_server_answer(d->server, d->gw->policy, query, n, transport, uv_now(d->gw->loop), clock_real_ms(), out, &r);
        if (r.record) {
                (void) str_copy(r.audit.sandbox, sizeof r.audit.sandbox, d->gw->sandbox);
                audit_queue_add(d->gw->audit, &r.audit);
        }
        return r.n;
}

static void on_datagram(uv_poll_t *h, int status, int events) {
        struct dns_io *d = h->data;
        uint8_t query[DNS_QUERY_MAX + 1], out[DNS_ANSWER_MAX]; /* one byte more shows what is too long */
        (void) status;
        (void) events;
        for (int i = 0; i < DNS_IO_BATCH; i++) {
                struct sockaddr_in from;
                socklen_t len = sizeof from;
                ssize_t n = recvfrom(d->udp_fd, query, sizeof query, MSG_DONTWAIT, (struct sockaddr *) &from, &len);
                if (n < 0)
                        return;
                size_t w = answer(d, query, (size_t) n, DNS_UDP, out);
                if (w > 0)
                        (void) sendto(d->udp_fd, out, w, MSG_DONTWAIT, (const struct sockaddr *) &from, len);
        }
}

/* ---- TCP ----------------------------------------------------------------------------------- */

static void on_timer_closed(uv_handle_t *h) {
        free(h->data);
}

static void client_end(struct client *cl) {
        LIST_REMOVE(cl, entry);
        cl->d->n_clients--;
        stream_close(STEAL(cl->s));
        buf_done(&cl->in);
        uv_close((uv_handle_t *) &cl->timer, on_timer_closed);
}

static void on_idle(uv_timer_t *t) {
        client_end(t->data);
}

/* False: cl is gone. */
static bool answer_all(struct client *cl) {
        const uint8_t *msg;
        size_t msg_n;
        int r;
        while ((r = dns_tcp_next(&cl->in, &msg, &msg_n)) > 0) {
                uint8_t out[DNS_ANSWER_MAX];
                struct buf framed = BUF_INIT(DNS_ANSWER_MAX + 2);
                size_t w = answer(cl->d, msg, msg_n, DNS_TCP, out);
                int e = w > 0 ? dns_tcp_put(&framed, out, w) : 0;
                if (e == 0 && framed.len > 0)
                        e = stream_write(cl->s, buf_data(&framed), framed.len);
                buf_done(&framed);
                dns_tcp_consume(&cl->in);
                if (e < 0)
                        break;
        }
        if (r != 0)
                client_end(cl);
        return r == 0;
}

static void client_data(void *arg, const uint8_t *data, size_t n) {
        struct client *cl = arg;
        (void) uv_timer_start(&cl->timer, on_idle, DNS_IO_IDLE_MS, 0);
        while (n > 0) {
                size_t part = n < DNS_QUERY_MAX ? n : DNS_QUERY_MAX;
                /* A guest that does not read its answers gets no more of them. */
                if (stream_queued(cl->s) > STREAM_HIGH_WATER || buf_append(&cl->in, data, part) < 0) {
                        client_end(cl);
                        return;
                }
                if (!answer_all(cl))
                        return;
                data += part;
                n -= part;
        }
}

static void client_eof(void *arg) {
        client_end(arg);
}

static void client_error(void *arg, int err) {
        (void) err;
        client_end(arg);
}

static const struct stream_handler client_handler = { .on_data = client_data, .on_eof = client_eof, .on_error = client_error };

static void on_client(void *arg, struct stream *s, int fd) {
        struct dns_io *d = arg;
        struct client *cl = d->n_clients < DNS_IO_CLIENTS_MAX ? calloc(1, sizeof *cl) : NULL;
        (void) fd;
        if (!cl) {
                stream_abort(s);
                return;
        }
        cl->d = d;
        cl->s = s;
        cl->in = BUF_INIT(DNS_TCP_BUFFER);
        (void) uv_timer_init(d->gw->loop, &cl->timer);
        cl->timer.data = cl;
        (void) uv_timer_start(&cl->timer, on_idle, DNS_IO_IDLE_MS, 0);
        LIST_INSERT_HEAD(&d->clients, cl, entry);
        d->n_clients++;
        stream_set_handler(s, &client_handler, cl);
        stream_read_start(s);
}

/* ---- start and end ------------------------------------------------------------------------- */

static void on_udp_closed(uv_handle_t *h) {
        free(h->data);
}

int dns_io_new(struct gateway *gw, int udp, int tcp, struct dns_io **ret, struct error *err) {
        _cleanup_fd_ int udp_fd = udp, tcp_fd = tcp;
        uint64_t seed;
        struct dns_io *d = calloc(1, sizeof *d);
        if (!d || random_bytes(&seed, sizeof seed) < 0 || dns_server_new(gw->names, seed, &d->server) < 0) {
                free(d);
                return error_set(err, -ENOMEM, "out of memory");
        }
        int r = uv_poll_init(gw->loop, &d->udp, udp_fd);
        if (r < 0) {
                dns_server_free(d->server);
                free(d);
                return error_errno(err, r, "descriptor of the DNS socket");
        }
        d->gw = gw;
        d->udp_fd = fd_steal(&udp_fd);
        d->udp.data = d;
        LIST_INIT(&d->clients);
        (void) uv_poll_start(&d->udp, UV_READABLE, on_datagram);
        r = listener_new(gw->loop, fd_steal(&tcp_fd), on_client, d, &d->listener, err);
        if (r < 0) {
                dns_io_free(d);
                return r;
        }
        *ret = d;
        return 0;
}

void dns_io_free(struct dns_io *d) {
        if (!d)
                return;
        while (!LIST_EMPTY(&d->clients))
                client_end(LIST_FIRST(&d->clients));
        listener_free(d->listener);
        dns_server_free(d->server);
        uv_close((uv_handle_t *) &d->udp, on_udp_closed);
        d->udp_fd = fd_close(d->udp_fd);
}
