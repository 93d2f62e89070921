/* SPDX-License-Identifier: Apache-2.0 */
#include "api_named.h"

#include <stdlib.h>

#include "base/json.h"
#include "sandbox/checkpoint.h"
#include "sandbox/sandbox.h"

struct sandbox *api_sandbox(struct api_req *r) {
        struct sandbox *s = sandbox_find_any(r->app, r->params[0]);
        if (!s)
                api_error(r, API_SANDBOX_NOT_FOUND, "sandbox \"%.80s\" does not exist", r->params[0]);
        return s;
}

struct checkpoint *api_checkpoint(struct api_req *r, const struct sandbox *s, const char *id_or_name) {
        struct checkpoint *c = checkpoint_find(s, id_or_name);
        if (!c)
                api_error(r, API_CHECKPOINT_NOT_FOUND, "sandbox \"%s\" has no checkpoint \"%.80s\"", s->id, id_or_name);
        return c;
}

int api_template_ref(const json_t *body, char ref[TEMPLATE_REF_SIZE], struct error *err) {
        const char *name = NULL, *tag = TEMPLATE_TAG_DEFAULT;
        int r = json_read_str(body, "name", true, TEMPLATE_NAME_MAX, &name, err);
        if (r >= 0)
                r = json_read_str(body, "tag", false, TEMPLATE_NAME_MAX, &tag, err);
        return r < 0 ? r : template_ref_make(name, tag, ref, err);
}

/* ---- changes of a sandbox -------------------------------------------------------------------- */

struct api_changed {
        struct api_req *r; /* references */
        struct sandbox *s;
        void (*reply)(struct api_req *r, const struct sandbox *s);
        enum api_code (*code)(int err);
};

struct api_changed *api_changed_new(struct api_req *r, struct sandbox *s, void (*reply)(struct api_req *r, const struct sandbox *s),
                                    enum api_code (*code)(int err)) {
        struct api_changed *c = calloc(1, sizeof *c);
        if (!c) {
                api_error(r, API_INTERNAL, "out of memory");
                return NULL;
        }
        *c = (struct api_changed){ .r = api_req_ref(r), .s = sandbox_ref(s), .reply = reply, .code = code };
        return c;
}

void api_changed_free(struct api_changed *c) {
        sandbox_unref(c->s);
        api_req_unref(c->r);
        free(c);
}

void api_changed_durable(void *arg, int err, const struct error *e) {
        struct api_changed *c = arg;
        if (err < 0)
                api_error_err(c->r, c->code(err), e);
        else
                c->reply(c->r, c->s);
        api_changed_free(c);
}
