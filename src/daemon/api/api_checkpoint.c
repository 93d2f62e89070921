/* SPDX-License-Identifier: Apache-2.0 */

/* /v1/sandboxes/{id}/checkpoints and /rollback. */

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "api_named.h"
#include "api_wait.h"
#include "app.h"
#include "base/json.h"
#include "base/str.h"
#include "peers/rootd.h"
#include "sandbox/checkpoint.h"
#include "sandbox/sandbox_flow.h"
#include "store/idem.h"
#include "store/op.h"

#define SIZE_TIMEOUT_MS 10000

/* Makes the operation of one of these requests and waits as it says. */
static void begin(struct api_req *r, struct sandbox *s, enum sandbox_verb verb, struct sandbox_change_params *p) {
        struct error e = ERROR_INIT;
        struct op *o = NULL;
        struct api_wait *w = NULL;
        if (!api_wait_begin(r, 200, true, &w))
                return;
        p->owner = r->owner;
        p->idem = r->idem_scope;
        int rc = sandbox_change_with(r->app, s, verb, p, api_wait_durable, w, &o, &e);
        if (rc < 0) {
                enum api_code code = rc == -EAGAIN ? API_TOO_MANY : rc == -EEXIST ? API_NAME_TAKEN : api_code_from_errno(rc);
                api_error(r, code, "%s", e.msg[0] ? e.msg : "out of memory");
                api_wait_free(w);
                return;
        }
        api_wait_set(w, o);
}

static void create(struct api_req *r) {
        static const char *const keys[] = { "kind", "name", NULL };
        struct sandbox_change_params p = { 0 };
        struct error e = ERROR_INIT;
        const char *kind = "disk", *name = NULL;
        struct sandbox *s = api_sandbox(r);
        if (!s)
                return;
        if (r->body && (json_only_keys(r->body, keys, &e) < 0 || json_read_str(r->body, "kind", false, 15, &kind, &e) < 0 ||
                        json_read_str(r->body, "name", false, CHECKPOINT_NAME_MAX, &name, &e) < 0)) {
                api_error_err(r, API_INVALID_ARGUMENT, &e);
                return;
        }
        if (!str_eq(kind, "disk") && !str_eq(kind, "full")) {
                api_error(r, API_INVALID_ARGUMENT, "\"kind\" is disk or full");
                return;
        }
        if (name && !sandbox_name_valid(name)) {
                api_error(r, API_INVALID_ARGUMENT, "\"%.80s\" is not a legal name: 1 to %d of a-z 0-9 . _ -, starting with a"
                          " letter or digit, and not in the form of an id", name, CHECKPOINT_NAME_MAX);
                return;
        }
        if (name && (str_eq(name, "template") || str_eq(name, "now"))) {
                api_error(r, API_INVALID_ARGUMENT, "\"%s\" has a meaning already where checkpoints are named: choose another name", name);
                return;
        }
        p.full = str_eq(kind, "full");
        p.name = name;
        begin(r, s, SANDBOX_CHECKPOINT, &p);
}

/* The list, when cspace-rootd has said of each how much room it takes. */
struct listing {
        struct api_req *r;
        json_t *all;
        char head[ID_SIZE];
        unsigned waiting;
};

struct sizing {
        struct listing *l;
        json_t *item; /* borrowed from the list */
};

static void sized(struct listing *l) {
        if (--l->waiting > 0)
                return;
        api_reply(l->r, 200, json_pack("{s:o, s:s?}", "checkpoints", l->all, "head", l->head[0] ? l->head : NULL));
        api_req_unref(l->r);
        free(l);
}

static void on_size(void *arg, int err, const struct error *e, struct ipc_packet *p) {
        struct sizing *z = arg;
        struct ipc_usage_info m;
        (void) e;
        if (err >= 0 && ipc_usage_info_decode(p->body, p->body_n, &m) >= 0)
                (void) json_object_set_new(z->item, "disk_bytes", json_integer((json_int_t) m.disk_bytes));
        sized(z->l);
        free(z);
}

static void ask_size(struct listing *l, json_t *item, const char *id) {
        struct ipc_image_usage m = { 0 };
        uint8_t body[64];
        size_t n;
        struct sizing *z = calloc(1, sizeof *z);
        (void) str_copy(m.image, sizeof m.image, id);
        if (z)
                *z = (struct sizing){ .l = l, .item = item };
        if (z && ipc_image_usage_encode(&m, body, sizeof body, &n) >= 0 &&
            rootd_call(l->r->app->rootd, IPC_IMAGE_USAGE, body, n, NULL, 0, SIZE_TIMEOUT_MS, on_size, z, NULL) >= 0)
                l->waiting++;
        else
                free(z);
}

static void list(struct api_req *r) {
        struct sandbox *s = api_sandbox(r);
        struct listing *l = s ? calloc(1, sizeof *l) : NULL;
        if (!l) {
                if (s)
                        api_error(r, API_INTERNAL, "out of memory");
                return;
        }
        *l = (struct listing){ .r = api_req_ref(r), .all = json_array(), .waiting = 1 };
        memcpy(l->head, s->head, sizeof l->head);
        for (const struct checkpoint *c = s->checkpoints; c; c = c->next) {
                json_t *item = checkpoint_to_json(c);
                (void) json_object_set_new(item, "disk_bytes", json_null());
                if (json_array_append_new(l->all, item) >= 0)
                        ask_size(l, item, c->id);
        }
        sized(l);
}

struct removed {
        struct api_req *r;
        char image[ID_SIZE];
        struct image_hold hold;
};

/* The image goes when nothing durable names it any more. */
static void on_row_gone(void *arg, int err, const struct error *e) {
        struct removed *x = arg;
        image_unhold(x->r->app, &x->hold);
        if (err < 0)
                api_error_err(x->r, api_code_from_errno(err), e);
        else
                api_reply_empty(x->r, 204);
        if (err >= 0)
                image_release(x->r->app, x->image);
        api_req_unref(x->r);
        free(x);
}

static void remove_one(struct api_req *r) {
        struct sandbox *s = api_sandbox(r);
        struct checkpoint *c = s ? api_checkpoint(r, s, r->params[1]) : NULL;
        if (!c)
                return;
        if (s->life || s->create) {
                api_error(r, API_CONFLICT, "the sandbox is %s", sandbox_state_name(s->state));
                return;
        }
        struct removed *x = calloc(1, sizeof *x);
        struct db_batch *b = db_batch_new();
        if (!x || !b) {
                free(x);
                db_batch_free(b);
                api_error(r, API_INTERNAL, "out of memory");
                return;
        }
        x->r = api_req_ref(r);
        memcpy(x->image, c->id, sizeof x->image);
        image_hold(r->app, &x->hold, x->image);
        checkpoint_remove(s, c, b);
        int rc = db_batch_submit(r->app->db, b, on_row_gone, x);
        if (rc < 0)
                on_row_gone(x, rc, &(struct error){ .msg = "could not store the change" });
}

static void rollback(struct api_req *r) {
        static const char *const keys[] = { "checkpoint", NULL };
        struct sandbox_change_params p = { 0 };
        struct error e = ERROR_INIT;
        const char *name = NULL;
        struct sandbox *s = api_sandbox(r);
        if (!s)
                return;
        if (!r->body || json_only_keys(r->body, keys, &e) < 0 || json_read_str(r->body, "checkpoint", true, 128, &name, &e) < 0) {
                api_error(r, API_INVALID_ARGUMENT, "%s", e.msg[0] ? e.msg : "a body with \"checkpoint\" is needed");
                return;
        }
        p.checkpoint = api_checkpoint(r, s, name);
        if (p.checkpoint)
                begin(r, s, SANDBOX_ROLLBACK, &p);
}

const struct api_route checkpoint_routes[] = {
        { "POST", "/v1/sandboxes/{id}/checkpoints", create, API_BODY_JSON, API_FLAG_IDEM | API_FLAG_SETTLED },
        { "GET", "/v1/sandboxes/{id}/checkpoints", list, API_BODY_NONE, 0 },
        { "DELETE", "/v1/sandboxes/{id}/checkpoints/{checkpoint}", remove_one, API_BODY_NONE, 0 },
        { "POST", "/v1/sandboxes/{id}/rollback", rollback, API_BODY_JSON, API_FLAG_IDEM | API_FLAG_SETTLED },
};
const size_t checkpoint_routes_n = sizeof checkpoint_routes / sizeof checkpoint_routes[0];
