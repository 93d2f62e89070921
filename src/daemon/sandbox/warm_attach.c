/* SPDX-License-Identifier: Apache-2.0 */
#include "warm_attach.h"

#include <errno.h>
#include <stdlib.h>

#include "app.h"
#include "base/cleanup.h"
#include "io/stream.h"
#include "peers/agent_attach.h"
#include "timer.h"
#include "wire/attach.h"

struct warm_attach {
        struct app *app;
        struct agent_attach *way;
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
        agent_attach_cancel(a->way);
        stream_abort(a->agent);
        buf_done(&a->in.in);
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

static void on_upgraded(void *arg, struct stream *s) {
        struct warm_attach *a = arg;
        a->way = NULL;
        a->agent = s;
        if (send_frame(a, ATTACH_STDIN, "warm\n", 5) < 0 || send_frame(a, ATTACH_STDIN_EOF, NULL, 0) < 0) {
                over(a, -ECONNRESET, "the stream to the agent was lost");
                return;
        }
        stream_set_handler(a->agent, &agent_handler, a);
        stream_read_start(a->agent);
}

static void on_refused(void *arg, int status, const char *body, size_t n) {
        struct warm_attach *a = arg;
        (void) status;
        (void) body;
        (void) n;
        a->way = NULL;
        over(a, -EPROTO, "the agent did not upgrade");
}

static void on_lost(void *arg, int err, const char *why) {
        struct warm_attach *a = arg;
        a->way = NULL;
        over(a, err, why);
}

static const struct agent_attach_ops attach_ops = { .upgraded = on_upgraded, .refused = on_refused, .lost = on_lost };

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
        a->timer = timer_start(app->loop, timeout_ms, on_timeout, a);
        int r = a->timer ? agent_attach_start(app, id, process, 0, token, &attach_ops, a, &a->way, err)
                         : error_set(err, -ENOMEM, "out of memory");
        if (r < 0) {
                warm_attach_cancel(a);
                return r;
        }
        *ret = a;
        return 0;
}
