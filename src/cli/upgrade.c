/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "client_internal.h"
#include "mem.h"

#define UPGRADE_TIMEOUT_MS 30000
#define UPGRADE_ERROR_MAX (64u * 1024)

/* Also small requests that nobody waits for: those have a body and no protocol to change to. */

/* The timer also ends it: its callback is a point at which nothing of the call is on the stack. */
struct upgrade {
        struct client *c;
        const char *method;
        char *target, *protocol, *content;
        upgrade_cb cb;
        void *arg;
        struct dialer *dialer;
        struct http_call *call;
        uv_timer_t timer;
        int status;
        bool over;
        struct stream *result;
        struct buf body;
        struct api_error err;
};

static void on_closed(uv_handle_t *h) {
        free(h->data);
}

void upgrade_cancel(struct upgrade *u) {
        if (!u)
                return;
        dialer_cancel(u->dialer);
        http_call_free(u->call);
        stream_abort(u->result);
        buf_done(&u->body);
        free(u->target);
        free(u->protocol);
        free(u->content);
        uv_close((uv_handle_t *) &u->timer, on_closed);
}

static void on_over(uv_timer_t *t) {
        struct upgrade *u = t->data;
        struct stream *s = STEAL(u->result);
        bool ok = s || (!u->protocol && u->status >= 200 && u->status < 300);
        struct api_error err = u->err;
        upgrade_cb cb = u->cb;
        void *arg = u->arg;

        upgrade_cancel(u);
        cb(arg, ok ? NULL : &err, s);
}

static void finish(struct upgrade *u) {
        if (u->over)
                return;
        u->over = true;
        uv_timer_start(&u->timer, on_over, 0, 0);
}

static void on_timeout(uv_timer_t *t) {
        struct upgrade *u = t->data;

        api_error_set(&u->err, "timeout", "cspaced did not answer in time");
        finish(u);
}

static void on_head(void *arg, const struct http1_head *head) {
        struct upgrade *u = arg;

        u->status = head->status;
        if (u->over || head->status != 101)
                return;
        u->result = http_call_upgrade(u->call);
        if (!u->result)
                api_error_set(&u->err, "protocol", "the connection could not be taken over");
        finish(u);
}

static void on_body(void *arg, const uint8_t *data, size_t n) {
        struct upgrade *u = arg;

        (void) buf_append(&u->body, data, n);
}

static void on_end(void *arg) {
        struct upgrade *u = arg;

        if (u->over)
                return;
        if (u->status >= 200 && u->status < 300)
                api_error_set(&u->err, "protocol", "cspaced did not switch protocols");
        else
                client_body_error(u->status, buf_data(&u->body), u->body.len, &u->err);
        finish(u);
}

static void on_error(void *arg, int err) {
        struct upgrade *u = arg;

        if (u->over)
                return;
        api_error_set(&u->err, "connection_lost", "the connection to cspaced was lost: %s",
                      strerror(err < 0 ? -err : err));
        finish(u);
}

static const struct http_call_ops call_ops = {
        .on_head = on_head,
        .on_body = on_body,
        .on_end = on_end,
        .on_error = on_error,
};

static void on_dialled(void *arg, const struct error *err, struct stream *s) {
        struct http_header h[CLIENT_HEADERS_MAX + 2];
        struct upgrade *u = arg;
        struct error call_err = ERROR_INIT;

        u->dialer = NULL;
        if (!s) {
                client_dial_error(u->c, err, &u->err);
                finish(u);
                return;
        }
        size_t nh = client_headers(u->c, h), n = u->content ? strlen(u->content) : 0;
        if (u->protocol) {
                h[nh++] = (struct http_header) { "Connection", "Upgrade" };
                h[nh++] = (struct http_header) { "Upgrade", u->protocol };
        } else {
                h[nh++] = (struct http_header) { "Content-Type", "application/json" };
        }
        int r = http_call_new(&u->c->loop, s, u->method, u->target, h, nh, (int64_t) n, &call_ops, u,
                              &u->call, &call_err);
        if (r == 0 && n > 0 && (http_call_write(u->call, u->content, n) < 0 || http_call_end(u->call) < 0))
                r = error_set(&call_err, -EPIPE, "the request could not be sent");
        if (r < 0) {
                api_error_set(&u->err, "protocol", "%s", call_err.msg);
                finish(u);
        }
}

static struct upgrade *begin(struct client *c, const char *method, const char *target, const char *protocol,
                             const char *content, upgrade_cb cb, void *arg) {
        struct upgrade *u = mem_new(sizeof *u);

        u->c = c;
        u->method = method;
        u->target = mem_dup(target);
        u->protocol = protocol ? mem_dup(protocol) : NULL;
        u->content = content ? mem_dup(content) : NULL;
        u->cb = cb;
        u->arg = arg;
        u->body = BUF_INIT(UPGRADE_ERROR_MAX);
        uv_timer_init(&c->loop, &u->timer);
        u->timer.data = u;
        uv_timer_start(&u->timer, on_timeout, UPGRADE_TIMEOUT_MS, 0);
        u->dialer = dialer_start(&c->loop, &c->to, on_dialled, u);
        return u;
}

struct upgrade *upgrade_start(struct client *c, const char *target, const char *protocol, upgrade_cb cb,
                              void *arg) {
        return begin(c, "GET", target, protocol, NULL, cb, arg);
}

struct upgrade *upgrade_send(struct client *c, const char *method, const char *target, const char *json,
                             upgrade_cb cb, void *arg) {
        return begin(c, method, target, NULL, json, cb, arg);
}
