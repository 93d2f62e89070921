/* SPDX-License-Identifier: Apache-2.0 */

/*
 * The egress members of the E2B API as policies. What is listed in allowOut may be reached: names on the ports of the web, addresses
 * on all, 0.0.0.0/0 is everything. There "allow beats deny", and here nothing else is allowed anyway, so denyOut is
 * kept and adds nothing. Clients send allow_internet_access: true without being asked, so it does not open
 * anything: a sandbox without allowOut has its template's default policy, with false none.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "app.h"
#include "base/json.h"
#include "base/str.h"
#include "e2b_internal.h"
#include "egress/egress.h"
#include "egress/policies.h"

#define EVERYTHING "0.0.0.0/0"

static int sort_entries(const json_t *list, json_t *hosts, json_t *addresses, bool *ret_all) {
        json_t *v;
        size_t i;

        json_array_foreach(list, i, v) {
                const char *text = json_string_value(v);
                struct cidr c;
                if (!text)
                        return -EINVAL;
                if (strcmp(text, EVERYTHING) == 0)
                        *ret_all = true;
                else if (json_array_append(cidr_parse(text, &c) == 0 ? addresses : hosts, v) < 0)
                        return -ENOMEM;
        }
        return 0;
}

static int add(json_t *rules, json_t *rule) {
        return rule ? json_array_append_new(rules, rule) : -ENOMEM;
}

static json_t *make_policy(const json_t *allow_out) {
        _cleanup_json_ json_t *hosts = json_array(), *addresses = json_array(), *rules = json_array();
        bool all = false;

        if (!hosts || !addresses || !rules || sort_entries(allow_out, hosts, addresses, &all) < 0)
                return NULL;
        if (all)
                return json_pack("{s:[{s:s, s:s, s:[s], s:[s], s:[s], s:s}]}", "rules", "name", "allow-all", "action", "allow", "hosts",
                                 "*", "cidr", EVERYTHING, "ports", "1-65535", "protocol", "any");
        if (json_array_size(hosts) > 0 &&
            add(rules, json_pack("{s:s, s:s, s:O}", "name", "allow-out", "action", "allow", "hosts", hosts)) < 0)
                return NULL;
        if (json_array_size(addresses) > 0 &&
            add(rules, json_pack("{s:s, s:s, s:O, s:[s], s:s}", "name", "allow-out-addresses", "action", "allow", "cidr", addresses,
                                 "ports", "1-65535", "protocol", "any")) < 0)
                return NULL;
        return json_pack("{s:O}", "rules", rules);
}

int e2b_policy(const json_t *ext, json_t **ret) {
        const json_t *allow_out = json_object_get(json_object_get(ext, "network"), "allowOut");
        const json_t *internet = json_object_get(ext, "allowInternetAccess");
        json_t *policy = NULL;

        if (json_array_size(allow_out) > 0)
                policy = make_policy(allow_out);
        else if (json_is_false(internet))
                policy = json_pack("{s:[]}", "rules");
        else
                return 0;
        if (!policy)
                return -ENOMEM;
        *ret = policy;
        return 0;
}

/* --- PUT /sandboxes/{id}/network -------------------------------------------------------------- */

struct change {
        struct api_req *r;
        struct sandbox *s;
        json_t *ext; /* as it is when the policy holds */
};

static void change_free(struct change *c) {
        json_decref(c->ext);
        sandbox_unref(c->s);
        api_req_unref(c->r);
        free(c);
}

static void on_ext(void *arg, int err, const struct error *e) {
        struct change *c = arg;

        if (err < 0)
                api_error_err(c->r, api_code_from_errno(err), e);
        else
                api_reply_empty(c->r, 204);
        change_free(c);
}

static void on_policy(void *arg, int err, const struct error *e) {
        struct change *c = arg;

        if (err < 0) {
                api_error_err(c->r, err == -EBADMSG ? API_GATEWAY_REFUSED : err == -ETIMEDOUT ? API_GATEWAY_TIMEOUT
                              : api_code_from_errno(err), e);
                return change_free(c);
        }
        int n = sandbox_set_ext(c->r->app, c->s, c->ext, on_ext, c);
        if (n < 0) {
                api_error(c->r, api_code_from_errno(n), "the change could not be stored");
                change_free(c);
        }
}

/* The lists are replaced, what is not there is none; the rest of network stays. */
static json_t *new_ext(const struct sandbox *s, const json_t *lists) {
        static const char *const keys[] = { "allowOut", "denyOut" };
        json_t *ext = s->ext ? json_deep_copy(s->ext) : json_object();
        json_t *network = json_object_get(ext, "network");

        if (ext && !network && json_object_set_new(ext, "network", network = json_object()) < 0) {
                json_decref(ext);
                return NULL;
        }
        for (size_t i = 0; ext && i < ARRAY_SIZE(keys); i++) {
                json_t *list = json_object_get(lists, keys[i]);
                if (list)
                        (void) json_object_set(network, keys[i], list);
                else
                        (void) json_object_del(network, keys[i]);
        }
        return ext;
}

static void put_network(struct api_req *r) {
        _cleanup_json_ json_t *lists = json_object(), *policy = NULL;
        struct error err = ERROR_INIT;
        struct sandbox *s = e2b_sandbox(r);

        if (!s || e2b_read_lists(r, r->body, lists) < 0)
                return;
        struct change *c = calloc(1, sizeof(*c));
        json_t *ext = c ? new_ext(s, lists) : NULL;
        if (!ext || e2b_policy(ext, &policy) < 0) {
                json_decref(ext);
                free(c);
                return api_error(r, API_INTERNAL, "no memory");
        }
        *c = (struct change){ .r = api_req_ref(r), .s = sandbox_ref(s), .ext = ext };
        const json_t *want = policy ? policy : policy_of_template(r->app, s->template_ref, s->digest);
        int n = egress_set_policy(r->app, s, want, on_policy, c, &err);
        if (n < 0) {
                api_error_err(r, n == -EFBIG || n == -E2BIG ? API_INVALID_ARGUMENT : api_code_from_errno(n), &err);
                change_free(c);
        }
}

const struct api_route e2b_egress_routes[] = {
        { "PUT", "/sandboxes/{id}/network", put_network, API_BODY_JSON, API_FLAG_E2B },
};
const size_t e2b_egress_routes_n = ARRAY_SIZE(e2b_egress_routes);
