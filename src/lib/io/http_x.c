/* SPDX-License-Identifier: Apache-2.0 */

/* The exchange as its handler sees it: the answer, holding the request back, breaking off, taking
 * the connection out of HTTP. What comes in and the life of the exchange are in http_server.c. */

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/cleanup.h"
#include "io/http_conn.h"

#define ANSWER_HEAD_MAX (256u * 1024)
#define ERROR_BODY_MAX 1024

const struct http1_head *http_x_head(const struct http_x *x) {
        return x->head;
}

void *http_x_conn_tag(const struct http_x *x) {
        return x->conn->tag;
}

void http_x_admit(struct http_x *x) {
        http_conn_admit(x->conn);
}

void http_x_set_ops(struct http_x *x, const struct http_x_ops *ops, void *arg) {
        x->ops = ops;
        x->arg = arg;
}

void http_x_read_pause(struct http_x *x) {
        x->paused = true;
        http_conn_kick(x->conn);
}

void http_x_read_resume(struct http_x *x) {
        if (!x->paused)
                return;
        x->paused = false;
        x->conn->rx_ms = uv_now(x->conn->timer.loop);
        http_conn_kick(x->conn);
}

size_t http_x_queued(const struct http_x *x) {
        return x->conn->stream ? stream_queued(x->conn->stream) : 0;
}

bool http_x_started(const struct http_x *x) {
        return x->started;
}

void http_x_abort(struct http_x *x) {
        x->aborted = true;
        http_conn_kick(x->conn);
}

/* --- head of the answer ----------------------------------------------------------------- */

static bool is_framing(const char *name) {
        return strcasecmp(name, "content-length") == 0 || strcasecmp(name, "transfer-encoding") == 0 ||
               strcasecmp(name, "connection") == 0 || strcasecmp(name, "keep-alive") == 0;
}

static bool asks_close(const struct http_header *h) {
        return strcasecmp(h->name, "connection") == 0 && strcasecmp(h->value, "close") == 0;
}

static int write_fields(struct buf *out, const struct http_header *h, size_t nh) {
        for (size_t i = 0; i < nh; i++) {
                int r = is_framing(h[i].name) ? 0 : http1_write_field(out, h[i].name, h[i].value);
                if (r < 0)
                        return r;
        }
        return 0;
}

/* How the answer will be framed; written to the exchange only once its head is sent. */
struct plan {
        bool no_body, chunked, close;
        int64_t left;
};

static struct plan make_plan(const struct http_x *x, int status, const struct http_header *h, size_t nh,
                             int64_t content_length) {
        bool head = strcmp(x->head->method, "HEAD") == 0;
        struct plan p = { .close = x->close, .left = content_length };
        p.no_body = head || status < 200 || status == 204 || status == 304;
        for (size_t i = 0; i < nh; i++)
                p.close = p.close || asks_close(&h[i]);
        if (content_length < 0 && !p.no_body) {
                p.chunked = x->head->minor == 1;
                p.close = p.close || !p.chunked;
        }
        /* The client that was told nothing may or may not send its body now; only a new
         * connection is certain. The same for a body too long to be read on. */
        if (!x->req_done && (x->want_continue || x->head->content_length > HTTP_DISCARD_MAX))
                p.close = true;
        return p;
}

static int write_head(struct buf *out, const struct http_x *x, const struct plan *p, int status,
                      const struct http_header *h, size_t nh, int64_t content_length) {
        int r = http1_write_status(out, status);
        if (r == 0)
                r = write_fields(out, h, nh);
        /* RFC 9110, 8.6: no length in 1xx and 204; in 304 it would be that of the other answer. */
        if (r == 0 && status >= 200 && status != 204 && status != 304) {
                if (content_length >= 0)
                        r = buf_printf(out, "Content-Length: %lld\r\n", (long long) content_length);
                else if (x->head->minor == 1)
                        r = buf_puts(out, "Transfer-Encoding: chunked\r\n");
        }
        if (r == 0 && p->close)
                r = buf_puts(out, "Connection: close\r\n");
        else if (r == 0 && x->head->minor == 0)
                r = buf_puts(out, "Connection: keep-alive\r\n");
        return r < 0 ? r : http1_write_end_of_head(out);
}

static int begin(struct http_x *x, int status, const struct http_header *h, size_t nh, int64_t content_length,
                 const void *body, size_t n) {
        if (x->aborted || !x->conn->stream)
                return -EPIPE;
        if (x->started || status < 200)
                return -EINVAL;
        _cleanup_buf_ struct buf out = BUF_INIT(ANSWER_HEAD_MAX);
        struct plan p = make_plan(x, status, h, nh, content_length);
        int r = write_head(&out, x, &p, status, h, nh, content_length);
        if (r < 0)
                return r;
        struct iovec v[2] = { { .iov_base = out.data + out.start, .iov_len = out.len },
                              { .iov_base = (void *) (uintptr_t) body, .iov_len = p.no_body ? 0 : n } };
        r = stream_writev(x->conn->stream, v, 2);
        if (r < 0)
                return r;
        x->started = true;
        x->no_body = p.no_body;
        x->chunked = p.chunked;
        x->close = p.close;
        x->left = p.left;
        return 0;
}

static void ended(struct http_x *x) {
        x->ended = true;
        x->ended_ms = uv_now(x->conn->timer.loop);
        http_conn_kick(x->conn);
}

int http_x_respond(struct http_x *x, int status, const struct http_header *h, size_t nh, const void *body,
                   size_t n) {
        int r = begin(x, status, h, nh, (int64_t) n, body, n);
        if (r < 0)
                return r;
        x->left = 0;
        ended(x);
        return 0;
}

int http_x_start(struct http_x *x, int status, const struct http_header *h, size_t nh,
                 int64_t content_length) {
        return begin(x, status, h, nh, content_length, NULL, 0);
}

/* --- body of the answer ----------------------------------------------------------------- */

static int write_chunk(struct http_x *x, const void *data, size_t n) {
        char size[20];
        int len = snprintf(size, sizeof size, "%zx\r\n", n);
        struct iovec v[3] = { { .iov_base = size, .iov_len = (size_t) len },
                              { .iov_base = (void *) (uintptr_t) data, .iov_len = n },
                              { .iov_base = (void *) (uintptr_t) "\r\n", .iov_len = 2 } };
        return stream_writev(x->conn->stream, v, 3);
}

int http_x_write(struct http_x *x, const void *data, size_t n) {
        if (x->aborted || x->ended || !x->conn->stream)
                return -EPIPE;
        if (!x->started)
                return -EINVAL;
        if (n == 0 || x->no_body)
                return 0;
        int r;
        if (x->chunked)
                r = write_chunk(x, data, n);
        else if (x->left >= 0 && n > (uint64_t) x->left)
                return -EMSGSIZE;
        else
                r = stream_write(x->conn->stream, data, n);
        if (r == 0 && x->left >= 0)
                x->left -= (int64_t) n;
        if (r == 0 && x->conn->tx_ms == 0 && stream_queued(x->conn->stream) > 0)
                http_conn_kick(x->conn); /* arms the write timeout */
        return r;
}

int http_x_end(struct http_x *x) {
        if (x->aborted || !x->conn->stream)
                return -EPIPE;
        if (!x->started || x->ended)
                return -EINVAL;
        int r = 0;
        if (!x->no_body && x->left > 0)
                r = -EPROTO;
        else if (x->chunked)
                r = stream_write(x->conn->stream, "0\r\n\r\n", 5);
        if (r < 0) {
                http_x_abort(x);
                return r;
        }
        ended(x);
        return 0;
}

/* --- beyond HTTP ------------------------------------------------------------------------ */

int http_x_upgrade(struct http_x *x, int status, const struct http_header *h, size_t nh,
                   struct stream **ret) {
        struct http_conn *c = x->conn;
        if (x->aborted || !c->stream)
                return -EPIPE;
        if (x->started || (status != 101 && (status < 200 || status > 299)))
                return -EINVAL;
        if (x->head->chunked || x->head->content_length > 0)
                return -EINVAL; /* where the request ends is where the other protocol begins */

        _cleanup_buf_ struct buf out = BUF_INIT(ANSWER_HEAD_MAX);
        int r = http1_write_status(&out, status);
        if (r == 0)
                r = write_fields(&out, h, nh);
        if (r == 0 && status == 101)
                r = buf_puts(&out, "Connection: Upgrade\r\n");
        if (r == 0)
                r = http1_write_end_of_head(&out);
        if (r == 0)
                r = stream_write(c->stream, buf_data(&out), out.len);
        if (r < 0)
                return r;

        c->x = NULL;
        struct stream *s = NULL;
        r = http_conn_take(c, &s);
        void (*done)(void *) = r < 0 ? x->ops->on_abort : x->ops->on_done;
        void *arg = x->arg;
        free(x);
        if (done)
                done(arg);
        if (r == 0)
                *ret = s;
        return r;
}

/* One body for both kinds of clients: the native API reads "error", the SDKs "code" and "message". */
static int error_body(struct buf *b, int status, const char *reason) {
        char text[256]; /* reasons are fixed sentences; only their quotes need care in JSON */
        size_t n = 0;
        for (const char *s = reason; *s && n + 2 < sizeof text; s++) {
                if (*s == '"')
                        text[n++] = '\\';
                text[n++] = *s;
        }
        text[n] = '\0';
        const char *code = status == 503 ? "unavailable" : "bad_request";
        return buf_printf(b,
                          "{\"code\":%d,\"message\":\"%s\",\"error\":{\"code\":\"%s\",\"message\":\"%s\"}}\n",
                          status, text, code, text);
}

int http_conn_answer_error(struct http_conn *c, int status, const char *reason) {
        _cleanup_buf_ struct buf body = BUF_INIT(ERROR_BODY_MAX), out = BUF_INIT(ANSWER_HEAD_MAX);
        int r = error_body(&body, status, reason);
        if (r == 0)
                r = http1_write_status(&out, status);
        if (r == 0)
                r = buf_printf(
                        &out,
                        "Content-Type: application/json\r\nContent-Length: %zu\r\nConnection: close\r\n\r\n",
                        body.len);
        if (r == 0)
                r = buf_append(&out, buf_data(&body), body.len);
        return r < 0 ? r : stream_write(c->stream, buf_data(&out), out.len);
}
