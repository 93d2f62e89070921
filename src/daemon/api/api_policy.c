/* SPDX-License-Identifier: Apache-2.0 */

/* What sandboxes may reach: policies of sandboxes and templates, presets, and what a policy says of a URL. */

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "api_named.h"
#include "api_wait.h"
#include "app.h"
#include "base/cleanup.h"
#include "base/json.h"
#include "egress/egress.h"
#include "egress/policies.h"
#include "store/db.h"

#define URL_MAX 8192

static enum api_code code_of(int err) {
        switch (err) {
        case -EBADMSG:
                return API_GATEWAY_REFUSED;
        case -ETIMEDOUT:
                return API_GATEWAY_TIMEOUT;
        case -EFBIG:
        case -E2BIG:
                return API_INVALID_ARGUMENT;
        case -EBUSY:
                return API_CONFLICT;
        default:
                return api_code_from_errno(err);
        }
}

/* ---- of a sandbox -------------------------------------------------------------------------- */

static json_t *policy_json(const json_t *policy) {
        return policy ? json_deep_copy(policy) : json_pack("{s:[]}", "rules");
}

static void reply(struct api_req *r, const struct sandbox *s) {
        api_reply(r, 200, json_pack("{s:o, s:o}", "policy", policy_json(egress_policy(s)), "egress", egress_to_json(s)));
}

static void get(struct api_req *r) {
        const struct sandbox *s = api_sandbox(r);
        if (s)
                reply(r, s);
}

/* {"policy": ...}, {"allow": [...]}, or a policy itself. */
bool api_policy_permitted(struct api_req *r, const json_t *policy) {
        if (!r->key || !policy_wants_internal(policy))
                return true;
        api_error(r, API_FORBIDDEN, "a rule with \"internal\" opens what lies around this host: only its administrators may write one, "
                                    "over the Unix socket and without a key");
        return false;
}

static int read_policy(const json_t *body, json_t **ret, struct error *err) {
        static const char *const keys[] = { "policy", "allow", "egress", NULL };
        if (!body)
                return error_set(err, -EINVAL, "a body with a policy is needed");
        if (!json_object_get(body, "policy") && !json_object_get(body, "allow"))
                return policy_to_object(body, ret, err);
        int r = json_only_keys(body, keys, err); /* "egress": what GET gave may be sent back */
        if (r >= 0)
                r = policy_from_request(body, ret, err);
        if (r >= 0 && !*ret)
                return error_set(err, -EINVAL, "\"policy\" is null; \"none\" is the policy that allows nothing");
        return r;
}

static void put(struct api_req *r) {
        _cleanup_json_ json_t *policy = NULL;
        struct error e = ERROR_INIT;
        struct sandbox *s = api_sandbox(r);
        if (!s)
                return;
        if (read_policy(r->body, &policy, &e) < 0) {
                api_error_err(r, API_INVALID_ARGUMENT, &e);
                return;
        }
        if (!api_policy_permitted(r, policy))
                return;
        if (s->state == SANDBOX_DELETING) {
                api_error(r, API_SANDBOX_NOT_RUNNING, "the sandbox is being deleted");
                return;
        }
        struct api_changed *c = api_changed_new(r, s, reply, code_of);
        int rc = c ? egress_set_policy(r->app, s, policy, api_changed_durable, c, &e) : 0;
        if (rc < 0) {
                api_error_err(r, code_of(rc), &e);
                api_changed_free(c);
        }
}

static void check(struct api_req *r) {
        static const char *const keys[] = { "url", "method", "policy", "allow", NULL };
        _cleanup_json_ json_t *other = NULL;
        _cleanup_policy_ struct policy *p = NULL;
        const char *url = NULL, *method = NULL;
        struct error e = ERROR_INIT;
        json_t *answer = NULL;
        const struct sandbox *s = api_sandbox(r);
        if (!s)
                return;
        int rc = r->body ? json_only_keys(r->body, keys, &e) : error_set(&e, -EINVAL, "a body with \"url\" is needed");
        if (rc >= 0)
                rc = json_read_str(r->body, "url", true, URL_MAX, &url, &e);
        if (rc >= 0)
                rc = json_read_str(r->body, "method", false, POLICY_METHOD_MAX, &method, &e);
        if (rc >= 0)
                rc = policy_from_request(r->body, &other, &e);
        if (rc >= 0)
                rc = policy_check(s->tmpl, other ? other : egress_policy(s), &p, &e);
        if (rc >= 0)
                rc = policy_explain(p, url, method, &answer, &e);
        json_t *warnings = rc < 0 ? NULL : policy_warnings(other ? other : egress_policy(s));
        if (warnings)
                (void) json_object_set_new(answer, "warnings", warnings);
        if (rc < 0)
                api_error_err(r, code_of(rc), &e);
        else
                api_reply(r, 200, answer);
}

/* ---- of a template ------------------------------------------------------------------------- */

static const struct tmpl *find_template(struct api_req *r, const char *name, char ret_key[TEMPLATE_REF_SIZE]) {
        struct error e = ERROR_INIT;
        struct tmpl *t = NULL;
        int rc = template_resolve(r->app, name, &t, ret_key, &e);
        if (rc < 0) {
                api_error_err(r, rc == -ENOENT ? API_TEMPLATE_NOT_FOUND : API_INVALID_ARGUMENT, &e);
                return NULL;
        }
        if (!ret_key[0])
                memcpy(ret_key, t->digest, sizeof t->digest);
        return t;
}
static_assert(TEMPLATE_REF_SIZE > DIGEST_LEN);

static void template_reply(struct api_req *r, const char *key, const struct tmpl *t) {
        const json_t *policy = policy_of_template(r->app, key, t->digest);
        api_reply(r, 200, json_pack("{s:s, s:s, s:o, s:o*}", "template", key, "digest", t->digest, "policy",
                                    policy ? json_deep_copy(policy) : json_null(), "warnings", policy_warnings(policy)));
}

static void template_get(struct api_req *r) {
        char key[TEMPLATE_REF_SIZE];
        const struct tmpl *t = find_template(r, r->params[0], key);
        if (t)
                template_reply(r, key, t);
}

struct template_changed {
        struct api_req *r;
        char key[TEMPLATE_REF_SIZE], digest[DIGEST_LEN + 1];
        bool removed;
};

static void on_template_changed(void *arg, int err, const struct error *e) {
        struct template_changed *c = arg;
        const struct tmpl *t = template_find(c->r->app, c->digest);
        if (err < 0)
                api_error_err(c->r, api_code_from_errno(err), e);
        else if (c->removed)
                api_reply_empty(c->r, 204);
        else if (!t)
                api_error(c->r, API_TEMPLATE_NOT_FOUND, "the template has been removed");
        else
                template_reply(c->r, c->key, t);
        api_req_unref(c->r);
        free(c);
}

static void template_set(struct api_req *r, const char *key, const struct tmpl *t, const json_t *policy) {
        struct template_changed *c = calloc(1, sizeof *c);
        struct db_batch *b = db_batch_new();
        int rc = c && b ? policy_set_template(r->app, key, policy, b) : -ENOMEM;
        if (rc >= 0) {
                c->r = api_req_ref(r);
                c->removed = !policy;
                memcpy(c->key, key, strlen(key) + 1);
                memcpy(c->digest, t->digest, sizeof c->digest);
                rc = db_batch_submit(r->app->db, STEAL(b), on_template_changed, c);
                if (rc < 0)
                        api_req_unref(r);
        }
        if (rc < 0) {
                api_error(r, api_code_from_errno(rc), "the policy could not be stored");
                db_batch_free(b);
                free(c);
        }
}

static void template_put(struct api_req *r) {
        _cleanup_json_ json_t *policy = NULL;
        _cleanup_policy_ struct policy *compiled = NULL;
        char key[TEMPLATE_REF_SIZE];
        struct error e = ERROR_INIT;
        const struct tmpl *t = find_template(r, r->params[0], key);
        if (!t)
                return;
        int rc = read_policy(r->body, &policy, &e);
        if (rc >= 0)
                rc = policy_check(t, policy, &compiled, &e);
        if (rc < 0)
                api_error_err(r, code_of(rc), &e);
        else if (api_policy_permitted(r, policy))
                template_set(r, key, t, policy);
}

static void template_delete(struct api_req *r) {
        char key[TEMPLATE_REF_SIZE];
        const struct tmpl *t = find_template(r, r->params[0], key);
        if (t)
                template_set(r, key, t, NULL);
}

/* ---- presets ------------------------------------------------------------------------------- */

static int add_presets(json_t *out, const char *name, const struct tmpl *t) {
        _cleanup_json_ json_t *presets = policy_presets(t);
        const char *key;
        json_t *hosts;
        int r = presets ? 0 : -ENOMEM;
        json_object_foreach(presets, key, hosts)
                if (json_array_append_new(out, json_pack("{s:s, s:s, s:s, s:O}", "name", key, "template", name, "digest",
                                                         t->digest, "hosts", hosts)) < 0)
                        r = -ENOMEM;
        return r;
}

static void presets(struct api_req *r) {
        _cleanup_free_ char *name = NULL;
        char key[TEMPLATE_REF_SIZE];
        if (api_query_str(r, "template", DIGEST_LEN * 4, &name) < 0)
                return;
        const struct tmpl *one = name ? find_template(r, name, key) : NULL;
        if (name && !one)
                return;
        json_t *out = json_array();
        (void) json_array_append_new(out, json_pack("{s:s, s:n, s:n, s:[]}", "name", "none", "template", "digest", "hosts"));
        if (one)
                (void) add_presets(out, key, one);
        for (const struct tag *t = one ? NULL : tag_next(r->app, NULL); t; t = tag_next(r->app, t))
                (void) add_presets(out, t->ref, t->tmpl);
        api_reply(r, 200, json_pack("{s:o}", "presets", out));
}

const struct api_route policy_routes[] = {
        { "GET", "/v1/sandboxes/{id}/policy", get, API_BODY_NONE, 0 },
        { "PUT", "/v1/sandboxes/{id}/policy", put, API_BODY_JSON, 0 },
        { "POST", "/v1/sandboxes/{id}/policy/check", check, API_BODY_JSON, 0 },
        { "GET", "/v1/templates/{ref}/policy", template_get, API_BODY_NONE, 0 },
        { "PUT", "/v1/templates/{ref}/policy", template_put, API_BODY_JSON, 0 },
        { "DELETE", "/v1/templates/{ref}/policy", template_delete, API_BODY_NONE, 0 },
        { "GET", "/v1/policies/presets", presets, API_BODY_NONE, 0 },
};
const size_t policy_routes_n = ARRAY_SIZE(policy_routes);
