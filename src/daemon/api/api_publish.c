/* SPDX-License-Identifier: Apache-2.0 */

/* /v1/sandboxes/{id}/publish: a sandbox becomes a template. */

#include <errno.h>

#include "api_named.h"
#include "api_wait.h"
#include "app.h"
#include "base/json.h"
#include "base/str.h"
#include "sandbox/sandbox.h"
#include "store/idem.h"
#include "store/op.h"

static int read_params(const json_t *b, struct sandbox_publish_params *p, char ref[TEMPLATE_REF_SIZE], const char **checkpoint,
                       struct error *err) {
        static const char *const keys[] = { "name", "tag", "kind", "checkpoint", NULL };
        const char *kind = "disk";
        if (!b)
                return error_set(err, -EINVAL, "a body with \"name\" is needed");
        int r = json_only_keys(b, keys, err);
        if (r >= 0)
                r = api_template_ref(b, ref, err);
        if (r >= 0)
                r = json_read_str(b, "kind", false, 15, &kind, err);
        if (r >= 0)
                r = json_read_str(b, "checkpoint", false, 128, checkpoint, err);
        if (r < 0)
                return r;
        if (!str_eq(kind, "disk") && !str_eq(kind, "full"))
                return error_set(err, -EINVAL, "\"kind\" is disk or full");
        p->ref = ref;
        p->full = str_eq(kind, "full");
        return 0;
}

static void begin(struct api_req *r, struct sandbox *s, struct sandbox_publish_params *p) {
        struct error e = ERROR_INIT;
        struct op *o = NULL;
        struct api_wait *w = NULL;
        if (!api_wait_begin(r, 201, true, &w))
                return;
        p->owner = r->owner;
        p->idem = r->idem_scope;
        int rc = sandbox_publish(r->app, s, p, api_wait_durable, w, &o, &e);
        if (rc >= 0) {
                api_wait_set(w, o);
                return;
        }
        if (rc == -EALREADY && o)
                api_error_details(r, API_BUILD_RUNNING, json_pack("{s:s}", "operation_id", o->id), "%s", e.msg);
        else
                api_error(r, rc == -EAGAIN ? API_TOO_MANY : api_code_from_errno(rc), "%s", e.msg[0] ? e.msg : "out of memory");
        api_wait_free(w);
}

static void publish(struct api_req *r) {
        struct sandbox_publish_params p = { 0 };
        char ref[TEMPLATE_REF_SIZE];
        struct error e = ERROR_INIT;
        const char *checkpoint = NULL;
        struct sandbox *s = api_sandbox(r);
        if (!s)
                return;
        if (read_params(r->body, &p, ref, &checkpoint, &e) < 0) {
                api_error_err(r, API_INVALID_ARGUMENT, &e);
                return;
        }
        if (checkpoint && !(p.checkpoint = api_checkpoint(r, s, checkpoint)))
                return;
        begin(r, s, &p);
}

const struct api_route publish_routes[] = {
        { "POST", "/v1/sandboxes/{id}/publish", publish, API_BODY_JSON, API_FLAG_IDEM | API_FLAG_SETTLED },
};
const size_t publish_routes_n = sizeof publish_routes / sizeof publish_routes[0];
