/* SPDX-License-Identifier: Apache-2.0 */
#include "agent_attach.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "app.h"
#include "base/buf.h"
#include "base/cleanup.h"
#include "base/str.h"
#include "io/http_client.h"
#include "proxy/dial.h"
#include "proxy/proxy.h"
#include "sandbox/sandbox.h"
#include "wire/attach.h"

#define REFUSAL_MAX 4096

struct agent_attach {
        struct app *app;
        char target[128];
        char token[SANDBOX_TOKEN_LEN + 1];
        struct dial *dial;
        struct http_call *call;
        int status;
        struct buf refusal;
        const struct agent_attach_ops *ops;
        void *arg;
};

void agent_attach_cancel(struct agent_attach *a) {
        if (!a)
                return;
        dial_cancel(a->dial);
        http_call_free(a->call);
        buf_done(&a->refusal);
        explicit_bzero(a->token, sizeof a->token);
        free(a);
}

static void lost(struct agent_attach *a, int err, const char *why) {
        const struct agent_attach_ops *ops = a->ops;
        void *arg = a->arg;
        agent_attach_cancel(a);
        ops->lost(arg, err, why);
}

static void on_head(void *arg, const struct http1_head *h) {
        struct agent_attach *a = arg;
        a->status = h->status;
        if (h->status != 101)
                return;
        const struct agent_attach_ops *ops = a->ops;
        void *its = a->arg;
        struct stream *s = http_call_upgrade(a->call);
        if (!s) {
                lost(a, -ECONNRESET, "the agent's upgrade failed");
                return;
        }
        agent_attach_cancel(a);
        ops->upgraded(its, s);
}

static void on_body(void *arg, const uint8_t *data, size_t n) {
        struct agent_attach *a = arg;
        (void) buf_append(&a->refusal, data, n); /* what is too long is cut */
}

static void on_end(void *arg) {
        struct agent_attach *a = arg;
        const struct agent_attach_ops *ops = a->ops;
        void *its = a->arg;
        int status = a->status;
        _cleanup_buf_ struct buf refusal = a->refusal;
        a->refusal = BUF_INIT(REFUSAL_MAX);
        agent_attach_cancel(a);
        ops->refused(its, status, (const char *) buf_data(&refusal), refusal.len);
}

static void on_error(void *arg, int err) {
        (void) err;
        lost(arg, -ECONNRESET, "the stream to the sandbox was lost");
}

static const struct http_call_ops call_ops = { .on_head = on_head, .on_body = on_body, .on_end = on_end, .on_error = on_error };

static void on_dialed(void *arg, int err, struct stream *s) {
        struct agent_attach *a = arg;
        struct error e = ERROR_INIT;
        a->dial = NULL;
        if (err < 0) {
                lost(a, err, "the sandbox's agent cannot be reached");
                return;
        }
        const struct http_header h[] = { { "Host", "agent" },
                                         { "Connection", "Upgrade" },
                                         { "Upgrade", ATTACH_UPGRADE },
                                         { "X-Access-Token", a->token } };
        int r = http_call_new(a->app->loop, s, "GET", a->target, h, ARRAY_SIZE(h), 0, &call_ops, a, &a->call, &e);
        if (r < 0)
                lost(a, r, e.msg);
}

int agent_attach_start(struct app *app, const char *id, const char *process, uint64_t offset, const char *token,
                       const struct agent_attach_ops *ops, void *arg, struct agent_attach **ret, struct error *err) {
        struct agent_attach *a = calloc(1, sizeof *a);
        if (!a)
                return error_set(err, -ENOMEM, "out of memory");
        *a = (struct agent_attach){ .app = app, .ops = ops, .arg = arg, .refusal = BUF_INIT(REFUSAL_MAX) };
        (void) snprintf(a->target, sizeof a->target, "/cspace/v1/processes/%s/attach?offset=%llu", process, (unsigned long long) offset);
        (void) str_copy(a->token, sizeof a->token, token);
        int r = proxy_dial(app->proxy, id, AGENT_PORT, on_dialed, a, &a->dial, err);
        if (r < 0) {
                agent_attach_cancel(a);
                return r;
        }
        *ret = a;
        return 0;
}
