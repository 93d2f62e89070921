/* SPDX-License-Identifier: Apache-2.0 */
#include "api_named.h"

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
