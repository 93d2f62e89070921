/* SPDX-License-Identifier: Apache-2.0 */

/* /v1/operations. */

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "api_wait.h"
#include "app.h"
#include "base/cleanup.h"
#include "base/json.h"
#include "base/str.h"
#include "store/op.h"

#define LIST_DEFAULT 100
#define LIST_MAX 1000

static struct op *find(struct api_req *r) {
        struct op *o = op_find(r->app, r->params[0]);
        if (!o)
                api_error(r, API_OPERATION_NOT_FOUND, "operation \"%.80s\" does not exist, or ended long ago", r->params[0]);
        return o;
}

/* The cursor is the id of the last one given. */
static void list(struct api_req *r) {
        _cleanup_free_ char *cursor = NULL, *kind = NULL, *state = NULL, *sandbox = NULL;
        uint64_t limit = LIST_DEFAULT;
        if (api_query_u64(r, "limit", 1, LIST_MAX, &limit) < 0 || api_query_str(r, "cursor", ID_LEN, &cursor) < 0 ||
            api_query_str(r, "kind", 16, &kind) < 0 || api_query_str(r, "state", 16, &state) < 0 ||
            api_query_str(r, "sandbox", ID_LEN, &sandbox) < 0)
                return;
        struct op *o = op_newest(r->app);
        if (cursor && cursor[0]) {
                struct op *last = op_find(r->app, cursor);
                if (!last) {
                        api_error(r, API_INVALID_ARGUMENT, "the cursor is not one that a list gave, or is too old");
                        return;
                }
                o = last->prev;
        }
        json_t *a = json_array();
        const struct op *last = NULL;
        for (; o; o = o->prev) {
                if ((kind && !str_eq(kind, op_kind_name(o->kind))) || (state && !str_eq(state, op_state_name(o->state))) ||
                    (sandbox && !str_eq(sandbox, o->sandbox_id)))
                        continue;
                if (json_array_size(a) == limit)
                        break;
                (void) json_array_append_new(a, op_to_json(o));
                last = o;
        }
        api_reply(r, 200, json_pack("{s:o, s:s?}", "operations", a, "next_cursor", o && last ? last->id : NULL));
}

struct waiting {
        struct api_req *r;
        struct op_wait *wait;
};

static void on_wait(void *arg, struct op *o) {
        struct waiting *w = arg;
        w->r->on_gone = NULL;
        if (o)
                api_reply(w->r, 200, op_to_json(o));
        else
                api_error(w->r, API_OPERATION_NOT_FOUND, "the operation could not be stored");
        api_req_unref(w->r);
        free(w);
}

static void on_gone(void *arg) {
        struct waiting *w = arg;
        op_wait_cancel(w->wait);
        api_req_unref(w->r);
        free(w);
}

static void get(struct api_req *r) {
        uint64_t wait_ms = 0;
        struct op *o = find(r);
        if (!o || api_query_wait(r, &wait_ms) < 0)
                return;
        struct waiting *w = o->state == OP_RUNNING && wait_ms > 0 ? calloc(1, sizeof *w) : NULL;
        if (w)
                w->wait = op_wait_start(r->app, o, wait_ms, on_wait, w);
        if (!w || !w->wait) {
                free(w);
                api_reply(r, 200, op_to_json(o));
                return;
        }
        w->r = api_req_ref(r);
        r->on_gone = on_gone;
        r->gone_arg = w;
}

static void log_of(struct api_req *r) {
        uint64_t offset = 0, start = 0;
        size_t n = 0;
        struct op *o = find(r);
        if (!o || api_query_u64(r, "offset", 0, INT64_MAX, &offset) < 0)
                return;
        const char *text = op_log_text(o, offset, &n, &start);
        api_reply(r, 200, json_pack("{s:s%, s:I, s:I, s:s}", "text", text, n, "offset", (json_int_t) start, "next_offset",
                                    (json_int_t) (start + n), "state", op_state_name(o->state)));
}

const struct api_route op_routes[] = {
        { "GET", "/v1/operations", list, API_BODY_NONE, 0 },
        { "GET", "/v1/operations/{id}", get, API_BODY_NONE, 0 },
        { "GET", "/v1/operations/{id}/log", log_of, API_BODY_NONE, 0 },
};
const size_t op_routes_n = ARRAY_SIZE(op_routes);
