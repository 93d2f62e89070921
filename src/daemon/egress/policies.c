/* SPDX-License-Identifier: Apache-2.0 */

#include "policies.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "app.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "base/json.h"
#include "base/str.h"
#include "map.h"
#include "policy/suffix.h"
#include "store/db.h"

/* ---- short forms --------------------------------------------------------------------------- */

static int no_memory(struct error *err) {
        return error_set(err, -ENOMEM, "out of memory");
}

/* Where an entry of "allow" belongs. */
enum allow_kind { ALLOW_WEB, ALLOW_PORTS, ALLOW_ADDRESSES, ALLOW_KINDS };

static enum allow_kind kind_of(const char *text) {
        const char *colon = strchr(text, ':');
        struct cidr c;
        if (cidr_parse(text, &c) == 0)
                return ALLOW_ADDRESSES;
        if (text[0] == '@' || !colon || str_eq(colon, ":80") || str_eq(colon, ":443"))
                return ALLOW_WEB;
        return ALLOW_PORTS;
}

static int add_rule(json_t *rules, const char *name, const char *member, json_t *entries, const char *protocol) {
        if (json_array_size(entries) == 0)
                return 0;
        json_t *rule = json_pack("{s:s, s:s, s:O, s:s*}", "name", name, "action", "allow", member, entries, "protocol", protocol);
        return rule ? json_array_append_new(rules, rule) : -ENOMEM;
}

int policy_from_allow(const json_t *list, json_t **ret, struct error *err) {
        json_t *parts[ALLOW_KINDS] = { json_array(), json_array(), json_array() }, *rules = json_array(), *v;
        size_t i;
        int r = parts[0] && parts[1] && parts[2] && rules ? 0 : no_memory(err);
        json_array_foreach(list, i, v) {
                const char *text = json_string_value(v);
                if (r < 0)
                        break;
                if (!text || !text[0] || strlen(text) > POLICIES_PATTERN_MAX)
                        r = error_set(err, -EINVAL, "\"allow\": item %zu is not a host, an address or a preset", i + 1);
                else if (json_array_append(parts[kind_of(text)], v) < 0)
                        r = no_memory(err);
        }
        if (r >= 0 && (add_rule(rules, "allow", "hosts", parts[ALLOW_WEB], NULL) < 0 ||
                       add_rule(rules, "allow-ports", "hosts", parts[ALLOW_PORTS], "any") < 0 ||
                       add_rule(rules, "allow-addresses", "cidr", parts[ALLOW_ADDRESSES], NULL) < 0))
                r = no_memory(err);
        json_t *policy = r >= 0 ? json_pack("{s:O}", "rules", rules) : NULL;
        for (size_t k = 0; k < ALLOW_KINDS; k++)
                json_decref(parts[k]);
        json_decref(rules);
        if (r >= 0 && !policy)
                r = no_memory(err);
        if (r >= 0)
                *ret = policy;
        return r;
}

int policy_to_object(const json_t *policy, json_t **ret, struct error *err) {
        const char *name = json_string_value(policy);
        json_t *j = NULL;
        if (json_is_object(policy))
                j = json_deep_copy(policy);
        else if (str_eq(name, "none"))
                j = json_pack("{s:[]}", "rules");
        else if (name && name[0] == '@')
                j = json_pack("{s:[{s:s, s:[s]}]}", "rules", "action", "allow", "hosts", name);
        else
                return error_set(err, -EINVAL, "a policy is an object, \"none\" or the name of a preset such as \"@packages\"");
        if (!j)
                return no_memory(err);
        *ret = j;
        return 0;
}

bool policy_wants_internal(const json_t *policy) {
        size_t i;
        json_t *rule;
        json_array_foreach(json_object_get(policy, "rules"), i, rule)
                if (json_is_true(json_object_get(rule, "internal")))
                        return true;
        return false;
}

int policy_from_request(const json_t *body, json_t **ret, struct error *err) {
        const json_t *policy = json_object_get(body, "policy");
        json_t *allow = NULL;
        int r = json_read_array(body, "allow", false, POLICIES_ALLOW_MAX, &allow, err);
        if (r < 0)
                return r;
        if (policy && !json_is_null(policy)) {
                if (allow)
                        return error_set(err, -EINVAL, "\"policy\" and \"allow\" cannot both be given");
                r = policy_to_object(policy, ret, err);
                return r < 0 ? error_wrap(err, "policy") : 0;
        }
        return allow ? policy_from_allow(allow, ret, err) : 0;
}

/* ---- presets ------------------------------------------------------------------------------- */

json_t *policy_presets(const struct tmpl *t) {
        const json_t *config = t ? json_object_get(t->manifest, "config") : NULL;
        json_t *out = json_object(), *list;
        const char *key;
        json_object_foreach((json_t *) (uintptr_t) json_object_get(config, "hosts"), key, list) {
                char name[POLICY_NAME_MAX + 2] = "@";
                json_t *hosts = json_array(), *v;
                size_t i;
                if (json_object_size(out) >= POLICIES_PRESETS_MAX || str_copy(name + 1, sizeof name - 1, key) < 0) {
                        json_decref(hosts);
                        continue;
                }
                json_array_foreach(list, i, v)
                        if (json_is_string(v) && json_string_length(v) <= POLICIES_PATTERN_MAX && i < POLICY_HOSTS_MAX)
                                (void) json_array_append(hosts, v);
                (void) json_object_set_new(out, name, hosts);
        }
        return out;
}

struct presets {
        json_t *json;
        struct policy_preset list[POLICIES_PRESETS_MAX];
        const char **hosts[POLICIES_PRESETS_MAX];
        size_t n;
};

static void presets_done(struct presets *p) {
        for (size_t i = 0; i < p->n; i++)
                free(p->hosts[i]);
        json_decref(p->json);
}

static int presets_read(const struct tmpl *t, struct presets *p) {
        const char *name;
        json_t *list;
        p->json = policy_presets(t);
        if (!p->json)
                return -ENOMEM;
        json_object_foreach(p->json, name, list) {
                size_t n = json_array_size(list);
                const char **hosts = calloc(n + 1, sizeof *hosts);
                if (!hosts)
                        return -ENOMEM;
                for (size_t i = 0; i < n; i++)
                        hosts[i] = json_string_value(json_array_get(list, i));
                p->hosts[p->n] = hosts;
                p->list[p->n++] = (struct policy_preset){ .name = name, .hosts = hosts, .n_hosts = n };
        }
        return 0;
}

int policy_check(const struct tmpl *t, const json_t *policy, struct policy **ret, struct error *err) {
        _cleanup_(presets_done) struct presets presets = { .n = 0 };
        if (!policy) {
                *ret = NULL;
                return 0;
        }
        if (json_dumpb(policy, NULL, 0, JSON_COMPACT) > POLICY_JSON_MAX)
                return error_set(err, -EFBIG, "the policy is longer than %d bytes", (int) POLICY_JSON_MAX);
        if (presets_read(t, &presets) < 0)
                return no_memory(err);
        const struct policy_context ctx = { .presets = presets.list, .n_presets = presets.n, .is_public_suffix = public_suffix_is };
        return policy_compile(policy, &ctx, ret, err);
}

/* ---- of templates -------------------------------------------------------------------------- */

struct item {
        char key[TEMPLATE_REF_SIZE > DIGEST_LEN + 1 ? TEMPLATE_REF_SIZE : DIGEST_LEN + 1];
        json_t *policy;
};

struct policies {
        struct map *by_key;
};

static void item_free(struct item *i) {
        json_decref(i->policy);
        free(i);
}

static int put(struct policies *p, const char *key, json_t *policy /* taken */) {
        struct item *i = map_get(p->by_key, key);
        if (i) {
                json_decref(i->policy);
                i->policy = policy;
                return 0;
        }
        i = calloc(1, sizeof *i);
        if (!i || str_copy(i->key, sizeof i->key, key) < 0 || map_put(p->by_key, i->key, i) < 0) {
                free(i);
                json_decref(policy);
                return -ENOMEM;
        }
        i->policy = policy;
        return 0;
}

const json_t *policy_of_template(struct app *app, const char *ref, const char *digest) {
        if (!app->policies)
                return NULL;
        const struct item *i = ref[0] ? map_get(app->policies->by_key, ref) : NULL;
        if (!i)
                i = map_get(app->policies->by_key, digest);
        return i ? i->policy : NULL;
}

int policy_set_template(struct app *app, const char *key, const json_t *policy, struct db_batch *b) {
        if (!app->policies)
                return 0;
        if (policy) {
                json_t *copy = json_deep_copy(policy);
                int r = copy ? put(app->policies, key, copy) : -ENOMEM;
                if (r >= 0)
                        db_batch_add(b, "INSERT OR REPLACE INTO policies (ref, policy, updated_ms) VALUES (?, ?, ?)", "sji", key,
                                     policy, clock_real_ms());
                return r;
        }
        struct item *i = map_remove(app->policies->by_key, key);
        if (!i)
                return 0;
        db_batch_add(b, "DELETE FROM policies WHERE ref = ?", "s", key);
        item_free(i);
        return 0;
}

static int load_row(void *arg, struct db_row *row, struct error *err) {
        json_t *j = NULL;
        const char *text = db_row_str(row, 1);
        if (!text || json_parse(text, strlen(text), LIMIT_JSON_BODY, &j, NULL) < 0 || put(arg, db_row_str(row, 0), j) < 0)
                return error_set(err, -EBADMSG, "state.db: the row of a template's policy is damaged");
        return 0;
}

int policies_load(struct app *app, struct policies **ret, struct error *err) {
        struct policies *p = calloc(1, sizeof *p);
        if (p)
                p->by_key = map_new();
        if (!p || !p->by_key) {
                free(p);
                return error_set(err, -ENOMEM, "out of memory");
        }
        *ret = p;
        return db_query(db_conn_of(app->db), load_row, p, err, "SELECT ref, policy FROM policies", "");
}

void policies_free(struct policies *p) {
        if (!p)
                return;
        size_t pos = 0;
        struct item *i;
        while ((i = map_next(p->by_key, &pos))) {
                (void) map_remove(p->by_key, i->key);
                item_free(i);
        }
        map_free(p->by_key);
        free(p);
}
