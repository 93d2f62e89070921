/* SPDX-License-Identifier: Apache-2.0 */

/*
 *   DETECT   bytes are read until they say what is spoken (skipped where only one answer is possible)
 *   DIAL     the policy allows bytes; the server is being connected to
 *   RELAY    bytes go both ways
 *   TLS      handshake with the guest, in the server's place
 *   HTTP     requests are judged one by one
 *
 * A connection may move from each state to the next ones only, and to its end from all.
 */

#include "conn.h"

#include <errno.h>
#include <linux/netfilter_ipv4.h>
#include <netinet/in.h>
#include <openssl/err.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "audit_queue.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "base/fd.h"
#include "base/str.h"
#include "dial.h"
#include "dns/dns_names.h"
#include "h2.h"
#include "http.h"
#include "io/stream_tls.h"
#include "usage.h"
#include "wire/client_hello.h"
#include "wire/http1.h"

enum state { ST_DETECT, ST_DIAL, ST_RELAY, ST_TLS, ST_HTTP, ST_OVER };

/* The poll handle of DETECT; it outlives its connection by a turn of the loop. */
struct detect {
        uv_poll_t poll;
        struct conn *c;
};

struct conn {
        TAILQ_ENTRY(conn) entry;
        struct gateway *gw;
        enum state state;
        int fd; /* until a stream or a relay takes it */
        struct in_addr dst;
        bool holds_name;
        bool counted;
        bool hidden; /* the ClientHello may hold another one, encrypted (ECH) */
        struct host host;
        uint16_t port;
        enum policy_protocol protocol;
        struct policy_verdict verdict; /* rule_name is audit.rule */
        unsigned protocols;            /* in DETECT: what could be allowed */
        struct detect *detect;
        struct buf first;
        struct client_hello_parser *hello;
        size_t hello_at;               /* of first, fed to the parser */
        uv_timer_t timer;
        struct dial *dial;
        struct relay *relay;
        struct stream *tls;
        struct http *http;
        struct h2 *h2; /* one of the two */
        struct audit audit;
        uint64_t start_us;
};

/* ---- end ----------------------------------------------------------------------------------- */

static void on_detect_closed(uv_handle_t *h) {
        free(h->data);
}

static void stop_detecting(struct conn *c) {
        struct detect *d = STEAL(c->detect);
        if (!d)
                return;
        uv_poll_stop(&d->poll);
        uv_close((uv_handle_t *) &d->poll, on_detect_closed);
}

static void on_timer_closed(uv_handle_t *h) {
        free(h->data);
}

static void reset(int fd) {
        const struct linger l = { .l_onoff = 1, .l_linger = 0 };
        if (fd >= 0)
                (void) setsockopt(fd, SOL_SOCKET, SO_LINGER, &l, sizeof l);
        (void) fd_close(fd);
}

static void record(struct conn *c) {
        uint64_t out, in;
        if (c->http || c->h2) {
                if (c->http)
                        http_bytes(c->http, &out, &in);
                else
                        h2_bytes(c->h2, &out, &in);
                c->audit.bytes_out = out;
                c->audit.bytes_in = in;
        }
        c->audit.duration_us = clock_mono_us() - c->start_us;
        c->audit.protocol = c->protocol;
        audit_queue_add(c->gw->audit, &c->audit);
}

/* Everything the connection has ends with a reset; what has ended by itself is not there any more. */
static void release(struct conn *c) {
        struct gateway *gw = c->gw;
        record(c);
        c->state = ST_OVER;
        stop_detecting(c);
        reset(fd_steal(&c->fd));
        dial_cancel(STEAL(c->dial));
        relay_abort(STEAL(c->relay));
        stream_abort(STEAL(c->tls));
        http_abort(STEAL(c->http));
        h2_abort(STEAL(c->h2));
        client_hello_parser_free(STEAL(c->hello));
        buf_done(&c->first);
        if (c->holds_name)
                dns_names_release(gw->names, c->dst);
        if (c->counted)
                usage_close(gw->usage, c->verdict.rule);
        TAILQ_REMOVE(&gw->conns, c, entry);
        gw->n_conns--;
        uv_close((uv_handle_t *) &c->timer, on_timer_closed);
}

static void deny(struct conn *c, enum policy_reason reason, const char *detail) {
        audit_deny(&c->audit, reason);
        if (detail)
                audit_set_detail(&c->audit, "%s", detail);
        release(c);
}

/* The world outside failed, not the policy. */
static void fail(struct conn *c, enum policy_reason reason, const char *detail) {
        c->audit.reason = reason;
        audit_set_detail(&c->audit, "%s", detail);
        release(c);
}

static bool adopt_verdict(struct conn *c, const struct policy_verdict *v) {
        audit_verdict(&c->audit, v);
        c->verdict = *v;
        c->verdict.rule_name = c->audit.rule;
        return v->outcome != POLICY_DENY;
}

/* ---- bytes --------------------------------------------------------------------------------- */

static bool relay_bytes(void *arg, enum relay_side from, size_t n) {
        struct conn *c = arg;
        uint64_t out = from == RELAY_GUEST ? n : 0, in = from == RELAY_UPSTREAM ? n : 0;
        c->audit.bytes_out += out;
        c->audit.bytes_in += in;
        return usage_bytes(c->gw->usage, c->verdict.rule, out, in);
}

static void relay_end(void *arg, int err) {
        struct conn *c = arg;
        c->relay = NULL;
        if (err == -EDQUOT)
                deny(c, REASON_LIMIT_BYTES, NULL);
        else if (err == -ETIMEDOUT)
                fail(c, REASON_TIMEOUT, "idle for too long");
        else {
                if (err)
                        audit_set_detail(&c->audit, "%s", strerror(-err));
                release(c);
        }
}

static const struct relay_handler relay_handler = { .on_bytes = relay_bytes, .on_end = relay_end };

static void on_dialled(void *arg, const struct dial_result *r) {
        struct conn *c = arg;
        c->dial = NULL;
        if (r->has_address)
                address_text(&r->address, c->audit.address);
        c->audit.class = r->class;
        if (r->fd < 0 && r->has_address && r->verdict.outcome != POLICY_ALLOW) {
                audit_verdict(&c->audit, &r->verdict);
                deny(c, r->reason, NULL);
                return;
        }
        if (r->fd < 0) {
                fail(c, r->reason, dial_detail(r));
                return;
        }
        int e = relay_new(c->gw->loop, &c->gw->pipes, fd_steal(&c->fd), r->fd, buf_data(&c->first), c->first.len, &relay_handler,
                          c, &c->relay);
        buf_done(&c->first);
        if (e < 0)
                fail(c, REASON_INTERNAL, strerror(-e));
        else
                c->state = ST_RELAY;
}

static void begin_dial(struct conn *c) {
        struct dial_request d = {
                .loop = c->gw->loop,
                .resolver = c->gw->resolver,
                .policy = c->gw->policy,
                .own = c->gw->own,
                .allowed = c->verdict,
                .protocol = c->protocol,
                .host = c->host,
                .port = c->port,
        };
        c->state = ST_DIAL;
        uv_timer_stop(&c->timer);
        if (dial(&d, on_dialled, c, &c->dial) < 0)
                fail(c, REASON_INTERNAL, "out of memory");
}

/* ---- HTTP and TLS -------------------------------------------------------------------------- */

static void http_ended(void *arg) {
        struct conn *c = arg;
        uint64_t out, in;
        http_bytes(c->http, &out, &in);
        c->audit.bytes_out = out;
        c->audit.bytes_in = in;
        c->http = NULL;
        release(c);
}

static void h2_ended(void *arg) {
        struct conn *c = arg;
        h2_bytes(c->h2, &c->audit.bytes_out, &c->audit.bytes_in);
        c->h2 = NULL;
        release(c);
}

static void begin_h2(struct conn *c, struct stream *s) {
        struct http_peer peer = { .host = c->host, .port = c->port, .protocol = c->protocol };
        uv_timer_stop(&c->timer);
        if (h2_new(c->gw, &peer, s, h2_ended, c, &c->h2) < 0) {
                fail(c, REASON_INTERNAL, "out of memory");
                return;
        }
        c->state = ST_HTTP;
        h2_start(c->h2); /* may end it, and c */
}

static void begin_http(struct conn *c, struct stream *s) {
        struct http_peer peer = { .host = c->host, .port = c->port, .protocol = c->protocol };
        int e = http_new(c->gw, &peer, s, c->protocol == POLICY_HTTP ? buf_data(&c->first) : NULL,
                         c->protocol == POLICY_HTTP ? c->first.len : 0, http_ended, c, &c->http);
        buf_done(&c->first);
        uv_timer_stop(&c->timer);
        if (e < 0) {
                fail(c, REASON_INTERNAL, "out of memory");
                return;
        }
        c->state = ST_HTTP;
        http_start(c->http); /* may end it, and c */
}

static void tls_ready(void *arg, int err, const struct error *e) {
        struct conn *c = arg;
        const unsigned char *name = NULL;
        unsigned n = 0;
        if (err == 0)
                SSL_get0_alpn_selected(stream_tls_ssl(c->tls), &name, &n);
        if (err == 0 && n == 2)
                begin_h2(c, STEAL(c->tls));
        else if (err == 0)
                begin_http(c, STEAL(c->tls));
        else {
                stream_close(STEAL(c->tls)); /* not reset: the alert says what is wrong */
                deny(c, REASON_TLS_MALFORMED, e->msg);
        }
}

static int choose_protocol(SSL *ssl, const unsigned char **out, unsigned char *out_n, const unsigned char *in, unsigned in_n,
                           void *arg) {
        /* In this order: what a guest speaks besides HTTP/1.1 it need not speak here. */
        static const unsigned char spoken[] = "\x08http/1.1\x02h2";
        unsigned char *chosen;
        (void) ssl;
        (void) arg;
        if (SSL_select_next_proto(&chosen, out_n, spoken, sizeof spoken - 1, in, in_n) != OPENSSL_NPN_NEGOTIATED)
                return SSL_TLSEXT_ERR_ALERT_FATAL;
        *out = chosen;
        return SSL_TLSEXT_ERR_OK;
}

/* As upstream.c's: when first wanted. */
static SSL_CTX *guest_context(struct gateway *gw) {
        if (gw->guest_ctx)
                return gw->guest_ctx;
        SSL_CTX *ctx = SSL_CTX_new(TLS_server_method());
        if (!ctx || SSL_CTX_set_min_proto_version(ctx, TLS1_2_VERSION) != 1) {
                SSL_CTX_free(ctx);
                return NULL;
        }
        SSL_CTX_set_mode(ctx, SSL_MODE_RELEASE_BUFFERS);
        SSL_CTX_set_options(ctx, SSL_OP_NO_RENEGOTIATION | SSL_OP_CIPHER_SERVER_PREFERENCE);
        SSL_CTX_set_session_cache_mode(ctx, SSL_SESS_CACHE_OFF);
        (void) SSL_CTX_set_num_tickets(ctx, 1);
        SSL_CTX_set_alpn_select_cb(ctx, choose_protocol, NULL);
        gw->guest_ctx = ctx;
        return ctx;
}

static void on_timer(uv_timer_t *t);

static void begin_tls(struct conn *c) {
        struct error e = ERROR_INIT;
        struct stream *inner;
        SSL_CTX *ctx = guest_context(c->gw);
        SSL *ssl = ctx ? SSL_new(ctx) : NULL;
        if (!ssl || ca_use_leaf(c->gw->ca, c->host.name, ssl, &e) < 0) {
                SSL_free(ssl);
                fail(c, REASON_INTERNAL, e.msg);
                return;
        }
        SSL_set_accept_state(ssl);
        if (stream_from_fd(c->gw->loop, fd_steal(&c->fd), &inner, &e) < 0) {
                SSL_free(ssl);
                fail(c, REASON_INTERNAL, e.msg);
                return;
        }
        if (stream_tls_new(inner, ssl, tls_ready, c, &c->tls, &e) < 0) {
                fail(c, REASON_INTERNAL, e.msg);
                return;
        }
        c->state = ST_TLS;
        (void) uv_timer_start(&c->timer, on_timer, CONN_TLS_MS, 0); /* what ran was for the first bytes */
        struct buf first = c->first; /* c may be gone when the start returns */
        c->first = (struct buf){ .max = CONN_FIRST_MAX };
        stream_tls_start(c->tls, buf_data(&first), first.len);
        buf_done(&first);
}

/* ---- the verdict --------------------------------------------------------------------------- */

static void decide(struct conn *c, enum policy_protocol protocol) {
        c->protocol = protocol;
        struct policy_verdict v = policy_connect(c->gw->policy, &c->host, c->port, protocol);
        stop_detecting(c);
        if (!adopt_verdict(c, &v)) {
                deny(c, v.reason, NULL);
                return;
        }
        /* Where TLS ends here, ECH ends too: the name outside is what is served, and browsers that only grease the
         * extension go on. Passed through, a name would reach the server that nobody has judged. */
        if (c->hidden && v.outcome == POLICY_ALLOW) {
                deny(c, REASON_TLS_ECH, NULL);
                return;
        }
        c->counted = usage_open(c->gw->usage, v.rule);
        if (!c->counted) {
                deny(c, REASON_LIMIT_CONNECTIONS, NULL);
                return;
        }
        if (protocol == POLICY_HTTP) {
                struct stream *s;
                if (stream_from_fd(c->gw->loop, fd_steal(&c->fd), &s, NULL) < 0)
                        fail(c, REASON_INTERNAL, "no stream");
                else
                        begin_http(c, s);
        } else if (protocol == POLICY_TLS && v.outcome == POLICY_ASK)
                begin_tls(c);
        else
                begin_dial(c);
}

/* The name asked for must be the name behind the address, also where nobody looks inside afterwards. */
static void judge_hello(struct conn *c, const struct client_hello *h) {
        c->protocol = POLICY_TLS;
        c->hidden = h->encrypted;
        if (c->host.kind == HOST_NAME && !h->name[0])
                deny(c, REASON_TLS_NO_SNI, NULL);
        else if (h->name[0] && strcmp(h->name, c->host.name) != 0)
                deny(c, REASON_HOST_MISMATCH, h->name);
        else
                decide(c, POLICY_TLS);
}

static void read_hello(struct conn *c) {
        struct client_hello h;
        const char *why;
        if (!c->hello) {
                c->hello = client_hello_parser_new();
                if (!c->hello) {
                        fail(c, REASON_INTERNAL, "out of memory");
                        return;
                }
                (void) uv_timer_start(&c->timer, on_timer, CONN_DETECT_MS, 0); /* TLS it is, if slowly; once, for all of it */
        }
        const uint8_t *at = buf_data(&c->first) + c->hello_at;
        size_t n = c->first.len - c->hello_at;
        c->hello_at = c->first.len;
        switch (client_hello_feed(c->hello, at, n, &h, &why)) {
        case CLIENT_HELLO_DONE:
                client_hello_parser_free(STEAL(c->hello));
                judge_hello(c, &h);
                break;
        case CLIENT_HELLO_ERROR:
                c->protocol = POLICY_TLS;
                deny(c, REASON_TLS_MALFORMED, why);
                break;
        case CLIENT_HELLO_MORE:
        default:
                break;
        }
}

/* "TOKEN " is the beginning of a request line: 1, 0, or -1 for too few bytes. */
static int looks_like_http(const uint8_t *d, size_t n) {
        for (size_t i = 0; i < n; i++) {
                if (d[i] == ' ')
                        return i > 0;
                if (i >= POLICY_METHOD_MAX || !http1_is_token((const char *) d + i, 1))
                        return 0;
        }
        return -1;
}

static void look(struct conn *c) {
        const uint8_t *d = buf_data(&c->first);
        int tls = client_hello_is_tls(d, c->first.len);
        if (tls > 0) {
                if (c->protocols & POLICY_TLS)
                        read_hello(c);
                else /* the verdict names the rule; where bytes are allowed it lets TLS pass as such */
                        decide(c, c->protocols & POLICY_TCP ? POLICY_TCP : POLICY_TLS);
                return;
        }
        int http = tls < 0 ? -1 : looks_like_http(d, c->first.len);
        if (http < 0)
                return;
        if (http && (c->protocols & POLICY_HTTP))
                decide(c, POLICY_HTTP);
        else if (c->protocols & POLICY_TCP)
                decide(c, POLICY_TCP);
        else
                decide(c, http || (c->protocols & POLICY_HTTP) ? POLICY_HTTP : POLICY_TCP);
}

static void on_readable(uv_poll_t *p, int status, int events) {
        struct conn *c = ((struct detect *) p->data)->c;
        uint8_t d[CONN_FIRST_MAX];
        (void) status;
        (void) events;
        size_t room = CONN_FIRST_MAX - c->first.len;
        ssize_t n = recv(c->fd, d, room, MSG_DONTWAIT);
        if (n < 0 && (errno == EAGAIN || errno == EINTR))
                return;
        if (n <= 0) {
                audit_set_detail(&c->audit, "closed before it said what it is");
                release(c);
                return;
        }
        if (buf_append(&c->first, d, (size_t) n) < 0) {
                fail(c, REASON_INTERNAL, "out of memory");
                return;
        }
        look(c);
}

static void on_timer(uv_timer_t *t) {
        struct conn *c = t->data;
        if (c->state == ST_DETECT && c->protocols & POLICY_TCP && !c->hello)
                decide(c, POLICY_TCP);
        else
                deny(c, REASON_TIMEOUT, c->state == ST_TLS ? "the TLS handshake did not end" : "nothing was sent");
}

/* ---- accept -------------------------------------------------------------------------------- */

static int find_host(struct conn *c) {
        struct sockaddr_in dst, own = { .sin_family = AF_UNSPEC };
        socklen_t len = sizeof own;
        (void) getsockname(c->fd, (struct sockaddr *) &own, &len);
        len = sizeof dst;
        /* Not redirected, or to where it was redirected: it was opened to the gateway itself. */
        bool loop = getsockopt(c->fd, SOL_IP, SO_ORIGINAL_DST, &dst, &len) < 0 || dst.sin_family != AF_INET ||
                    (own.sin_addr.s_addr == dst.sin_addr.s_addr && own.sin_port == dst.sin_port);
        if (loop && own.sin_family != AF_INET)
                return REASON_LOOP;
        if (loop)
                dst = own;
        c->dst = dst.sin_addr;
        c->port = ntohs(dst.sin_port);
        c->audit.port = c->port;
        host_of_addr(dst.sin_addr, &c->host);
        audit_set_host(&c->audit, c->host.name, strlen(c->host.name));
        if (loop)
                return REASON_LOOP;
        if (!dns_names_in_range(dst.sin_addr))
                return -1;
        const char *name = dns_names_lookup(c->gw->names, dst.sin_addr);
        if (!name || host_parse(name, strlen(name), &c->host, NULL) < 0)
                return REASON_ADDRESS_UNKNOWN;
        audit_set_host(&c->audit, name, strlen(name));
        c->holds_name = dns_names_hold(c->gw->names, dst.sin_addr);
        return -1;
}

static int begin_detect(struct conn *c) {
        struct detect *d = calloc(1, sizeof *d);
        if (!d)
                return -ENOMEM;
        int e = uv_poll_init(c->gw->loop, &d->poll, c->fd);
        if (e < 0) {
                free(d);
                return e;
        }
        d->poll.data = d;
        d->c = c;
        c->detect = d;
        (void) uv_timer_start(&c->timer, on_timer, c->protocols & POLICY_TCP ? CONN_DETECT_TCP_MS : CONN_DETECT_MS, 0);
        return uv_poll_start(&d->poll, UV_READABLE, on_readable);
}

static void judge_new(struct conn *c) {
        int reason = find_host(c);
        if (!c->gw->configured)
                reason = REASON_NO_POLICY;
        else if (reason < 0 && c->gw->n_conns > GATEWAY_CONNECTIONS_MAX)
                reason = REASON_LIMIT_CONNECTIONS;
        if (reason >= 0) {
                deny(c, (enum policy_reason) reason, NULL);
                return;
        }
        struct policy_verdict v = policy_connect(c->gw->policy, &c->host, c->port, POLICY_UNKNOWN);
        if (!adopt_verdict(c, &v)) {
                deny(c, v.reason, NULL);
                return;
        }
        c->protocols = v.protocols;
        if (v.protocols == POLICY_TCP)
                decide(c, POLICY_TCP); /* the server may be the first to speak */
        else if (begin_detect(c) < 0)
                fail(c, REASON_INTERNAL, "out of memory");
}

void conn_accept(struct gateway *gw, int fd) {
        struct conn *c = calloc(1, sizeof *c);
        if (!c) {
                reset(fd);
                return;
        }
        c->gw = gw;
        c->fd = fd;
        c->first = BUF_INIT(CONN_FIRST_MAX);
        c->start_us = clock_mono_us();
        c->verdict.rule = -1;
        audit_init(&c->audit, AUDIT_CONNECT, clock_real_ms(), gw->sandbox);
        (void) str_copy(c->audit.rule, sizeof c->audit.rule, "default");
        (void) uv_timer_init(gw->loop, &c->timer);
        c->timer.data = c;
        TAILQ_INSERT_TAIL(&gw->conns, c, entry);
        gw->n_conns++;
        judge_new(c);
}

/* ---- all of them --------------------------------------------------------------------------- */

static void reconsider(struct conn *c) {
        if (c->state == ST_DETECT || c->state == ST_OVER)
                return; /* the verdict is still to come */
        struct policy_verdict v = policy_connect(c->gw->policy, &c->host, c->port, c->protocol);
        bool bytes = c->state == ST_DIAL || c->state == ST_RELAY;
        bool same_kind = v.outcome == (bytes ? POLICY_ALLOW : POLICY_ASK);
        if (v.outcome == POLICY_DENY || !same_kind) {
                c->counted = false;
                deny(c, REASON_REVOKED, NULL);
                return;
        }
        (void) adopt_verdict(c, &v);
        c->counted = usage_open(c->gw->usage, v.rule); /* over a new limit it goes on, uncounted */
        if (c->state == ST_DIAL) {
                dial_cancel(STEAL(c->dial)); /* it would judge addresses by the old policy */
                begin_dial(c);
        } else if (c->state == ST_HTTP && c->http)
                (void) http_reconsider(c->http);
        else if (c->state == ST_HTTP)
                h2_reconsider(c->h2);
}

void conn_reconsider_all(struct gateway *gw) {
        struct conn *c = TAILQ_FIRST(&gw->conns), *next;
        for (; c; c = next) {
                next = TAILQ_NEXT(c, entry);
                reconsider(c);
        }
}

void conn_abort_all(struct gateway *gw) {
        struct conn *c;
        while ((c = TAILQ_FIRST(&gw->conns)))
                release(c);
}
