/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Members of a create body that are not the sandbox's own. What would not be done is refused by name: a request
 * that is accepted and then not honoured would be worse. What the egress members mean is in e2b_egress.c.
 */
#include <errno.h>
#include <string.h>

#include "base/id.h"
#include "base/json.h"
#include "base/str.h"
#include "e2b.h"
#include "e2b_internal.h"

#define EGRESS_ENTRIES_MAX 1000
#define EGRESS_ENTRY_MAX 255
#define MCP_MAX (64 * 1024)
#define TRAFFIC_TOKEN_BYTES 20

static int unsupported(struct api_req *r, const char *what) {
        api_error_status(r, 501, "%s is not supported by this server yet", what);
        return -ENOTSUP;
}

static int bad(struct api_req *r, const struct error *e) {
        api_error_err(r, API_INVALID_ARGUMENT, e);
        return -EINVAL;
}

static bool asks(const json_t *obj, const char *key) {
        const json_t *m = json_object_get(obj, key);

        return m && !json_is_null(m) && !json_is_false(m) && !(json_is_object(m) && json_object_size(m) == 0) &&
               !(json_is_array(m) && json_array_size(m) == 0);
}

/* For form; what they say is checked when a policy is made of them. */
static int copy_list(struct api_req *r, const json_t *from, const char *key, json_t *to) {
        struct error err = ERROR_INIT;
        json_t *list = NULL, *item;
        size_t i;

        if (json_read_array(from, key, false, EGRESS_ENTRIES_MAX, &list, &err) < 0)
                return bad(r, &err);
        if (!list)
                return 0;
        json_array_foreach(list, i, item) {
                size_t n = json_string_length(item);
                if (!json_is_string(item) || n == 0 || n > EGRESS_ENTRY_MAX) {
                        error_set(&err, -EINVAL, "network.%s: each entry must be a text of 1 to %d bytes", key,
                                  EGRESS_ENTRY_MAX);
                        return bad(r, &err);
                }
        }
        return json_object_set(to, key, list);
}

static int new_traffic_token(json_t *ext) {
        uint8_t raw[TRAFFIC_TOKEN_BYTES];
        char hex[2 * TRAFFIC_TOKEN_BYTES + 1];

        if (random_bytes(raw, sizeof(raw)) < 0)
                return -EIO;
        str_hex(raw, sizeof(raw), hex);
        return json_object_set_new(ext, "trafficToken", json_string(hex));
}

int e2b_read_lists(struct api_req *r, const json_t *from, json_t *to) {
        static const char *const no[] = { "rules", "egressProxy", "httpsPorts", "maskRequestHost" };
        for (size_t i = 0; i < ARRAY_SIZE(no); i++)
                if (asks(from, no[i])) {
                        char what[64] = "network.";
                        strncat(what, no[i], sizeof(what) - strlen(what) - 1);
                        return unsupported(r, what);
                }
        int n = copy_list(r, from, "allowOut", to);
        return n == 0 ? copy_list(r, from, "denyOut", to) : n;
}

static int read_network(struct api_req *r, const json_t *from, json_t *ext) {
        _cleanup_json_ json_t *network = json_object();
        struct error err = ERROR_INIT;
        bool public_traffic = true;

        int n = network ? e2b_read_lists(r, from, network) : -ENOMEM;
        if (n < 0)
                return n;
        if (json_read_bool(from, "allowPublicTraffic", false, &public_traffic, &err) < 0)
                return bad(r, &err);
        if (!public_traffic && new_traffic_token(ext) < 0)
                return -EIO;
        (void) json_object_set_new(network, "allowPublicTraffic", json_boolean(public_traffic));
        return json_object_set(ext, "network", network);
}

static int read_members(struct api_req *r, json_t *ext) {
        static const char *const no[][2] = {
                { "volumeMounts", "volumeMounts" },
                { "iam", "iam" },
        };
        struct error err = ERROR_INIT;
        json_t *network = NULL, *mcp = NULL;
        bool internet = false;

        for (size_t i = 0; i < ARRAY_SIZE(no); i++)
                if (asks(r->body, no[i][0]))
                        return unsupported(r, no[i][1]);

        const json_t *access = json_object_get(r->body, "allow_internet_access");
        if (json_read_bool(r->body, "allow_internet_access", false, &internet, &err) < 0)
                return bad(r, &err);
        if (access && !json_is_null(access) &&
            json_object_set_new(ext, "allowInternetAccess", json_boolean(internet)) < 0)
                return -ENOMEM;

        if (json_read_obj(r->body, "mcp", false, &mcp, &err) < 0)
                return bad(r, &err);
        if (mcp && json_dumpb(mcp, NULL, 0, JSON_COMPACT) > MCP_MAX) {
                error_set(&err, -EINVAL, "mcp: more than %d bytes", MCP_MAX);
                return bad(r, &err);
        }
        if (mcp && json_object_set(ext, "mcp", mcp) < 0)
                return -ENOMEM;

        if (json_read_obj(r->body, "network", false, &network, &err) < 0)
                return bad(r, &err);
        return network ? read_network(r, network, ext) : 0;
}

int e2b_read_rules(struct api_req *r, struct sandbox_rules *rules) {
        struct error err = ERROR_INIT;
        json_t *resume = NULL;
        bool pause = false, memory = true, wake = false;

        if (json_read_bool(r->body, "autoPause", false, &pause, &err) < 0 ||
            json_read_bool(r->body, "autoPauseMemory", false, &memory, &err) < 0 ||
            json_read_obj(r->body, "autoResume", false, &resume, &err) < 0 ||
            (resume && json_read_bool(resume, "enabled", false, &wake, &err) < 0))
                return bad(r, &err);
        if (!memory && (!pause || wake)) {
                error_set(&err, -EINVAL, "autoPauseMemory false needs autoPause, and does not go with autoResume");
                return bad(r, &err);
        }
        rules->on_expiry = !pause ? SANDBOX_END_DELETE : memory ? SANDBOX_END_SUSPEND : SANDBOX_END_STOP;
        rules->wake = wake;
        return 0;
}

int e2b_read_ext(struct api_req *r, json_t **ret_ext) {
        _cleanup_json_ json_t *ext = json_object();
        int n = ext ? read_members(r, ext) : -ENOMEM;

        if (n == 0)
                *ret_ext = STEAL(ext);
        else if (r->x) /* nothing was answered: no memory, no randomness */
                api_error(r, API_INTERNAL, "cannot take the request in");
        return n;
}

int e2b_ext_fork(const json_t *ext, bool own_policy, json_t **ret) {
        _cleanup_json_ json_t *copy = ext ? json_deep_copy(ext) : NULL;

        if (!ext) {
                *ret = NULL;
                return 0;
        }
        if (!copy)
                return -ENOMEM;
        if (json_object_get(copy, "trafficToken") && new_traffic_token(copy) < 0)
                return -EIO;
        json_t *network = json_object_get(copy, "network");
        if (own_policy) {
                (void) json_object_del(copy, "allowInternetAccess");
                (void) json_object_del(network, "allowOut");
                (void) json_object_del(network, "denyOut");
        }
        *ret = STEAL(copy);
        return 0;
}

const char *e2b_traffic_token(const struct sandbox *s) {
        return s->ext ? json_string_value(json_object_get(s->ext, "trafficToken")) : NULL;
}
