/* SPDX-License-Identifier: Apache-2.0 */
#include "control.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/json.h"
#include "io/http_client.h"

struct control_call {
        struct control_request r;
        struct http_call *http;
        uv_timer_t timer;
        struct buf answer;
        int status;
        bool done;
};

static void on_timer_closed(uv_handle_t *h) {
        struct control_call *c = h->data;
        buf_done(&c->answer);
        free(c);
}

static void finish(struct control_call *c, int err, const struct error *e, const json_t *answer) {
        if (c->done)
                return;
        c->done = true;
        http_call_free(STEAL(c->http));
        uv_close((uv_handle_t *) &c->timer, on_timer_closed);
        c->r.cb(c->r.arg, err, e, answer);
}

static void fail(struct control_call *c, int err, const char *what) {
        struct error e = ERROR_INIT;
        error_errno(&e, err, "agent: %s %s: %s", c->r.method, c->r.path, what);
        finish(c, e.code, &e, NULL);
}

static void on_head(void *arg, const struct http1_head *head) {
        struct control_call *c = arg;
        c->status = head->status;
}

static void on_body(void *arg, const uint8_t *data, size_t n) {
        struct control_call *c = arg;
        if (buf_append(&c->answer, data, n) < 0)
                fail(c, -EMSGSIZE, "the answer is too long");
}

static void on_end(void *arg) {
        struct control_call *c = arg;
        _cleanup_json_ json_t *o = NULL;
        if (c->status != 200) {
                struct error e = ERROR_INIT;
                error_set(&e, -EIO, "agent: %s %s: status %d: %.*s", c->r.method, c->r.path, c->status,
                          (int) (c->answer.len < 200 ? c->answer.len : 200), (const char *) buf_data(&c->answer));
                return finish(c, e.code, &e, NULL);
        }
        if (c->answer.len > 0 &&
            (json_parse(buf_data(&c->answer), c->answer.len, CONTROL_ANSWER_MAX, &o, NULL) < 0 || !json_is_object(o)))
                return fail(c, -EPROTO, "the answer is no JSON object");
        finish(c, 0, NULL, o);
}

static void on_error(void *arg, int err) {
        fail(arg, err, "no answer");
}

static const struct http_call_ops http_ops = {
        .on_head = on_head,
        .on_body = on_body,
        .on_end = on_end,
        .on_error = on_error,
};

static int send_request(struct control_call *c, struct stream *s, struct error *err) {
        _cleanup_free_ char *body = c->r.body ? c->r.body(c->r.arg) : NULL;
        size_t n = body ? strlen(body) : 0;
        if (c->r.body && !body) {
                stream_abort(s);
                return error_set(err, -ENOMEM, "out of memory");
        }
        const struct http_header headers[] = { { "Host", "control" }, { "Content-Type", "application/json" } };
        int r = http_call_new(c->timer.loop, s, c->r.method, c->r.path, headers, body ? 2 : 1, (int64_t) n,
                              &http_ops, c, &c->http, err);
        if (r >= 0 && n > 0)
                r = http_call_write(c->http, body, n);
        if (r >= 0 && n > 0)
                r = http_call_end(c->http);
        if (body)
                explicit_bzero(body, n);
        return r < 0 && r != -EPIPE ? error_errno(err, r, "agent: %s %s", c->r.method, c->r.path) : 0;
}

static void on_timeout(uv_timer_t *t) {
        fail(t->data, -ETIMEDOUT, "no answer");
}

int control_call(uv_loop_t *loop, struct link *l, const struct control_request *r, struct control_call **ret,
                 struct error *err) {
        if (!l)
                return error_set(err, -ENOTCONN, "the agent is not connected");
        struct control_call *c = calloc(1, sizeof(*c));
        if (!c)
                return error_set(err, -ENOMEM, "out of memory");
        c->r = *r;
        c->answer = BUF_INIT(CONTROL_ANSWER_MAX);
        uv_timer_init(loop, &c->timer);
        c->timer.data = c;
        struct stream *s;
        int e = link_open_early(l, r->authority ? r->authority : "control", &s);
        if (e < 0)
                e = error_errno(err, e, "agent: %s %s", r->method, r->path);
        else
                e = send_request(c, s, err);
        if (e < 0) {
                http_call_free(c->http);
                uv_close((uv_handle_t *) &c->timer, on_timer_closed);
                return e;
        }
        uv_timer_start(&c->timer, on_timeout, r->timeout_ms, 0);
        *ret = c;
        return 0;
}

void control_cancel(struct control_call *c) {
        if (c)
                fail(c, -ECANCELED, "cancelled");
}
