/* SPDX-License-Identifier: Apache-2.0 */

/* POST /v1/sandboxes/{id}/fork. */

#include <errno.h>
#include <stdlib.h>

#include "api_named.h"
#include "api_wait.h"
#include "app.h"
#include "base/cleanup.h"
#include "base/json.h"
#include "base/str.h"
#include "egress/policies.h"
#include "sandbox/fork.h"
#include "sandbox/sandbox.h"
#include "store/idem.h"
#include "store/op.h"

/* "inherit" or what a create takes. */
static int read_policy(const json_t *body, struct sandbox_copy *copy, json_t **ret, struct error *err) {
        const char *word = json_string_value(json_object_get(body, "policy"));
        if ((!json_object_get(body, "policy") && !json_object_get(body, "allow")) ||
            (str_eq(word, "inherit") && !json_object_get(body, "allow")))
                return 0;
        int r = policy_from_request(body, ret, err);
        copy->own_policy = *ret != NULL;
        copy->policy = *ret;
        return r;
}

static int read_bindings(const json_t *body, struct sandbox_copy *copy, struct error *err) {
        const char *word = "none";
        int r = json_read_str(body, "bindings", false, 15, &word, err);
        if (r >= 0 && !str_eq(word, "none") && !str_eq(word, "inherit"))
                r = error_set(err, -EINVAL, "\"bindings\" is inherit or none");
        copy->bindings = str_eq(word, "inherit");
        return r;
}

static int read_params(const json_t *b, struct fork_params *p, const char **from, json_t **policy, struct error *err) {
        static const char *const keys[] = { "n", "checkpoint", "name", "env", "metadata", "ttl_s", "policy", "allow", "bindings", NULL };
        uint64_t n = 1, ttl = UINT64_MAX;
        json_t *env = NULL, *metadata = NULL;
        int r = json_only_keys(b, keys, err);
        if (r >= 0)
                r = json_read_u64(b, "n", false, 1, FORK_MAX, &n, err);
        if (r >= 0)
                r = json_read_str(b, "checkpoint", false, 128, from, err);
        if (r >= 0)
                r = json_read_str(b, "name", false, SANDBOX_NAME_MAX, &p->name, err);
        if (r >= 0)
                r = json_read_u64(b, "ttl_s", false, 0, LIMIT_TTL_MAX_S, &ttl, err);
        if (r >= 0)
                r = json_read_str_map(b, "env", LIMIT_ENV_ITEMS, LIMIT_PATH, LIMIT_ENV_VALUE, &env, err);
        if (r >= 0)
                r = json_read_str_map(b, "metadata", LIMIT_METADATA_ITEMS, LIMIT_METADATA_KEY, LIMIT_METADATA_VALUE, &metadata, err);
        if (r >= 0)
                r = read_policy(b, &p->copy, policy, err);
        if (r >= 0)
                r = read_bindings(b, &p->copy, err);
        p->n = (unsigned) n;
        p->copy.env = env;
        p->copy.metadata = metadata;
        p->copy.ttl_s = ttl == UINT64_MAX ? -1 : (int64_t) ttl;
        return r;
}

static void begin(struct api_req *r, struct sandbox *s, struct fork_params *p) {
        struct error e = ERROR_INIT;
        enum api_code code = API_INTERNAL;
        struct op *o = NULL;
        struct api_wait *w = NULL;
        if (!api_wait_begin(r, 201, true, &w))
                return;
        p->copy.owner = r->owner;
        p->idem = r->idem_scope;
        if (sandbox_fork(r->app, s, p, api_wait_durable, w, &o, &code, &e) < 0) {
                api_error(r, code, "%s", e.msg[0] ? e.msg : "out of memory");
                api_wait_free(w);
                return;
        }
        api_wait_set(w, o);
}

static void fork_it(struct api_req *r) {
        struct fork_params p = { .n = 1, .copy.ttl_s = -1 };
        _cleanup_json_ json_t *policy = NULL;
        struct error e = ERROR_INIT;
        const char *from = NULL;
        struct sandbox *s = api_sandbox(r);
        if (!s)
                return;
        if (r->body && read_params(r->body, &p, &from, &policy, &e) < 0) {
                api_error_err(r, API_INVALID_ARGUMENT, &e);
                return;
        }
        if (p.copy.own_policy && !api_policy_permitted(r, policy))
                return;
        if (from && !(p.checkpoint = api_checkpoint(r, s, from)))
                return;
        begin(r, s, &p);
}

const struct api_route fork_routes[] = {
        { "POST", "/v1/sandboxes/{id}/fork", fork_it, API_BODY_JSON, API_FLAG_IDEM | API_FLAG_SETTLED },
};
const size_t fork_routes_n = sizeof fork_routes / sizeof fork_routes[0];
