/* SPDX-License-Identifier: Apache-2.0 */
#include "upstream.h"

#include <errno.h>
#include <openssl/err.h>
#include <openssl/x509v3.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/fd.h"
#include "base/str.h"
#include "io/stream_tls.h"

#define SWEEP_MS 5000

struct upstream_opening {
        struct gateway *gw;
        struct upstream_request req;
        struct host host;
        struct dial *dial;
        struct stream *tls; /* while it shakes hands */
        uv_timer_t timer;
        struct address address;
        upstream_cb cb;
        void *arg;
};

/* ---- opening ------------------------------------------------------------------------------- */

static void on_timer_closed(uv_handle_t *h) {
        free(h->data);
}

static void release(struct upstream_opening *o) {
        dial_cancel(STEAL(o->dial));
        stream_abort(STEAL(o->tls));
        uv_close((uv_handle_t *) &o->timer, on_timer_closed);
}

void upstream_open_cancel(struct upstream_opening *o) {
        if (o)
                release(o);
}

static void fail(struct upstream_opening *o, const struct upstream_failure *f) {
        upstream_cb cb = o->cb;
        void *arg = o->arg;
        struct upstream_failure copy = *f;
        if (!copy.address[0] && address_is_v4(&o->address))
                address_text(&o->address, copy.address);
        release(o);
        cb(arg, NULL, &copy);
}

static void fail_with(struct upstream_opening *o, enum policy_reason reason, const char *detail) {
        struct upstream_failure f = { .reason = reason, .verdict = o->req.allowed };
        (void) snprintf(f.detail, sizeof f.detail, "%s", detail);
        fail(o, &f);
}

static void done(struct upstream_opening *o, struct stream *s) {
        struct upstream *u = calloc(1, sizeof *u);
        if (u)
                u->parser = http1_parser_new(HTTP1_RESPONSES);
        if (!u || !u->parser) {
                free(u);
                stream_abort(s);
                fail_with(o, REASON_INTERNAL, "out of memory");
                return;
        }
        u->gw = o->gw;
        u->stream = s;
        u->host = o->host;
        u->port = o->req.port;
        u->protocol = o->req.protocol;
        u->http2 = o->req.http2;
        u->address = o->address;
        upstream_cb cb = o->cb;
        void *arg = o->arg;
        release(o);
        cb(arg, u, NULL);
}

static bool agreed_on_h2(const struct upstream_opening *o) {
        const unsigned char *name;
        unsigned n;
        SSL_get0_alpn_selected(stream_tls_ssl(o->tls), &name, &n);
        return n == 2 && memcmp(name, "h2", 2) == 0;
}

static void on_ready(void *arg, int err, const struct error *e) {
        struct upstream_opening *o = arg;
        /* A server says so by an alert, or by agreeing on nothing. */
        if (o->req.http2 && (err == 0 ? !agreed_on_h2(o) : strstr(e->msg, "no application protocol") != NULL)) {
                fail_with(o, REASON_CONNECT_FAILED, "the server does not speak HTTP/2");
                return;
        }
        if (err == 0) {
                done(o, STEAL(o->tls));
                return;
        }
        long v = SSL_get_verify_result(stream_tls_ssl(o->tls));
        struct upstream_failure f = { .reason = REASON_TLS_UPSTREAM, .verdict = o->req.allowed };
        if (v != X509_V_OK)
                (void) snprintf(f.detail, sizeof f.detail, "the server's certificate: %s", X509_verify_cert_error_string(v));
        else
                (void) snprintf(f.detail, sizeof f.detail, "%s", e->msg);
        fail(o, &f);
}

static void on_tls_timeout(uv_timer_t *t) {
        fail_with(t->data, REASON_TIMEOUT, "the server did not finish the TLS handshake");
}

/* Made when first wanted: it takes as long as all else at a start, and most sandboxes open no connection. */
static SSL_CTX *context(struct gateway *gw) {
        struct error e = ERROR_INIT;
        if (gw->upstream_ctx)
                return gw->upstream_ctx;
        SSL_CTX *ctx = SSL_CTX_new(TLS_client_method());
        if (!ctx || SSL_CTX_set_min_proto_version(ctx, TLS1_2_VERSION) != 1 || trust_use(gw->trust, ctx, &e) < 0) {
                SSL_CTX_free(ctx);
                return NULL;
        }
        SSL_CTX_set_verify(ctx, SSL_VERIFY_PEER, NULL);
        SSL_CTX_set_mode(ctx, SSL_MODE_RELEASE_BUFFERS);
        SSL_CTX_set_options(ctx, SSL_OP_NO_RENEGOTIATION);
        SSL_CTX_set_session_cache_mode(ctx, SSL_SESS_CACHE_OFF);
        gw->upstream_ctx = ctx;
        return ctx;
}

static SSL *new_ssl(const struct upstream_opening *o) {
        static const uint8_t http11[] = "\x08http/1.1", h2[] = "\x02h2";
        const uint8_t *offer = o->req.http2 ? h2 : http11;
        unsigned offer_n = o->req.http2 ? sizeof h2 - 1 : sizeof http11 - 1;
        SSL_CTX *ctx = context(o->gw);
        SSL *ssl = ctx ? SSL_new(ctx) : NULL;
        if (!ssl)
                return NULL;
        bool ok;
        SSL_set_hostflags(ssl, X509_CHECK_FLAG_NO_PARTIAL_WILDCARDS | X509_CHECK_FLAG_NEVER_CHECK_SUBJECT);
        if (o->host.kind == HOST_IPV4)
                ok = X509_VERIFY_PARAM_set1_ip_asc(SSL_get0_param(ssl), o->host.name) == 1;
        else
                ok = SSL_set1_host(ssl, o->host.name) == 1 &&
                     SSL_ctrl(ssl, SSL_CTRL_SET_TLSEXT_HOSTNAME, TLSEXT_NAMETYPE_host_name,
                              (void *) (uintptr_t) o->host.name) == 1; /* the macro for it casts const away */
        if (!ok || SSL_set_alpn_protos(ssl, offer, offer_n) != 0) {
                SSL_free(ssl);
                return NULL;
        }
        SSL_set_connect_state(ssl);
        return ssl;
}

static void on_dialled(void *arg, const struct dial_result *r) {
        struct upstream_opening *o = arg;
        struct stream *s = NULL;
        o->dial = NULL;
        if (r->fd < 0) {
                struct upstream_failure f = { .reason = r->reason, .verdict = r->reason == REASON_ADDRESS_REFUSED ||
                                                                                       r->reason == REASON_RULE
                                                                               ? r->verdict
                                                                               : o->req.allowed,
                                              .class = r->class };
                if (r->has_address)
                        address_text(&r->address, f.address);
                (void) snprintf(f.detail, sizeof f.detail, "%s", dial_detail(r));
                fail(o, &f);
                return;
        }
        o->address = r->address;
        if (stream_from_fd(o->gw->loop, r->fd, &s, NULL) < 0) {
                fail_with(o, REASON_INTERNAL, "no stream");
                return;
        }
        if (o->req.protocol != POLICY_TLS) {
                done(o, s);
                return;
        }
        SSL *ssl = new_ssl(o);
        if (!ssl) {
                ERR_clear_error();
                stream_abort(s);
                fail_with(o, REASON_INTERNAL, "no TLS");
                return;
        }
        if (stream_tls_new(s, ssl, on_ready, o, &o->tls, NULL) < 0) {
                fail_with(o, REASON_INTERNAL, "out of memory");
                return;
        }
        (void) uv_timer_start(&o->timer, on_tls_timeout, UPSTREAM_TLS_MS, 0);
        stream_tls_start(o->tls, NULL, 0);
}

int upstream_open(struct gateway *gw, const struct upstream_request *req, upstream_cb cb, void *arg,
                  struct upstream_opening **ret) {
        struct upstream_opening *o = calloc(1, sizeof *o);
        if (!o)
                return -ENOMEM;
        o->gw = gw;
        o->req = *req;
        o->host = *req->host;
        o->req.host = &o->host;
        o->cb = cb;
        o->arg = arg;
        (void) uv_timer_init(gw->loop, &o->timer);
        o->timer.data = o;
        struct dial_request d = {
                .loop = gw->loop,
                .resolver = gw->resolver,
                .policy = gw->policy,
                .own = gw->own,
                .allowed = req->allowed,
                .protocol = req->protocol,
                .host = o->host,
                .port = req->port,
        };
        int r = dial(&d, on_dialled, o, &o->dial);
        if (r < 0) {
                release(o);
                return r;
        }
        *ret = o;
        return 0;
}

/* ---- keeping ------------------------------------------------------------------------------- */

void upstream_close(struct upstream *u, bool abort) {
        if (!u)
                return;
        if (abort)
                stream_abort(u->stream);
        else
                stream_close(u->stream);
        http1_parser_free(u->parser);
        free(u);
}

static void forget(struct upstream *u) {
        TAILQ_REMOVE(&u->gw->idle, u, entry);
        if (--u->gw->n_idle == 0)
                uv_timer_stop(&u->gw->idle_timer);
}

static void drop(struct upstream *u) {
        forget(u);
        upstream_close(u, false);
}

/* Whatever happens on a connection that waits makes it useless: an end, an error, bytes nobody asked for. */
static void idle_data(void *arg, const uint8_t *data, size_t n) {
        (void) data;
        (void) n;
        drop(arg);
}
static void idle_eof(void *arg) {
        drop(arg);
}
static void idle_error(void *arg, int err) {
        (void) err;
        drop(arg);
}
static const struct stream_handler idle_handler = { .on_data = idle_data, .on_eof = idle_eof, .on_error = idle_error };

static void no_data(void *arg, const uint8_t *data, size_t n) {
        (void) arg;
        (void) data;
        (void) n;
}
static void no_eof(void *arg) {
        (void) arg;
}
static void no_error(void *arg, int err) {
        (void) arg;
        (void) err;
}
static const struct stream_handler no_handler = { .on_data = no_data, .on_eof = no_eof, .on_error = no_error };

static void on_sweep(uv_timer_t *t) {
        struct gateway *gw = t->data;
        struct upstream *u;
        while ((u = TAILQ_FIRST(&gw->idle)) && uv_now(gw->loop) - u->idle_since_ms >= UPSTREAM_IDLE_MS)
                drop(u);
}

static bool same_server(const struct upstream *a, const struct upstream *b) {
        return a->port == b->port && a->protocol == b->protocol && host_eq(&a->host, &b->host);
}

void upstream_keep(struct upstream *u) {
        struct gateway *gw = u->gw;
        struct upstream *other, *oldest = NULL;
        size_t same = 0;
        TAILQ_FOREACH(other, &gw->idle, entry)
                if (same_server(u, other) && same++ == 0)
                        oldest = other;
        if (same >= UPSTREAM_IDLE_PER_HOST)
                drop(oldest);
        else if (gw->n_idle >= UPSTREAM_IDLE_MAX)
                drop(TAILQ_FIRST(&gw->idle));
        u->idle_since_ms = uv_now(gw->loop);
        TAILQ_INSERT_TAIL(&gw->idle, u, entry);
        if (gw->n_idle++ == 0)
                (void) uv_timer_start(&gw->idle_timer, on_sweep, SWEEP_MS, SWEEP_MS);
        stream_set_handler(u->stream, &idle_handler, u);
        stream_read_start(u->stream);
}

bool upstream_fits(const struct upstream *u, const struct upstream_request *req) {
        if (u->port != req->port || u->protocol != req->protocol || u->http2 != req->http2 || !host_eq(&u->host, req->host))
                return false;
        struct policy_verdict v = policy_address(u->gw->policy, &req->allowed, &u->address, req->port, req->protocol,
                                                 u->gw->own, NULL);
        return v.outcome == POLICY_ALLOW;
}

struct upstream *upstream_take(struct gateway *gw, const struct upstream_request *req) {
        struct upstream *u;
        TAILQ_FOREACH_REVERSE(u, &gw->idle, upstream_list, entry)
                if (upstream_fits(u, req)) {
                        forget(u);
                        stream_read_stop(u->stream);
                        stream_set_handler(u->stream, &no_handler, NULL);
                        return u;
                }
        return NULL;
}

void upstream_drop_idle(struct gateway *gw) {
        while (!TAILQ_EMPTY(&gw->idle))
                drop(TAILQ_FIRST(&gw->idle));
}

void upstream_init(struct gateway *gw) {
        TAILQ_INIT(&gw->idle);
        (void) uv_timer_init(gw->loop, &gw->idle_timer);
        gw->idle_timer.data = gw;
}
