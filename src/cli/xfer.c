/* SPDX-License-Identifier: Apache-2.0 */

/*
 * One request with streamed bodies. Callbacks from the loop only note what came; the calling
 * function runs the loop until what it waits for is there. Backpressure: xfer_write() waits while
 * more than STREAM_HIGH_WATER is queued, and the connection is not read while more than
 * XFER_IN_HIGH bytes of the answer wait for xfer_read().
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/clock.h"
#include "client_internal.h"
#include "mem.h"

#define XFER_IN_HIGH (1024u * 1024)
#define XFER_IN_MAX (64u * 1024 * 1024) /* one event of the connection never brings this much */
#define XFER_ERROR_MAX (256u * 1024)    /* of an error's body */
#define XFER_JSON_MAX (64u * 1024 * 1024)

struct xfer_field {
        char *name, *value;
};

struct xfer {
        struct client *c;
        struct dialer *dialer;
        struct stream *stream; /* connected, not yet given to the call */
        struct http_call *call;
        uv_timer_t timer;
        uint64_t timeout_ms;
        struct buf in, out;
        struct xfer_field *fields;
        size_t n_fields;
        int status;
        bool ended; /* answer complete */
        bool paused;
        bool failed; /* err says why */
        struct api_error err;
};

static void fail(struct xfer *x, const char *code, const char *text) {
        if (x->failed)
                return;
        x->failed = true;
        api_error_set(&x->err, code, "%s", text);
}

static void on_timeout(uv_timer_t *t) {
        struct xfer *x = t->data;

        fail(x, "timeout", "cspaced did not answer in time");
}

static void touch(struct xfer *x) {
        if (x->timeout_ms > 0)
                uv_timer_start(&x->timer, on_timeout, x->timeout_ms, 0);
        else
                uv_timer_stop(&x->timer);
}

static void on_head(void *arg, const struct http1_head *head) {
        struct xfer *x = arg;

        touch(x);
        x->status = head->status;
        x->fields = mem_grow(NULL, head->n_fields, sizeof *x->fields);
        for (; x->n_fields < head->n_fields; x->n_fields++)
                x->fields[x->n_fields] = (struct xfer_field) { mem_dup(head->fields[x->n_fields].name),
                                                               mem_dup(head->fields[x->n_fields].value) };
}

static void on_body(void *arg, const uint8_t *data, size_t n) {
        struct xfer *x = arg;

        touch(x);
        if (x->status >= 300 && x->in.len + n > XFER_ERROR_MAX)
                n = XFER_ERROR_MAX - x->in.len;
        if (buf_append(&x->in, data, n) < 0)
                fail(x, "protocol", "the answer came faster than it could be held");
        if (x->in.len > XFER_IN_HIGH && !x->paused && x->status < 300) {
                x->paused = true;
                http_call_read_pause(x->call);
        }
}

static void on_end(void *arg) {
        struct xfer *x = arg;

        x->ended = true;
        x->c->alive = true;
}

static void on_drain(void *arg) {
        touch(arg);
}

static void on_error(void *arg, int err) {
        struct xfer *x = arg;
        char text[128];

        snprintf(text, sizeof text, "the connection to cspaced was lost: %s", strerror(err < 0 ? -err : err));
        fail(x, err == -EPROTO && x->status == 0 ? "protocol" : "connection_lost", text);
}

static const struct http_call_ops call_ops = {
        .on_head = on_head,
        .on_body = on_body,
        .on_end = on_end,
        .on_drain = on_drain,
        .on_error = on_error,
};

static void on_dialled(void *arg, const struct error *err, struct stream *s) {
        struct xfer *x = arg;

        x->dialer = NULL;
        if (s) {
                x->stream = s;
                return;
        }
        x->failed = true;
        client_dial_error(x->c, err, &x->err);
}

/* One turn of the loop; -1 when there is no point in waiting on. */
static int turn(struct xfer *x, struct api_error *e) {
        if (x->c->interrupted)
                fail(x, "interrupted", "interrupted");
        if (!x->failed) {
                uv_run(&x->c->loop, UV_RUN_ONCE);
                if (x->c->interrupted)
                        fail(x, "interrupted", "interrupted");
        }
        if (!x->failed)
                return 0;
        *e = x->err;
        return -1;
}

int xfer_open(struct client *c, const char *method, const char *target, const char *content_type,
              int64_t length, struct xfer **ret, struct api_error *e) {
        struct http_header h[CLIENT_HEADERS_MAX + 2];
        struct xfer *x = mem_new(sizeof *x);
        struct error err = ERROR_INIT;

        x->c = c;
        x->in = x->out = BUF_INIT(XFER_IN_MAX);
        x->timeout_ms = CLIENT_TIMEOUT_MS;
        uv_timer_init(&c->loop, &x->timer);
        x->timer.data = x;
        touch(x);
        x->dialer = dialer_start(&c->loop, &c->to, on_dialled, x);
        while (!x->stream) {
                if (turn(x, e) < 0) {
                        xfer_free(x);
                        return -1;
                }
        }
        size_t nh = client_headers(c, h);
        if (content_type)
                h[nh++] = (struct http_header) { "Content-Type", content_type };
        if (c->idempotency)
                h[nh++] = (struct http_header) { "Idempotency-Key", c->idempotency };
        int r = http_call_new(&c->loop, x->stream, method, target, h, nh, length, &call_ops, x, &x->call,
                              &err);
        x->stream = NULL; /* taken, also on failure */
        if (r < 0) {
                api_error_set(e, "protocol", "%s", err.msg);
                xfer_free(x);
                return -1;
        }
        *ret = x;
        return 0;
}

void xfer_set_timeout(struct xfer *x, uint64_t ms) {
        x->timeout_ms = ms;
        if (ms == 0)
                uv_timer_stop(&x->timer);
        touch(x);
}

/* The server refused: read its reasons. */
static int refused(struct xfer *x, struct api_error *e) {
        struct api_error lost;

        while (!x->ended && turn(x, &lost) == 0)
                ;
        client_body_error(x->status, buf_data(&x->in), x->in.len, e);
        return -1;
}

int xfer_write(struct xfer *x, const void *data, size_t n, struct api_error *e) {
        if (x->failed) {
                *e = x->err;
                return -1;
        }
        if (x->status >= 300)
                return refused(x, e);
        int r = http_call_write(x->call, data, n);
        if (r < 0)
                on_error(x, r);
        while (x->failed || http_call_queued(x->call) > STREAM_HIGH_WATER) {
                /* A server that refuses answers before it has read all: the answer says more than
                 * the broken pipe. */
                if (x->status >= 300)
                        return refused(x, e);
                if (turn(x, e) < 0)
                        return -1;
        }
        return 0;
}

int xfer_finish(struct xfer *x, struct api_error *e) {
        int r = x->failed || x->status ? 0 : http_call_end(x->call);

        if (r < 0)
                on_error(x, r);
        while (x->status == 0)
                if (turn(x, e) < 0)
                        return -1;
        if (x->status < 200 || x->status >= 300)
                return refused(x, e);
        return 0;
}

const char *xfer_header(const struct xfer *x, const char *name) {
        for (size_t i = 0; i < x->n_fields; i++)
                if (strcasecmp(x->fields[i].name, name) == 0)
                        return x->fields[i].value;
        return NULL;
}

ssize_t xfer_read(struct xfer *x, const uint8_t **ret, struct api_error *e) {
        buf_clear(&x->out);
        while (x->in.len == 0 && !x->ended)
                if (turn(x, e) < 0)
                        return -1;
        if (x->in.len == 0)
                return 0;
        struct buf t = x->out;
        x->out = x->in;
        x->in = t;
        if (x->paused) {
                x->paused = false;
                touch(x);
                http_call_read_resume(x->call);
        }
        *ret = buf_data(&x->out);
        return (ssize_t) x->out.len;
}

int xfer_read_json(struct xfer *x, json_t **ret, struct api_error *e) {
        _cleanup_buf_ struct buf all = BUF_INIT(XFER_JSON_MAX);
        struct error err = ERROR_INIT;
        const uint8_t *data;
        ssize_t n;

        while ((n = xfer_read(x, &data, e)) > 0)
                if (buf_append(&all, data, (size_t) n) < 0)
                        return api_error_set(e, "protocol", "cspaced sent an answer of more than %u MiB",
                                             XFER_JSON_MAX >> 20);
        if (n < 0)
                return -1;
        if (all.len == 0) {
                *ret = NULL;
                return 0;
        }
        if (json_parse(buf_data(&all), all.len, XFER_JSON_MAX, ret, &err) < 0)
                return api_error_set(e, "protocol", "cspaced sent an answer that is no JSON: %s", err.msg);
        return 0;
}

static void on_closed(uv_handle_t *h) {
        free(h->data);
}

void xfer_free(struct xfer *x) {
        if (!x)
                return;
        dialer_cancel(x->dialer);
        stream_abort(x->stream);
        http_call_free(x->call);
        for (size_t i = 0; i < x->n_fields; i++) {
                free(x->fields[i].name);
                free(x->fields[i].value);
        }
        free(x->fields);
        buf_done(&x->in);
        buf_done(&x->out);
        uv_close((uv_handle_t *) &x->timer, on_closed);
}
