/* SPDX-License-Identifier: Apache-2.0 */
#include "warm_attach.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "app.h"
#include "base/cleanup.h"
#include "base/id.h"
#include "base/str.h"
#include "io/http_client.h"
#include "proxy/dial.h"
#include "proxy/proxy.h"
#include "sandbox.h"
#include "timer.h"
#include "wire/attach.h"

struct warm_attach {
        struct app *app;
        char target[128];
        char token[SANDBOX_TOKEN_LEN + 1];
        struct dial *dial;
        struct http_call *call;
        struct stream *agent;
        struct attach_reader in;
        struct timer *timer;
        warm_attach_cb cb;
        void *arg;
};

void warm_attach_cancel(struct warm_attach *a) {
        if (!a)
                return;
        timer_cancel(a->timer);
        dial_cancel(a->dial);
        http_call_free(a->call);
        stream_abort(a->agent);
        buf_done(&a->in.in);
        explicit_bzero(a->token, sizeof a->token);
        free(a);
}

static void over(struct warm_attach *a, int err, const char *why) {
        struct error e = ERROR_INIT;
        warm_attach_cb cb = a->cb;
        void *arg = a->arg;
        if (err < 0)
                (void) error_set(&e, err, "%s", why);
        warm_attach_cancel(a);
        cb(arg, err, &e);
}

static int send_frame(struct warm_attach *a, enum attach_type type, const void *data, size_t n) {
        _cleanup_buf_ struct buf b = BUF_INIT(256);
        int r = attach_write(&b, type, data, n, NULL, 0);
        return r < 0 ? r : stream_write(a->agent, buf_data(&b), b.len);
}

/* Output begins with its offset. */
static int acknowledge(struct warm_attach *a, const uint8_t *data, size_t n) {
        uint8_t ack[8];
        if (n < sizeof ack)
                return -EPROTO;
        attach_put_u64(ack, attach_get_u64(data) + n - sizeof ack);
        return send_frame(a, ATTACH_ACK, ack, sizeof ack);
}

static void on_data(void *arg, const uint8_t *bytes, size_t bytes_n) {
        struct warm_attach *a = arg;
        const uint8_t *data;
        uint8_t type;
        size_t n;
        int r = buf_append(&a->in.in, bytes, bytes_n);
        while (r >= 0 && (r = attach_reader_peek(&a->in, &type, &data, &n)) > 0) {
                if (type == ATTACH_EXIT) {
                        over(a, 0, NULL);
                        return;
                }
                if (type == ATTACH_STDOUT || type == ATTACH_STDERR)
                        r = acknowledge(a, data, n);
                attach_reader_next(&a->in);
        }
        if (r < 0)
                over(a, r, "the agent's frames cannot be read");
}

static void on_eof(void *arg) {
        over(arg, -ECONNRESET, "the stream ended before the command did");
}

static void on_error(void *arg, int err) {
        over(arg, err, "the stream to the agent was lost");
}

static const struct stream_handler agent_handler = { .on_data = on_data, .on_eof = on_eof, .on_error = on_error };

static void on_head(void *arg, const struct http1_head *h) {
        struct warm_attach *a = arg;
        if (h->status != 101)
                return;
        a->agent = http_call_upgrade(a->call);
        http_call_free(STEAL(a->call));
        if (!a->agent || send_frame(a, ATTACH_STDIN, "warm\n", 5) < 0 || send_frame(a, ATTACH_STDIN_EOF, NULL, 0) < 0) {
                over(a, -ECONNRESET, "the stream to the agent was lost");
                return;
        }
        stream_set_handler(a->agent, &agent_handler, a);
        stream_read_start(a->agent);
}

static void on_body(void *arg, const uint8_t *data, size_t n) {
        (void) arg;
        (void) data;
        (void) n;
}

static void on_refused(void *arg) {
        over(arg, -EPROTO, "the agent did not upgrade");
}

static const struct http_call_ops call_ops = { .on_head = on_head, .on_body = on_body, .on_end = on_refused, .on_error = on_error };

static void on_dialed(void *arg, int err, struct stream *s) {
        struct warm_attach *a = arg;
        struct error e = ERROR_INIT;
        a->dial = NULL;
        if (err < 0) {
                over(a, err, "the agent cannot be reached");
                return;
        }
        const struct http_header h[] = { { "Host", "agent" },
                                         { "Connection", "Upgrade" },
                                         { "Upgrade", ATTACH_UPGRADE },
                                         { "X-Access-Token", a->token } };
        int r = http_call_new(a->app->loop, s, "GET", a->target, h, ARRAY_SIZE(h), 0, &call_ops, a, &a->call, &e);
        if (r < 0)
                over(a, r, e.msg);
}

static void on_timeout(void *arg) {
        struct warm_attach *a = arg;
        a->timer = NULL;
        over(a, -ETIMEDOUT, "the command did not end");
}

int warm_attach_start(struct app *app, const char *id, const char *process, const char *token, unsigned timeout_ms,
                      warm_attach_cb cb, void *arg, struct warm_attach **ret, struct error *err) {
        struct warm_attach *a = calloc(1, sizeof *a);
        if (!a)
                return error_set(err, -ENOMEM, "out of memory");
        *a = (struct warm_attach){ .app = app, .cb = cb, .arg = arg, .in.in = BUF_INIT(ATTACH_PAYLOAD_MAX + 2 * ATTACH_HEAD) };
        (void) snprintf(a->target, sizeof a->target, "/cspace/v1/processes/%s/attach?offset=0", process);
        (void) str_copy(a->token, sizeof a->token, token);
        a->timer = timer_start(app->loop, timeout_ms, on_timeout, a);
        int r = a->timer ? proxy_dial(app->proxy, id, AGENT_PORT, on_dialed, a, &a->dial, err)
                         : error_set(err, -ENOMEM, "out of memory");
        if (r < 0) {
                warm_attach_cancel(a);
                return r;
        }
        *ret = a;
        return 0;
}
