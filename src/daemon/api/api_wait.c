/* SPDX-License-Identifier: Apache-2.0 */

#include "api_wait.h"

#include <stdlib.h>
#include <string.h>

#include "app.h"
#include "sandbox/sandbox.h"
#include "store/idem.h"
#include "store/op.h"

struct api_wait {
        struct api_req *r;
        char op_id[ID_SIZE];
        uint64_t wait_ms;
        int done_status;
        bool with_sandbox;
        struct op_wait *wait;
};

struct api_wait *api_wait_new(struct api_req *r, uint64_t wait_ms, int done_status, bool with_sandbox) {
        struct api_wait *w = calloc(1, sizeof *w);
        if (!w)
                return NULL;
        *w = (struct api_wait){
                .r = api_req_ref(r), .wait_ms = wait_ms, .done_status = done_status, .with_sandbox = with_sandbox };
        return w;
}

void api_wait_free(struct api_wait *w) {
        if (!w)
                return;
        api_req_unref(w->r);
        free(w);
}

void api_wait_set(struct api_wait *w, const struct op *o) {
        memcpy(w->op_id, o->id, sizeof w->op_id);
}

/* Those that a fork has made and that are still there. */
static json_t *forked(struct app *app, const struct op *o) {
        json_t *all = json_array(), *id;
        size_t i;
        json_array_foreach(json_object_get(o->result, "sandboxes"), i, id) {
                const struct sandbox *s = sandbox_find(app, json_string_value(id));
                if (s)
                        (void) json_array_append_new(all, sandbox_to_json(s, true));
        }
        return all;
}

static json_t *body_of(const struct api_wait *w, const struct op *o) {
        json_t *j = json_pack("{s:o}", "operation", op_to_json(o));
        if (j && o->kind == OP_FORK && o->state == OP_SUCCEEDED) {
                (void) json_object_set_new(j, "sandboxes", forked(w->r->app, o));
        } else if (j && w->with_sandbox) {
                const struct sandbox *s = sandbox_find(w->r->app, o->sandbox_id);
                (void) json_object_set_new(j, "sandbox", s ? sandbox_to_json(s, true) : json_null());
        }
        return j;
}

static void answer(struct api_wait *w, const struct op *o) {
        struct api_req *r = w->r;
        if (!o)
                api_error(r, API_INTERNAL, "the operation could not be stored");
        else if (o->state == OP_RUNNING)
                api_reply(r, 202, body_of(w, o));
        else if (o->state == OP_SUCCEEDED)
                api_reply(r, w->done_status, body_of(w, o));
        else
                api_error_details(r, o->code,
                                  json_pack("{s:s, s:s?}", "operation_id", o->id, "sandbox_id",
                                            o->sandbox_id[0] ? o->sandbox_id : NULL),
                                  "%s", o->message ? o->message : "unknown error");
        api_wait_free(w);
}

static void on_wait(void *arg, struct op *o) {
        struct api_wait *w = arg;
        w->wait = NULL;
        w->r->on_gone = NULL;
        answer(w, o);
}

static void on_gone(void *arg) {
        struct api_wait *w = arg;
        op_wait_cancel(w->wait);
        api_wait_free(w);
}

static void wait_or_answer(struct api_wait *w) {
        struct op *o = op_find(w->r->app, w->op_id);
        if (!w->r->x) {
                api_wait_free(w);
                return;
        }
        if (o && o->state == OP_RUNNING && w->wait_ms > 0)
                w->wait = op_wait_start(w->r->app, o, w->wait_ms, on_wait, w);
        if (!w->wait) {
                answer(w, o);
                return;
        }
        w->r->on_gone = on_gone;
        w->r->gone_arg = w;
}

void api_wait_durable(void *arg, int err, const struct error *e) {
        struct api_wait *w = arg;
        if (err < 0) {
                api_error_err(w->r, api_code_from_errno(err), e);
                api_wait_free(w);
                return;
        }
        wait_or_answer(w);
}

void api_wait_existing(struct api_req *r, struct op *o, uint64_t wait_ms, int done_status, bool with_sandbox) {
        struct api_wait *w = api_wait_new(r, wait_ms, done_status, with_sandbox);
        if (!w) {
                api_error(r, API_INTERNAL, "out of memory");
                return;
        }
        api_wait_set(w, o);
        wait_or_answer(w);
}

bool api_wait_begin(struct api_req *r, int done_status, bool with_sandbox, struct api_wait **ret) {
        struct op *o = NULL;
        uint64_t wait_ms = 0;
        if (api_query_wait(r, &wait_ms) < 0)
                return false;
        int idem = idem_begin(r, &o);
        if (idem == 2)
                api_wait_existing(r, o, wait_ms, done_status, with_sandbox);
        if (idem != 0)
                return false;
        *ret = api_wait_new(r, wait_ms, done_status, with_sandbox);
        if (!*ret)
                api_error(r, API_INTERNAL, "out of memory");
        return *ret;
}
