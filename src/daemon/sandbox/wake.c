/* SPDX-License-Identifier: Apache-2.0 */
#include "wake.h"

#include <errno.h>
#include <stdlib.h>

#include "app.h"
#include "base/id.h"
#include "base/str.h"
#include "proxy/proxy.h"
#include "sandbox_flow.h"
#include "store/op.h"

#define WAKE_WAIT_MS 180000 /* a boot may take so long */

#define ASLEEP                                                                                                      \
        (SANDBOX_BIT(SANDBOX_PAUSING) | SANDBOX_BIT(SANDBOX_PAUSED) | SANDBOX_BIT(SANDBOX_RESUMING) |                 \
         SANDBOX_BIT(SANDBOX_SUSPENDING) | SANDBOX_BIT(SANDBOX_SUSPENDED) | SANDBOX_BIT(SANDBOX_RESTORING) |           \
         SANDBOX_BIT(SANDBOX_STOPPING) | SANDBOX_BIT(SANDBOX_STOPPED) | SANDBOX_BIT(SANDBOX_STARTING))

struct held {
        struct app *app;
        struct api_req *r; /* or */
        struct http_x *x;
        bool (*again)(struct app *app, struct http_x *x);
        char id[ID_SIZE];
        struct op_wait *wait;
};

bool wake_wanted(const struct sandbox *s) {
        return s->rules.wake && !s->del && (SANDBOX_BIT(s->state) & ASLEEP);
}

/* The move that is under way, which may be one down: whoever waits for it asks again; or a wake. */
static struct op *op_to_wait_for(struct app *app, struct sandbox *s, struct error *err) {
        struct op *o = life_op_of(app, s);
        if (o || sandbox_change(app, s, SANDBOX_WAKE, "", NULL, NULL, NULL, &o, err) >= 0)
                return o;
        return NULL;
}

static const struct http_x_ops no_ops = { 0 };

static void on_request_awake(void *arg, struct op *o) {
        struct held *h = arg;
        struct api_req *r = h->r;
        r->on_gone = NULL;
        if (r->x) {
                http_x_read_resume(r->x);
                if (!o || o->state == OP_RUNNING)
                        api_error(r, API_GUEST_TIMEOUT, "the sandbox does not wake up");
                else if (o->state == OP_FAILED)
                        api_error(r, o->code, "the sandbox does not wake up: %s", o->message ? o->message : "unknown error");
                else
                        r->route->handler(r);
        }
        api_req_unref(r);
        free(h);
}

static void on_request_gone(void *arg) {
        struct held *h = arg;
        op_wait_cancel(h->wait);
        api_req_unref(h->r);
        free(h);
}

void wake_request(struct api_req *r, struct sandbox *s) {
        struct error e = ERROR_INIT;
        struct held *h = calloc(1, sizeof *h);
        struct op *o = h ? op_to_wait_for(r->app, s, &e) : NULL;
        if (o)
                h->wait = op_wait_start(r->app, o, WAKE_WAIT_MS, on_request_awake, h);
        if (!h || !h->wait) {
                free(h);
                api_error(r, e.code ? api_code_from_errno(e.code) : API_INTERNAL, "%s", e.code ? e.msg : "out of memory");
                return;
        }
        h->app = r->app;
        h->r = api_req_ref(r);
        r->on_gone = on_request_gone;
        r->gone_arg = h;
        http_x_read_pause(r->x);
}

static void on_traffic_awake(void *arg, struct op *o) {
        struct held *h = arg;
        http_x_set_ops(h->x, &no_ops, NULL);
        http_x_read_resume(h->x);
        if (!o || o->state != OP_SUCCEEDED)
                proxy_refuse_not_found(h->x, h->id);
        else
                (void) h->again(h->app, h->x);
        free(h);
}

static void on_traffic_gone(void *arg) {
        struct held *h = arg;
        op_wait_cancel(h->wait);
        free(h);
}

void wake_traffic(struct app *app, struct http_x *x, struct sandbox *s, bool (*again)(struct app *app, struct http_x *x)) {
        static const struct http_x_ops ops = { .on_abort = on_traffic_gone, .on_done = on_traffic_gone };
        struct held *h = calloc(1, sizeof *h);
        struct op *o = h ? op_to_wait_for(app, s, NULL) : NULL;
        if (o)
                h->wait = op_wait_start(app, o, WAKE_WAIT_MS, on_traffic_awake, h);
        if (!h || !h->wait) {
                free(h);
                proxy_refuse_not_found(x, s->id);
                return;
        }
        h->app = app;
        h->x = x;
        h->again = again;
        (void) str_copy(h->id, sizeof h->id, s->id);
        http_x_read_pause(x);
        http_x_set_ops(x, &ops, h);
}
