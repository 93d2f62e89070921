/* SPDX-License-Identifier: Apache-2.0 */

/*
 * One HTTP/1.1 call. As in the server, call_run() is the only place that parses and that calls the
 * owner back, so that the owner may pause, write or free from anywhere.
 *
 * The stream's end and its errors are remembered and come to the owner in their place in the
 * answer: after what was received before them. An answer that is complete is a success whatever
 * became of the request's body (a server may answer early and close).
 */

#include "io/http_client.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/cleanup.h"

#define REQUEST_HEAD_MAX (256u * 1024)
#define IN_MAX (4u * 1024 * 1024)

struct http_call {
        struct stream *stream; /* NULL once closed or taken out */
        struct http1_parser *parser;
        const struct http_call_ops *ops;
        void *arg;
        uv_idle_t kick;
        struct buf in;         /* received and not parsed yet, before `cur` */
        const uint8_t *cur;
        size_t cur_n;
        unsigned n_interim;
        int err;               /* what the stream reported */
        const char *reason;
        int64_t left;          /* request body still to be written; -1 chunked */
        bool is_head, is_connect, asks_upgrade, asks_close;
        bool written;          /* the request is complete */
        bool head_seen;        /* of the final answer */
        bool keep_alive;
        bool tunnel;           /* the stream is no longer HTTP; waits for http_call_upgrade() */
        bool done;             /* on_end or on_error was given */
        bool ok;               /* it was on_end */
        bool eof, reading, paused, running, dead;
};

static void call_run(struct http_call *c);

static void on_handle_closed(uv_handle_t *h) {
        struct http_call *c = h->data;
        http1_parser_free(c->parser);
        buf_done(&c->in);
        free(c);
}

static void fail(struct http_call *c, int err, const char *reason) {
        c->done = true;
        c->reason = reason;
        stream_abort(STEAL(c->stream));
        c->ops->on_error(c->arg, err);
}

/* --- answer ----------------------------------------------------------------------------- */

static void on_head(struct http_call *c, const struct http1_head *h) {
        if (h->status < 200 && h->status != 101) {
                if (++c->n_interim > HTTP_INTERIM_MAX)
                        fail(c, -EPROTO, "too many interim answers");
                return;
        }
        if (h->status == 101 && !c->asks_upgrade) {
                fail(c, -EPROTO, "the server switches protocols without having been asked");
                return;
        }
        c->head_seen = true;
        c->keep_alive = h->keep_alive;
        c->tunnel = h->status == 101 || (c->is_connect && h->status < 300);
        if (c->is_head || c->tunnel)
                http1_parser_no_body(c->parser);
        c->ops->on_head(c->arg, h);
}

static void on_end(struct http_call *c) {
        if (!c->head_seen)
                return; /* of an interim answer */
        c->done = c->ok = true;
        if (c->ops->on_end)
                c->ops->on_end(c->arg);
}

/* True when the end of input completes the answer. */
static bool on_input_exhausted(struct http_call *c) {
        if (c->err) {
                fail(c, c->err, NULL);
                return false;
        }
        if (!c->eof)
                return false;
        if (c->head_seen && http1_parser_eof(c->parser) == 0)
                return true;
        fail(c, -ECONNRESET, "the connection ended before the answer was complete");
        return false;
}

static bool call_step(struct http_call *c) {
        bool empty = c->in.len == 0 && c->cur_n == 0;
        if (c->dead || c->done || c->tunnel || (c->paused && !(c->err && empty)))
                return false;

        struct http1_event ev;
        size_t used;
        if (c->in.len > 0) {
                http1_parse(c->parser, buf_data(&c->in), c->in.len, &used, &ev);
                buf_consume(&c->in, used);
        } else {
                http1_parse(c->parser, c->cur, c->cur_n, &used, &ev);
                if (used > 0) {
                        c->cur += used;
                        c->cur_n -= used;
                }
        }
        switch (ev.type) {
        case HTTP1_NEED_DATA:
                if (c->in.len == 0 && c->cur_n > 0)
                        return true;
                return on_input_exhausted(c);
        case HTTP1_HEAD:
                on_head(c, ev.head);
                return true;
        case HTTP1_BODY:
                if (c->ops->on_body)
                        c->ops->on_body(c->arg, ev.data, ev.n);
                return true;
        case HTTP1_END:
                on_end(c);
                return true;
        case HTTP1_ERROR:
        default:
                fail(c, -EPROTO, ev.reason);
                return false;
        }
}

static void update_reading(struct http_call *c) {
        bool want = !c->paused && !c->eof && !c->done && !c->tunnel;
        if (!c->stream || want == c->reading)
                return;
        c->reading = want;
        if (want)
                stream_read_start(c->stream);
        else
                stream_read_stop(c->stream);
}

static void call_run(struct http_call *c) {
        if (c->running || c->dead)
                return;
        c->running = true;
        while (call_step(c))
                ;
        c->running = false;
        if (c->dead)
                return;
        if (c->cur_n > 0 && buf_append(&c->in, c->cur, c->cur_n) < 0 && !c->done)
                fail(c, -ENOMEM, NULL);
        c->cur = NULL;
        c->cur_n = 0;
        if (c->dead)
                return;
        if (c->in.len == 0)
                buf_done(&c->in);
        update_reading(c);
}

static void on_kick(uv_idle_t *h) {
        (void) uv_idle_stop(h);
        call_run(h->data);
}

static void kick(struct http_call *c) {
        if (!c->running && !c->dead)
                (void) uv_idle_start(&c->kick, on_kick);
}

/* --- stream ----------------------------------------------------------------------------- */

static void s_data(void *arg, const uint8_t *data, size_t n) {
        struct http_call *c = arg;
        c->cur = data;
        c->cur_n = n;
        call_run(c);
}

static void s_eof(void *arg) {
        struct http_call *c = arg;
        c->eof = true;
        call_run(c);
}

static void s_drain(void *arg) {
        struct http_call *c = arg;
        if (!c->written && !c->done && c->ops->on_drain)
                c->ops->on_drain(c->arg);
}

static void s_error(void *arg, int err) {
        struct http_call *c = arg;
        stream_close(STEAL(c->stream));
        if (c->eof)
                return; /* the answer's side has ended before; only writing is lost */
        c->err = err;
        call_run(c);
}

static const struct stream_handler call_handler = {
        .on_data = s_data,
        .on_eof = s_eof,
        .on_drain = s_drain,
        .on_error = s_error,
};

/* For a stream handed back: reading is stopped, and whoever takes it sets a handler of its own. */
static void idle_data(void *arg, const uint8_t *data, size_t n) {
        (void) arg;
        (void) data;
        (void) n;
}
static void idle_eof(void *arg) {
        (void) arg;
}
static void idle_error(void *arg, int err) {
        (void) arg;
        (void) err;
}
static const struct stream_handler idle_handler = {
        .on_data = idle_data,
        .on_eof = idle_eof,
        .on_error = idle_error,
};

/* --- request ---------------------------------------------------------------------------- */

static bool is_framing(const char *name) {
        return strcasecmp(name, "content-length") == 0 || strcasecmp(name, "transfer-encoding") == 0;
}

static int write_fields(struct http_call *c, struct buf *out, const struct http_header *h, size_t nh) {
        bool host = false;
        for (size_t i = 0; i < nh; i++) {
                if (is_framing(h[i].name))
                        continue;
                host = host || strcasecmp(h[i].name, "host") == 0;
                c->asks_upgrade = c->asks_upgrade || strcasecmp(h[i].name, "upgrade") == 0;
                c->asks_close = c->asks_close || (strcasecmp(h[i].name, "connection") == 0 &&
                                                  strcasecmp(h[i].value, "close") == 0);
                int r = http1_write_field(out, h[i].name, h[i].value);
                if (r < 0)
                        return r;
        }
        return host ? 0 : http1_write_field(out, "Host", "localhost");
}

static int write_framing(struct buf *out, const char *method, int64_t content_length) {
        if (content_length < 0)
                return buf_puts(out, "Transfer-Encoding: chunked\r\n");
        /* RFC 9110, 8.6: methods for which a body has a meaning say that there is none. */
        bool usual =
                strcmp(method, "POST") == 0 || strcmp(method, "PUT") == 0 || strcmp(method, "PATCH") == 0;
        if (content_length == 0 && !usual)
                return 0;
        return buf_printf(out, "Content-Length: %lld\r\n", (long long) content_length);
}

static int send_head(struct http_call *c, const char *method, const char *target, const struct http_header *h,
                     size_t nh, int64_t content_length, struct error *err) {
        _cleanup_buf_ struct buf out = BUF_INIT(REQUEST_HEAD_MAX);
        int r = http1_write_request(&out, method, target);
        if (r == 0)
                r = write_fields(c, &out, h, nh);
        if (r == 0)
                r = write_framing(&out, method, content_length);
        if (r == 0)
                r = http1_write_end_of_head(&out);
        if (r == -EINVAL)
                return error_set(err, r,
                                 "the request has a method, target or header that HTTP does not allow");
        if (r < 0)
                return error_errno(err, r, "cannot compose the request");
        r = stream_write(c->stream, buf_data(&out), out.len);
        /* A peer that is gone is reported by on_error, and may have left an answer. */
        return r < 0 && r != -EPIPE ? error_errno(err, r, "cannot send the request") : 0;
}

int http_call_new(uv_loop_t *loop, struct stream *s, const char *method, const char *target,
                  const struct http_header *h, size_t nh, int64_t content_length,
                  const struct http_call_ops *ops, void *arg, struct http_call **ret, struct error *err) {
        struct http_call *c = calloc(1, sizeof *c);
        struct http1_parser *p = http1_parser_new(HTTP1_RESPONSES);
        if (!c || !p) {
                free(c);
                http1_parser_free(p);
                stream_close(s);
                return error_set(err, -ENOMEM, "out of memory");
        }
        c->stream = s;
        c->parser = p;
        c->ops = ops;
        c->arg = arg;
        c->in = BUF_INIT(IN_MAX);
        c->left = content_length;
        c->written = content_length == 0;
        c->is_head = strcmp(method, "HEAD") == 0;
        c->is_connect = strcmp(method, "CONNECT") == 0;
        c->kick.data = c;
        (void) uv_idle_init(loop, &c->kick);
        stream_set_handler(s, &call_handler, c);
        int r = send_head(c, method, target, h, nh, content_length, err);
        if (r < 0) {
                http_call_free(c);
                return r;
        }
        kick(c);
        *ret = c;
        return 0;
}

int http_call_write(struct http_call *c, const void *data, size_t n) {
        if (!c->stream || c->done || c->tunnel || c->written)
                return -EPIPE;
        if (n == 0)
                return 0;
        if (c->left < 0) {
                char size[20];
                int len = snprintf(size, sizeof size, "%zx\r\n", n);
                struct iovec v[3] = { { .iov_base = size, .iov_len = (size_t) len },
                                      { .iov_base = (void *) (uintptr_t) data, .iov_len = n },
                                      { .iov_base = (void *) (uintptr_t) "\r\n", .iov_len = 2 } };
                return stream_writev(c->stream, v, 3);
        }
        if (n > (uint64_t) c->left)
                return -EMSGSIZE;
        int r = stream_write(c->stream, data, n);
        if (r == 0)
                c->left -= (int64_t) n;
        return r;
}

int http_call_end(struct http_call *c) {
        if (!c->stream || c->done || c->tunnel)
                return -EPIPE;
        if (c->written)
                return 0;
        if (c->left > 0)
                return -EPROTO;
        int r = c->left < 0 ? stream_write(c->stream, "0\r\n\r\n", 5) : 0;
        if (r == 0)
                c->written = true;
        return r;
}

size_t http_call_queued(const struct http_call *c) {
        return c->stream ? stream_queued(c->stream) : 0;
}

void http_call_read_pause(struct http_call *c) {
        c->paused = true;
        if (!c->running)
                update_reading(c);
}

void http_call_read_resume(struct http_call *c) {
        c->paused = false;
        kick(c);
}

const char *http_call_reason(const struct http_call *c) {
        return c->reason;
}

struct stream *http_call_upgrade(struct http_call *c) {
        if (!c->tunnel || !c->stream)
                return NULL;
        if (c->in.len > 0 && c->cur_n > 0 && buf_append(&c->in, c->cur, c->cur_n) < 0)
                return NULL;
        const uint8_t *early = c->in.len > 0 ? buf_data(&c->in) : c->cur;
        size_t n = c->in.len > 0 ? c->in.len : c->cur_n;
        struct stream *s = STEAL(c->stream), *ret = NULL;
        c->cur_n = 0;
        c->done = c->ok = true;
        stream_set_handler(s, &idle_handler, NULL);
        return stream_prefix(s, early, n, c->eof, &ret) < 0 ? NULL : ret;
}

struct stream *http_call_reuse(struct http_call *c) {
        if (!c->ok || c->tunnel || !c->written || !c->keep_alive || c->asks_close || c->eof || c->err ||
            c->in.len + c->cur_n > 0 || !c->stream)
                return NULL;
        stream_read_stop(c->stream);
        stream_set_handler(c->stream, &idle_handler, NULL);
        return STEAL(c->stream);
}

void http_call_free(struct http_call *c) {
        if (!c || c->dead)
                return;
        c->dead = true;
        struct stream *s = STEAL(c->stream);
        /* A request cut off, or an answer not wanted: the server must not take it for complete. */
        if (c->ok && c->written)
                stream_close(s);
        else
                stream_abort(s);
        uv_close((uv_handle_t *) &c->kick, on_handle_closed);
}
