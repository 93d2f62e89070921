/* SPDX-License-Identifier: Apache-2.0 */

/* The daemon's own requests to the agent: small, with a deadline and a bounded answer. What comes
 * back was written by the guest and is no more to be believed than anything else from there. */

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/limits.h"
#include "io/http_client.h"
#include "proxy_internal.h"

#define CALL_TIMEOUT_MS AGENT_TIMEOUT_MS

struct proxy_call {
        struct guest_user user; /* first: on_drop gets it */
        struct proxy *proxy;
        struct guest_dial *dial;
        struct http_call *call;
        char *method, *target, *token, *content_type;
        void *body;
        size_t body_n;
        bool kept;
        int status; /* 0 before the head of the answer */
        struct buf answer;
        uv_timer_t timer;
        proxy_call_cb cb;
        void *arg;
};

static void on_closed(uv_handle_t *h) {
        struct proxy_call *c = h->data;

        free(c->method);
        free(c->target);
        free(c->token);
        free(c->content_type);
        free(c->body);
        buf_done(&c->answer);
        free(c);
}

static void call_end(struct proxy_call *c) {
        guest_dial_cancel(c->dial);
        c->dial = NULL;
        http_call_free(c->call);
        c->call = NULL;
        guest_leave(&c->user);
        uv_close((uv_handle_t *) &c->timer, on_closed);
}

static void call_fail(struct proxy_call *c, int err, const char *why) {
        struct error e = ERROR_INIT;
        proxy_call_cb cb = c->cb;
        void *arg = c->arg;

        error_set(&e, err, "%s %s in the sandbox: %s", c->method, c->target, why);
        call_end(c);
        cb(arg, err, &e, 0, NULL, 0);
}

static const char *why_unreachable(int err) {
        switch (err) {
        case -ENOENT:
                return "the sandbox is not there";
        case -ECONNREFUSED:
                return "the agent does not listen";
        case -ETIMEDOUT:
                return "no answer in time";
        default:
                return strerror(-err);
        }
}

static void on_head(void *arg, const struct http1_head *head) {
        struct proxy_call *c = arg;

        c->status = head->status;
}

static void on_body(void *arg, const uint8_t *data, size_t n) {
        struct proxy_call *c = arg;
        int r = buf_append(&c->answer, data, n);

        if (r < 0)
                call_fail(c, r == -ENOBUFS ? -EMSGSIZE : r, "the answer is too long");
}

static void on_end(void *arg) {
        struct proxy_call *c = arg;
        struct stream *s = http_call_reuse(c->call);
        const char *body = buf_str(&c->answer);
        proxy_call_cb cb = c->cb;
        void *cb_arg = c->arg;

        if (s)
                guest_give(c->user.guest, s);
        if (!body)
                return call_fail(c, -ENOMEM, "no memory");
        /* The memory of body goes away when the timer has closed, in a later turn of the loop. */
        call_end(c);
        cb(cb_arg, 0, NULL, c->status, body, c->answer.len);
}

static void call_connect(struct proxy_call *c);

static void on_error(void *arg, int err) {
        struct proxy_call *c = arg;
        const char *reason = http_call_reason(c->call);
        char why[128];

        (void) snprintf(why, sizeof why, "the answer is not proper HTTP: %.90s", reason ? reason : "");
        http_call_free(c->call);
        c->call = NULL;
        if (c->kept && c->status == 0 && strcmp(c->method, "GET") == 0)
                call_connect(c);
        else
                call_fail(c, err, err == -EPROTO ? why : why_unreachable(err));
}

static const struct http_call_ops call_ops = {
        .on_head = on_head,
        .on_body = on_body,
        .on_end = on_end,
        .on_error = on_error,
};

static void call_send(struct proxy_call *c, struct stream *s) {
        struct http_header h[3];
        size_t nh = 0;

        h[nh++] = (struct http_header){ "Host", "127.0.0.1" };
        if (c->token)
                h[nh++] = (struct http_header){ "X-Access-Token", c->token };
        if (c->body_n > 0)
                h[nh++] = (struct http_header){ "Content-Type", c->content_type };
        int r = http_call_new(guests_loop(c->proxy->guests), s, c->method, c->target, h, nh, (int64_t) c->body_n,
                              &call_ops, c, &c->call, NULL);
        if (r < 0) {
                c->call = NULL;
                return call_fail(c, r, "cannot be sent");
        }
        if (c->body_n > 0)
                r = http_call_write(c->call, c->body, c->body_n);
        if (r == 0)
                r = http_call_end(c->call);
        /* -EPIPE: on_error tells more. */
        if (r < 0 && r != -EPIPE)
                call_fail(c, r, why_unreachable(r));
}

static void on_dialled(void *arg, int err, struct stream *s) {
        struct proxy_call *c = arg;

        c->dial = NULL;
        if (err < 0)
                call_fail(c, err, why_unreachable(err));
        else
                call_send(c, s);
}

static void call_connect(struct proxy_call *c) {
        struct guest *g = c->user.guest;
        struct stream *s = c->kept ? NULL : guest_take(g);

        c->kept = s != NULL;
        if (s)
                return call_send(c, s);
        int r = guest_dial(g, AGENT_PORT, on_dialled, c, &c->dial);
        if (r < 0)
                call_fail(c, r, why_unreachable(r));
}

static void on_timeout(uv_timer_t *t) {
        call_fail(t->data, -ETIMEDOUT, why_unreachable(-ETIMEDOUT));
}

/* First turn of the timer: the call starts outside proxy_call(), so that a failure is always told
 * later. Then the same timer is the deadline. */
static void on_start(uv_timer_t *t) {
        struct proxy_call *c = t->data;

        uv_timer_start(&c->timer, on_timeout, uv_timer_get_repeat(&c->timer), 0);
        call_connect(c);
}

/* Whether the guest has done it is not known: it was not told any more. */
static void on_drop(struct guest_user *u) {
        call_fail((struct proxy_call *) u, -ENOENT, "it was cut off, since the sandbox is being saved, stopped or deleted");
}

static int call_copy(struct proxy_call *c, const struct proxy_request *r) {
        c->method = strdup(r->method);
        c->target = strdup(r->target);
        c->token = r->access_token ? strdup(r->access_token) : NULL;
        c->content_type = strdup(r->content_type ? r->content_type : "application/json");
        c->body = r->body_n ? malloc(r->body_n) : NULL;
        if (!c->method || !c->target || !c->content_type || (r->access_token && !c->token) ||
            (r->body_n && !c->body))
                return -ENOMEM;
        if (r->body_n)
                memcpy(c->body, r->body, r->body_n);
        c->body_n = r->body_n;
        c->answer = BUF_INIT(r->max_answer);
        return 0;
}

int proxy_call(struct proxy *p, const struct proxy_request *r, proxy_call_cb cb, void *arg, struct proxy_call **ret,
               struct error *err) {
        struct proxy_call *c = calloc(1, sizeof(*c));
        int res;

        if (!c)
                return error_set(err, -ENOMEM, "no memory for a request to a sandbox");
        c->proxy = p;
        c->cb = cb;
        c->arg = arg;
        c->user.on_drop = on_drop;
        c->user.own = true;
        uv_timer_init(guests_loop(p->guests), &c->timer);
        c->timer.data = c;

        res = call_copy(c, r);
        if (res == 0)
                res = guest_join(p->guests, r->id, &c->user);
        if (res < 0) {
                call_end(c);
                return error_set(err, res, "%s",
                                 res == -EBUSY ? "too many connections to the sandbox" : "no memory for a request");
        }
        uv_timer_start(&c->timer, on_start, 0, r->timeout_ms ? r->timeout_ms : CALL_TIMEOUT_MS);
        if (ret)
                *ret = c;
        return 0;
}

void proxy_call_cancel(struct proxy_call *c) {
        if (c)
                call_end(c);
}
