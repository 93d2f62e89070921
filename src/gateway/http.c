/* SPDX-License-Identifier: Apache-2.0 */

/*
 * The guest's side. Its bytes are used as they arrive (`slice`) as far as the state allows; the rest waits
 * in `pending`, and while something waits there the guest is held back. Pipelined requests therefore
 * wait for their turn, and each is judged on its own.
 *
 * Our end of a connection is never just closed while the guest may still be sending: that would reset it and
 * could take the last answer away. HTTP_LINGER reads on for a moment.
 */

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/str.h"
#include "http_internal.h"
#include "usage.h"

/* ---- time ---------------------------------------------------------------------------------- */

static void on_timer(uv_timer_t *t);

void http_touch(struct http *h, uint64_t ms) {
        h->deadline_ms = uv_now(h->gw->loop) + ms;
        if (!uv_is_active((uv_handle_t *) &h->timer) || uv_timer_get_due_in(&h->timer) > ms)
                (void) uv_timer_start(&h->timer, on_timer, ms, 0);
}

static void on_timer(uv_timer_t *t) {
        struct http *h = t->data;
        uint64_t now = uv_now(t->loop);
        if (now < h->deadline_ms) {
                (void) uv_timer_start(t, on_timer, h->deadline_ms - now, 0);
                return;
        }
        if (h->x.x.active)
                http_record(h, true, REASON_TIMEOUT, "no byte either way");
        http_end(h, h->state == HTTP_EXCHANGE || h->state == HTTP_TUNNEL || h->mid_head);
}

/* ---- end ----------------------------------------------------------------------------------- */

static void clear(struct http_exchange *x) {
        exchange_wipe(&x->head); /* it may have a secret in it */
        exchange_done(&x->x);
        *x = (struct http_exchange){ 0 };
        x->head = BUF_INIT(2 * LIMIT_HTTP_HEAD);
}

static void on_timer_closed(uv_handle_t *handle) {
        struct http *h = handle->data;
        clear(&h->x);
        http1_parser_free(h->parser);
        free(h);
}

static void release(struct http *h, bool reset) {
        bool idle = h->state == HTTP_IDLE || h->state == HTTP_LINGER;
        if (h->x.x.active)
                http_record(h, true, REASON_RULE, "the connection ended before the answer did");
        h->state = HTTP_CLOSED;
        upstream_open_cancel(STEAL(h->opening));
        http_detach(h, idle && h->up_keep);
        if (reset)
                stream_abort(STEAL(h->guest));
        else
                stream_close(STEAL(h->guest));
        buf_done(&h->pending);
        h->slice_n = 0;
        uv_close((uv_handle_t *) &h->timer, on_timer_closed);
}

void http_end(struct http *h, bool reset) {
        if (h->state == HTTP_CLOSED)
                return;
        release(h, reset);
        h->on_end(h->arg);
}

void http_abort(struct http *h) {
        if (h && h->state != HTTP_CLOSED)
                release(h, true);
}

static void linger(struct http *h) {
        h->state = HTTP_LINGER;
        buf_done(&h->pending);
        h->slice_n = 0;
        http_detach(h, h->up_keep);
        if (h->guest_eof || stream_shutdown(h->guest) < 0) {
                http_end(h, false);
                return;
        }
        http_touch(h, HTTP_LINGER_MS);
        stream_read_start(h->guest);
}

/* ---- records ------------------------------------------------------------------------------- */

void http_record(struct http *h, bool allowed, enum policy_reason reason, const char *detail) {
        exchange_record(&h->x.x, h->gw, h->up ? &h->up->address : NULL, allowed, reason, detail);
}

bool http_count(struct http *h, uint64_t out, uint64_t in) {
        h->bytes_out += out;
        h->bytes_in += in;
        h->x.x.audit.bytes_out += out;
        h->x.x.audit.bytes_in += in;
        h->deadline_ms = uv_now(h->gw->loop) + HTTP_EXCHANGE_IDLE_MS;
        if (usage_bytes(h->gw->usage, h->x.x.verdict.rule, out, in))
                return true;
        http_record(h, false, REASON_LIMIT_BYTES, NULL);
        http_end(h, true);
        return false;
}

/* ---- answers of our own -------------------------------------------------------------------- */

static int write_refusal(struct http *h, const struct refusal *r, int status, bool keep) {
        _cleanup_buf_ struct buf head = { 0 }, body = { 0 };
        int e = refusal_body(&body, r);
        if (e == 0)
                e = http1_write_status(&head, status);
        if (e == 0)
                e = buf_printf(&head, "Content-Type: application/json\r\nContent-Length: %zu\r\nCache-Control: no-store\r\n%s\r\n",
                               body.len, keep ? "" : "Connection: close\r\n");
        const struct iovec v[] = { { head.data + head.start, head.len }, { body.data + body.start, h->x.is_head ? 0 : body.len } };
        return e < 0 ? e : stream_writev(h->guest, v, 2);
}

void http_refuse(struct http *h, const struct refusal *r) {
        int status = r->status ? r->status : refusal_status(r->reason);
        if (h->x.answer_began) {
                http_record(h, exchange_was_allowed(r->reason), r->reason, r->detail);
                http_end(h, true);
                return;
        }
        h->x.x.audit.status = (uint16_t) status;
        if (r->rule && r->rule != h->x.x.audit.rule)
                (void) str_copy(h->x.x.audit.rule, sizeof h->x.x.audit.rule, r->rule);
        http_record(h, exchange_was_allowed(r->reason), r->reason, r->detail);
        h->x.keep_alive = h->x.keep_alive && !h->x.expects && !h->x.minor0;
        h->state = HTTP_REFUSED;
        if (write_refusal(h, r, status, h->x.keep_alive) < 0)
                http_end(h, true);
        else if (!h->x.keep_alive)
                linger(h);
        else if (h->x.request_done)
                http_exchange_done(h);
}

void http_exchange_done(struct http *h) {
        bool go_on = h->x.request_done && h->x.keep_alive && !(h->guest_eof && h->pending.len == 0 && h->slice_n == 0);
        if (h->x.x.active)
                http_record(h, true, h->x.x.verdict.reason, NULL);
        if (!go_on) {
                linger(h);
                return;
        }
        clear(&h->x);
        h->state = HTTP_IDLE;
        http_touch(h, HTTP_KEEPALIVE_MS);
        http_run(h);
}

/* ---- a request ----------------------------------------------------------------------------- */

static void begin_record(struct http *h) {
        clear(&h->x);
        exchange_begin(&h->x.x, h->gw, &h->peer);
}

static void begin(struct http *h, const struct http1_head *head) {
        struct http_exchange *x = &h->x;
        static const char *const idempotent[] = { "GET", "HEAD", "OPTIONS", "TRACE" };
        begin_record(h);
        x->is_head = strcmp(head->method, "HEAD") == 0;
        for (size_t i = 0; i < ARRAY_SIZE(idempotent); i++)
                x->idempotent |= strcmp(head->method, idempotent[i]) == 0;
        x->x.has_body = head->chunked || head->content_length > 0;
        x->chunked = head->chunked;
        x->expects = head->expect_continue;
        x->minor0 = head->minor == 0;
        x->keep_alive = head->keep_alive && !x->minor0;
        h->mid_head = false;
}

static void on_head(struct http *h, const struct http1_head *head) {
        struct refusal refusal = { .host = h->peer.host.name, .port = h->peer.port };
        begin(h, head);
        if (!http_judge(h, head, &refusal)) {
                http_refuse(h, &refusal);
                return;
        }
        struct upstream_request req = { .allowed = h->x.x.verdict, .host = &h->peer.host, .port = h->peer.port,
                                        .protocol = h->peer.protocol };
        struct upstream *u = h->up;
        if (u && !upstream_fits(u, &req)) {
                http_detach(h, h->up_keep);
                u = NULL;
        }
        /* One that others used may be closed by the server just now; only what can be sent again goes there. */
        if (!u && h->x.idempotent && !h->x.x.has_body && !h->x.x.upgrade)
                u = upstream_take(h->gw, &req);
        http_touch(h, HTTP_EXCHANGE_IDLE_MS);
        if (u) {
                http_attach(h, u);
                return;
        }
        if (http_open(h) < 0) {
                refusal.reason = REASON_INTERNAL;
                http_refuse(h, &refusal);
        }
}

static void send_body(struct http *h, const uint8_t *data, size_t n) {
        char size[24];
        int r;
        if (h->x.send_failed)
                return;
        if (h->x.chunked) {
                int len = snprintf(size, sizeof size, "%zx\r\n", n);
                const struct iovec v[] = { { size, (size_t) len }, { (void *) (uintptr_t) data, n }, { (char[]){ "\r\n" }, 2 } };
                r = stream_writev(h->up->stream, v, 3);
        } else
                r = stream_write(h->up->stream, data, n);
        h->x.send_failed = r < 0;
}

static void on_body(struct http *h, const uint8_t *data, size_t n) {
        if (h->state == HTTP_REFUSED) {
                h->x.swallowed += n;
                if (h->x.swallowed > HTTP_SWALLOW_MAX)
                        linger(h);
        } else if (http_count(h, n, 0))
                send_body(h, data, n);
}

static void on_request_end(struct http *h) {
        h->x.request_done = true;
        if (h->state == HTTP_REFUSED)
                http_exchange_done(h);
        else if (h->x.chunked && !h->x.send_failed)
                h->x.send_failed = stream_write(h->up->stream, "0\r\n\r\n", 5) < 0;
}

static void on_malformed(struct http *h, const struct http1_event *ev) {
        struct refusal r = { .reason = REASON_HTTP_MALFORMED, .host = h->peer.host.name, .port = h->peer.port,
                             .status = ev->status, .detail = ev->reason };
        if (h->state == HTTP_REFUSED) {
                linger(h);
                return;
        }
        if (h->state == HTTP_IDLE)
                begin_record(h);
        http_detach(h, false);
        h->x.keep_alive = false;
        http_refuse(h, &r);
}

/* ---- the guest's bytes --------------------------------------------------------------------- */

static bool taking(const struct http *h) {
        switch (h->state) {
        case HTTP_IDLE:
        case HTTP_REFUSED: /* a guest that does not read its answers gets no more of them */
                return stream_queued(h->guest) <= STREAM_HIGH_WATER;
        case HTTP_EXCHANGE:
                return !h->x.request_done &&
                       (h->x.send_failed || stream_queued(h->up->stream) <= STREAM_HIGH_WATER);
        case HTTP_OPENING:
        case HTTP_TUNNEL:
        case HTTP_LINGER:
        case HTTP_CLOSED:
        default:
                return false;
        }
}

static void out_of_input(struct http *h) {
        if (!h->guest_eof || !taking(h))
                return;
        if (h->state == HTTP_EXCHANGE) /* it ends in the middle of its request */
                http_end(h, true);
        else
                http_end(h, http1_parser_eof(h->parser) < 0);
}

static void step(struct http *h, const struct http1_event *ev) {
        switch (ev->type) {
        case HTTP1_HEAD:
                on_head(h, ev->head);
                break;
        case HTTP1_BODY:
                on_body(h, ev->data, ev->n);
                break;
        case HTTP1_END:
                on_request_end(h);
                break;
        case HTTP1_ERROR:
                on_malformed(h, ev);
                break;
        case HTTP1_NEED_DATA:
        default:
                break;
        }
}

static void consume(struct http *h, bool from_pending, size_t used) {
        if (h->state == HTTP_CLOSED || h->state == HTTP_LINGER)
                return;
        if (from_pending) {
                buf_consume(&h->pending, used);
                if (h->pending.len == 0)
                        buf_done(&h->pending);
        } else if (used > 0) {
                h->slice += used;
                h->slice_n -= used;
        }
}

static void read_or_hold(struct http *h) {
        if (h->state == HTTP_CLOSED || h->state == HTTP_TUNNEL || h->guest_eof)
                return;
        if (h->state == HTTP_LINGER || h->pending.len < HTTP_PENDING_HIGH)
                stream_read_start(h->guest);
        else
                stream_read_stop(h->guest);
}

void http_run(struct http *h) {
        if (h->running)
                return;
        h->running = true;
        while (taking(h)) {
                struct http1_event ev;
                size_t used;
                bool from_pending = h->pending.len > 0;
                const uint8_t *data = from_pending ? buf_data(&h->pending) : h->slice;
                size_t n = from_pending ? h->pending.len : h->slice_n;
                bool was_idle = h->state == HTTP_IDLE;
                http1_parse(h->parser, data, n, &used, &ev);
                if (was_idle && used > 0 && ev.type == HTTP1_NEED_DATA && !h->mid_head) {
                        h->mid_head = true;
                        http_touch(h, HTTP_HEAD_MS);
                }
                step(h, &ev);
                consume(h, from_pending, used);
                if (ev.type == HTTP1_NEED_DATA && (!from_pending || h->slice_n == 0)) {
                        out_of_input(h);
                        break;
                }
        }
        h->running = false;
        read_or_hold(h);
}

static void keep_rest(struct http *h) {
        if (h->state == HTTP_CLOSED || h->slice_n == 0)
                return;
        size_t n = h->slice_n;
        h->slice_n = 0;
        if (buf_append(&h->pending, h->slice, n) < 0)
                http_end(h, true);
        else
                read_or_hold(h);
}

static void guest_data(void *arg, const uint8_t *data, size_t n) {
        struct http *h = arg;
        if (h->state == HTTP_LINGER)
                return;
        if (h->state == HTTP_TUNNEL) {
                http_tunnel_from_guest(h, data, n);
                return;
        }
        h->slice = data;
        h->slice_n = n;
        http_run(h);
        keep_rest(h);
}

static void guest_eof(void *arg) {
        struct http *h = arg;
        h->guest_eof = true;
        if (h->state == HTTP_LINGER)
                http_end(h, false);
        else if (h->state == HTTP_TUNNEL)
                http_tunnel_from_guest(h, NULL, 0);
        else
                http_run(h);
}

static void guest_drain(void *arg) {
        struct http *h = arg;
        if (h->up && (h->state == HTTP_EXCHANGE || h->state == HTTP_TUNNEL))
                stream_read_start(h->up->stream);
        else
                http_run(h);
}

static void guest_error(void *arg, int err) {
        (void) err;
        http_end(arg, true);
}

static const struct stream_handler guest_handler = {
        .on_data = guest_data, .on_eof = guest_eof, .on_drain = guest_drain, .on_error = guest_error
};

/* ---- start --------------------------------------------------------------------------------- */

int http_new(struct gateway *gw, const struct http_peer *peer, struct stream *guest, const void *first, size_t first_n,
             void (*on_end)(void *arg), void *arg, struct http **ret) {
        struct http *h = calloc(1, sizeof *h);
        if (h)
                h->parser = http1_parser_new(HTTP1_REQUESTS);
        if (h && h->parser)
                h->pending = BUF_INIT(HTTP_PENDING_MAX);
        if (!h || !h->parser || (first_n > 0 && buf_append(&h->pending, first, first_n) < 0)) {
                if (h)
                        http1_parser_free(h->parser);
                free(h);
                stream_abort(guest);
                return -ENOMEM;
        }
        h->gw = gw;
        h->peer = *peer;
        h->guest = guest;
        h->on_end = on_end;
        h->arg = arg;
        clear(&h->x);
        (void) uv_timer_init(gw->loop, &h->timer);
        h->timer.data = h;
        stream_set_handler(guest, &guest_handler, h);
        *ret = h;
        return 0;
}

void http_start(struct http *h) {
        http_touch(h, HTTP_HEAD_MS);
        http_run(h);
}

bool http_reconsider(struct http *h) {
        if (!h->x.x.active || !h->x.x.target || h->state == HTTP_CLOSED)
                return h->state != HTTP_CLOSED;
        if (!exchange_reconsider(&h->x.x, h->gw, &h->peer)) {
                http_record(h, false, REASON_REVOKED, NULL);
                http_end(h, true);
                return false;
        }
        if (!h->opening)
                return true;
        upstream_open_cancel(STEAL(h->opening)); /* it would judge addresses by the old policy */
        if (http_open(h) == 0)
                return true;
        http_end(h, true);
        return false;
}

void http_bytes(const struct http *h, uint64_t *ret_out, uint64_t *ret_in) {
        *ret_out = h->bytes_out;
        *ret_in = h->bytes_in;
}
