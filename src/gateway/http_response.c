/* SPDX-License-Identifier: Apache-2.0 */

/* Upstream's side: responses on their way to the guest, and what becomes of the connection. */

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "base/cleanup.h"
#include "base/str.h"
#include "http_head.h"
#include "http_internal.h"
#include "io/stream_tls.h"

/* ---- attaching ----------------------------------------------------------------------------- */

static const struct stream_handler up_handler;

void http_attach(struct http *h, struct upstream *u) {
        h->up = u;
        h->up_keep = false;
        h->state = HTTP_EXCHANGE;
        stream_set_handler(u->stream, &up_handler, h);
        if (!http_count(h, h->x.head.len, 0))
                return;
        h->x.send_failed = stream_write(u->stream, buf_data(&h->x.head), h->x.head.len) < 0;
        stream_read_start(u->stream);
}

void http_detach(struct http *h, bool keep) {
        struct upstream *u = STEAL(h->up);
        h->up_keep = false;
        if (!u)
                return;
        if (keep)
                upstream_keep(u);
        else
                upstream_close(u, true);
}

static void on_opened(void *arg, struct upstream *u, const struct upstream_failure *f) {
        struct http *h = arg;
        h->opening = NULL;
        if (!u) {
                struct refusal r = { .reason = f->reason, .rule = f->verdict.rule_name, .host = h->peer.host.name,
                                     .port = h->peer.port, .detail = f->detail[0] ? f->detail : NULL };
                (void) str_copy(h->x.x.audit.address, sizeof h->x.x.audit.address, f->address);
                h->x.x.audit.class = f->class;
                http_refuse(h, &r);
        } else
                http_attach(h, u);
        http_run(h);
}

int http_open(struct http *h) {
        struct upstream_request req = { .allowed = h->x.x.verdict, .host = &h->peer.host, .port = h->peer.port,
                                        .protocol = h->peer.protocol };
        h->state = HTTP_OPENING;
        return upstream_open(h->gw, &req, on_opened, h, &h->opening);
}

/* ---- what goes wrong ----------------------------------------------------------------------- */

static void fail(struct http *h, const char *detail) {
        struct refusal r = { .reason = REASON_CONNECT_FAILED, .rule = h->x.x.audit.rule, .host = h->peer.host.name,
                             .port = h->peer.port, .detail = detail };
        if (!h->x.answer_began)
                http_detach(h, false);
        http_refuse(h, &r);
        http_run(h);
}

/* The connection ended before the answer did. */
static void cut(struct http *h, const char *detail) {
        bool was_used = h->up->used && h->x.interim == 0;
        if (h->x.answer_began || !was_used) {
                fail(h, detail);
                return;
        }
        /* It had served before, and its server may have closed it just when the request was sent. */
        http_detach(h, false);
        if (h->x.idempotent && !h->x.x.has_body && !h->x.retried) {
                h->x.retried = true;
                if (http_open(h) == 0)
                        return;
        }
        http_record(h, true, REASON_CONNECT_FAILED, detail);
        http_end(h, true); /* as the guest would see it without us; it knows whether to send again */
}

/* ---- a response ---------------------------------------------------------------------------- */

static bool skip_field(void *arg, const struct http1_field *f) {
        (void) arg;
        return strcasecmp(f->name, "alt-svc") == 0; /* other ways to the host, around us */
}

/* The strings are the parser's own and nobody else's; what is put in has the same length. */
static void mask_head(const struct mask *m, const struct http1_head *head) {
        if (!m)
                return;
        mask_text(m, (char *) (uintptr_t) head->reason, strlen(head->reason));
        for (size_t i = 0; i < head->n_fields; i++) {
                mask_text(m, (char *) (uintptr_t) head->fields[i].name, strlen(head->fields[i].name));
                mask_text(m, (char *) (uintptr_t) head->fields[i].value, strlen(head->fields[i].value));
        }
}

static int write_status(struct buf *out, const struct http1_head *head) {
        return buf_printf(out, "HTTP/1.1 %d %s\r\n", head->status, head->reason);
}

static int send_head(struct http *h, struct buf *out) {
        int r = http1_write_end_of_head(out);
        if (r == 0)
                r = stream_write(h->guest, buf_data(out), out->len);
        return r;
}

static void pass_interim(struct http *h, const struct http1_head *head) {
        _cleanup_buf_ struct buf out = BUF_INIT(2 * LIMIT_HTTP_HEAD);
        if (++h->x.interim > HTTP_INTERIM_MAX) {
                fail(h, "too many interim responses");
                return;
        }
        if (h->x.minor0 || (head->status == 100 && !h->x.expects))
                return;
        if (write_status(&out, head) < 0 || head_forward_fields(&out, head, skip_field, NULL) < 0 || send_head(h, &out) < 0)
                http_end(h, true);
}

static void pass_head(struct http *h, const struct http1_head *head) {
        _cleanup_buf_ struct buf out = BUF_INIT(2 * LIMIT_HTTP_HEAD);
        struct http_exchange *x = &h->x;
        bool no_body = x->is_head || head->status == 204 || head->status == 304;
        bool by_length = no_body || head->content_length >= 0;
        if (x->is_head)
                http1_parser_no_body(h->up->parser);
        x->x.audit.status = (uint16_t) head->status;
        x->answer_chunked = !by_length && !x->minor0;
        if (!by_length && x->minor0)
                x->keep_alive = false; /* the end of the connection ends it */
        h->up_keep = head->keep_alive && (by_length || head->chunked);
        int r = write_status(&out, head);
        if (r == 0)
                r = head_forward_fields(&out, head, skip_field, NULL);
        if (r == 0 && head->content_length >= 0)
                r = buf_printf(&out, "Content-Length: %lld\r\n", (long long) head->content_length);
        if (r == 0 && x->answer_chunked)
                r = buf_puts(&out, "Transfer-Encoding: chunked\r\n");
        if (r == 0 && !x->keep_alive)
                r = buf_puts(&out, "Connection: close\r\n");
        if (r < 0) {
                fail(h, "the response's head cannot be passed on");
                return;
        }
        x->answer_began = true;
        if (send_head(h, &out) < 0)
                http_end(h, true);
        else
                (void) http_count(h, 0, out.len);
        buf_done(&x->head);
}

static void send_piece(struct http *h, const uint8_t *data, size_t n) {
        char size[24];
        int r;
        if (n == 0)
                return;
        if (h->x.answer_chunked) {
                int len = snprintf(size, sizeof size, "%zx\r\n", n);
                const struct iovec v[] = { { size, (size_t) len }, { (void *) (uintptr_t) data, n }, { (char[]){ "\r\n" }, 2 } };
                r = stream_writev(h->guest, v, 3);
        } else
                r = stream_write(h->guest, data, n);
        if (r < 0) {
                http_end(h, true);
                return;
        }
        if (stream_queued(h->guest) > STREAM_HIGH_WATER)
                stream_read_stop(h->up->stream);
}

/* `end`: no more comes; what was held back goes out. */
static void pass_masked(struct http *h, const uint8_t *data, size_t n, bool end) {
        int r = end ? mask_end(h->x.x.mask, &h->x.x.masked) : mask_feed(h->x.x.mask, data, n, &h->x.x.masked);
        if (r < 0)
                http_end(h, true);
        else
                send_piece(h, buf_data(&h->x.x.masked), h->x.x.masked.len);
        if (h->state == HTTP_EXCHANGE)
                buf_clear(&h->x.x.masked);
}

static void pass_body(struct http *h, const uint8_t *data, size_t n) {
        if (!http_count(h, 0, n))
                return;
        if (h->x.x.mask)
                pass_masked(h, data, n, false);
        else
                send_piece(h, data, n);
}

static void finish(struct http *h, bool surplus) {
        if (h->x.x.mask) {
                pass_masked(h, NULL, 0, true);
                if (h->state != HTTP_EXCHANGE)
                        return;
                if (mask_count(h->x.x.mask) > 0)
                        audit_set_detail(&h->x.x.audit, "the answer had the secret in it");
        }
        if (h->x.answer_chunked && stream_write(h->guest, "0\r\n\r\n", 5) < 0) {
                http_end(h, true);
                return;
        }
        h->up->used = true;
        if (!h->up_keep || surplus || !h->x.request_done || h->x.send_failed)
                http_detach(h, false);
        http_exchange_done(h);
}

/* ---- tunnels ------------------------------------------------------------------------------- */

static void pass_on(struct http *h, struct stream *from, struct stream *to, const uint8_t *data, size_t n) {
        if (stream_write(to, data, n) < 0) {
                http_end(h, true);
                return;
        }
        if (stream_queued(to) > STREAM_HIGH_WATER)
                stream_read_stop(from);
}

static void half_closed(struct http *h, struct stream *to) {
        (void) stream_shutdown(to);
        if (h->guest_eof && h->up_ended) {
                http_record(h, true, h->x.x.verdict.reason, NULL);
                http_end(h, false);
        }
}

void http_tunnel_from_guest(struct http *h, const uint8_t *data, size_t n) {
        if (n == 0)
                half_closed(h, h->up->stream);
        else if (http_count(h, n, 0))
                pass_on(h, h->guest, h->up->stream, data, n);
}

static void begin_tunnel(struct http *h, const struct http1_head *head, const uint8_t *rest, size_t n) {
        _cleanup_buf_ struct buf out = BUF_INIT(2 * LIMIT_HTTP_HEAD), early = { 0 };
        h->x.x.audit.status = 101;
        h->x.answer_began = true;
        if (write_status(&out, head) < 0 || head_forward_fields(&out, head, skip_field, NULL) < 0 ||
            buf_puts(&out, "Connection: Upgrade\r\nUpgrade: websocket\r\n") < 0 || send_head(h, &out) < 0) {
                http_end(h, true);
                return;
        }
        h->state = HTTP_TUNNEL;
        h->up_keep = false;
        early = h->pending;
        h->pending = BUF_INIT(HTTP_PENDING_MAX);
        if (early.len > 0)
                http_tunnel_from_guest(h, buf_data(&early), early.len);
        if (h->state == HTTP_TUNNEL && n > 0 && http_count(h, 0, n))
                pass_on(h, h->up->stream, h->guest, rest, n);
        if (h->state == HTTP_TUNNEL && h->guest_eof)
                half_closed(h, h->up->stream);
        else if (h->state == HTTP_TUNNEL)
                stream_read_start(h->guest);
}

/* ---- upstream's bytes ---------------------------------------------------------------------- */

static bool goes_on(const struct http *h, const struct upstream *u) {
        return h->state == HTTP_EXCHANGE && h->up == u;
}

/* True: it is a final response, or a tunnel; its end is the exchange's. */
static void on_response(struct http *h, const struct http1_head *head, const uint8_t *rest, size_t n) {
        mask_head(h->x.x.mask, head);
        if (head->status == 101 && h->x.x.upgrade)
                begin_tunnel(h, head, rest, n);
        else if (head->status == 101)
                fail(h, "an upgrade that nobody asked for");
        else if (head->status < 200)
                pass_interim(h, head);
        else
                pass_head(h, head);
}

static void feed(struct http *h, const uint8_t *data, size_t n) {
        struct upstream *u = h->up;
        size_t at = 0;
        while (goes_on(h, u)) {
                struct http1_event ev;
                size_t used;
                http1_parse(u->parser, data + at, n - at, &used, &ev);
                at += used;
                if (ev.type == HTTP1_NEED_DATA)
                        return;
                if (ev.type == HTTP1_HEAD)
                        on_response(h, ev.head, data + at, n - at);
                else if (ev.type == HTTP1_BODY)
                        pass_body(h, ev.data, ev.n);
                else if (ev.type == HTTP1_ERROR)
                        fail(h, ev.reason);
                else if (h->x.answer_began) {
                        finish(h, at < n);
                        return;
                }
        }
}

static void up_data(void *arg, const uint8_t *data, size_t n) {
        struct http *h = arg;
        if (h->state == HTTP_TUNNEL) {
                if (http_count(h, 0, n))
                        pass_on(h, h->up->stream, h->guest, data, n);
        } else if (h->state == HTTP_EXCHANGE)
                feed(h, data, n);
        else
                http_detach(h, false); /* bytes that nobody asked for */
}

static bool truncated(const struct http *h) {
        return h->peer.protocol == POLICY_TLS && stream_tls_truncated(h->up->stream);
}

static void up_eof(void *arg) {
        struct http *h = arg;
        struct upstream *u = h->up;
        if (h->state == HTTP_TUNNEL) {
                h->up_ended = true;
                half_closed(h, h->guest);
                return;
        }
        if (h->state != HTTP_EXCHANGE) {
                http_detach(h, false);
                return;
        }
        h->up_keep = false;
        /* An end that was not announced could be anybody's: what only ends with the connection is not complete then. */
        if (http1_parser_eof(u->parser) == 0 && h->x.answer_began && !truncated(h))
                feed(h, (const uint8_t *) "", 0);
        if (goes_on(h, u))
                cut(h, "the server closed the connection");
}

static void up_drain(void *arg) {
        struct http *h = arg;
        if (h->state == HTTP_TUNNEL)
                stream_read_start(h->guest);
        else
                http_run(h);
}

static void up_error(void *arg, int err) {
        struct http *h = arg;
        if (h->state == HTTP_TUNNEL) {
                http_record(h, true, REASON_CONNECT_FAILED, strerror(-err));
                http_end(h, true);
        } else if (h->state == HTTP_EXCHANGE)
                cut(h, strerror(-err));
        else
                http_detach(h, false);
}

static const struct stream_handler up_handler = {
        .on_data = up_data, .on_eof = up_eof, .on_drain = up_drain, .on_error = up_error
};
