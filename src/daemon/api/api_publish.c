/* SPDX-License-Identifier: Apache-2.0 */

/* /v1/sandboxes/{id}/publish: a sandbox becomes a template. */

#include <errno.h>
#include <string.h>

#include "api_wait.h"
#include "app.h"
#include "base/json.h"
#include "base/str.h"
#include "sandbox/checkpoint.h"
#include "sandbox/sandbox.h"
#include "store/idem.h"
#include "store/op.h"

static int read_params(const json_t *b, struct sandbox_publish_params *p, char ref[TEMPLATE_REF_SIZE], const char **checkpoint,
                       struct error *err) {
        static const char *const keys[] = { "name", "tag", "kind", "checkpoint", NULL };
        const char *name = NULL, *tag = TEMPLATE_TAG_DEFAULT, *kind = "disk";
        char text[2 * TEMPLATE_REF_SIZE];
        if (!b)
                return error_set(err, -EINVAL, "a body with \"name\" is needed");
        int r = json_only_keys(b, keys, err);
        if (r >= 0)
                r = json_read_str(b, "name", true, TEMPLATE_NAME_MAX, &name, err);
        if (r >= 0)
                r = json_read_str(b, "tag", false, TEMPLATE_NAME_MAX, &tag, err);
        if (r >= 0)
                r = json_read_str(b, "kind", false, 15, &kind, err);
        if (r >= 0)
                r = json_read_str(b, "checkpoint", false, 128, checkpoint, err);
        if (r < 0)
                return r;
        if (strchr(name, ':'))
                return error_set(err, -EINVAL, "\"%.80s\" is not a legal template name", name);
        if (!str_eq(kind, "disk") && !str_eq(kind, "full"))
                return error_set(err, -EINVAL, "\"kind\" is disk or full");
        (void) snprintf(text, sizeof text, "%s:%s", name, tag);
        r = template_ref_parse(text, ref, err);
        p->ref = ref;
        p->full = str_eq(kind, "full");
        return r;
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
        struct sandbox *s = sandbox_find_any(r->app, r->params[0]);
        if (!s) {
                api_error(r, API_SANDBOX_NOT_FOUND, "sandbox \"%.80s\" does not exist", r->params[0]);
                return;
        }
        if (read_params(r->body, &p, ref, &checkpoint, &e) < 0) {
                api_error_err(r, API_INVALID_ARGUMENT, &e);
                return;
        }
        if (checkpoint && !(p.checkpoint = checkpoint_find(s, checkpoint))) {
                api_error(r, API_CHECKPOINT_NOT_FOUND, "sandbox \"%s\" has no checkpoint \"%.80s\"", s->id, checkpoint);
                return;
        }
        begin(r, s, &p);
}

const struct api_route publish_routes[] = {
        { "POST", "/v1/sandboxes/{id}/publish", publish, API_BODY_JSON, API_FLAG_IDEM },
};
const size_t publish_routes_n = sizeof publish_routes / sizeof publish_routes[0];
