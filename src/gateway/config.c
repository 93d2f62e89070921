/* SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include <errno.h>
#include <openssl/crypto.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/json.h"
#include "base/str.h"
#include "conn.h"
#include "dns/dns_names.h"
#include "ipc/messages.h"
#include "policy/binding.h"
#include "upstream.h"
#include "usage.h"

/* What a configuration consists of, until all of it is known to be good. */
struct parts {
        struct policy *policy;
        struct address_set *own;
        struct ca *ca;           /* the first time */
};

static void parts_done(struct parts *p) {
        policy_unref(p->policy);
        address_set_free(p->own);
        ca_free(p->ca);
}

/* ---- presets ------------------------------------------------------------------------------- */

struct presets {
        struct policy_preset list[CONFIG_PRESETS_MAX];
        const char **hosts[CONFIG_PRESETS_MAX];
        size_t n;
};

static void presets_done(struct presets *p) {
        for (size_t i = 0; i < p->n; i++)
                free(p->hosts[i]);
}

static int read_preset(struct presets *p, const char *name, const json_t *list, struct error *err) {
        size_t n = json_array_size(list);
        if (!json_is_array(list) || n > POLICY_HOSTS_MAX || p->n == CONFIG_PRESETS_MAX)
                return error_set(err, -EINVAL, "presets: \"%s\" is no list, too long, or one too many", name);
        const char **hosts = calloc(n + 1, sizeof *hosts);
        if (!hosts)
                return error_set(err, -ENOMEM, "out of memory");
        p->hosts[p->n] = hosts;
        p->list[p->n++] = (struct policy_preset){ .name = name, .hosts = hosts, .n_hosts = n };
        for (size_t i = 0; i < n; i++) {
                hosts[i] = json_string_value(json_array_get(list, i));
                if (!hosts[i] || strlen(hosts[i]) > CONFIG_PATTERN_MAX)
                        return error_set(err, -EINVAL, "presets: \"%s\" has an entry that is no host", name);
        }
        return 0;
}

static int read_presets(const json_t *j, struct presets *p, struct error *err) {
        json_t *obj = NULL, *list;
        const char *name;
        int r = json_read_obj(j, "presets", false, &obj, err);
        if (r < 0 || !obj)
                return r;
        json_object_foreach(obj, name, list)
                if ((r = read_preset(p, name, list, err)) < 0)
                        return r;
        return 0;
}

/* ---- the parts ----------------------------------------------------------------------------- */

static int read_policy(const json_t *j, struct parts *parts, struct error *err) {
        _cleanup_(presets_done) struct presets presets = { .n = 0 };
        json_t *policy = NULL;
        int r = json_read_obj(j, "policy", false, &policy, err);
        if (r == 0)
                r = read_presets(j, &presets, err);
        if (r < 0 || !policy)
                return r;
        const struct policy_context ctx = { .presets = presets.list, .n_presets = presets.n };
        return policy_compile(policy, &ctx, &parts->policy, err);
}

static int read_open(const json_t *j, struct parts *parts, struct error *err) {
        json_t *list = NULL;
        int r = json_read_array(j, "open", false, ADDRESS_OPEN_MAX, &list, err);
        for (size_t i = 0; r == 0 && i < json_array_size(list); i++) {
                const char *range = json_string_value(json_array_get(list, i));
                r = range ? address_set_open(parts->own, range, err) : error_set(err, -EINVAL, "open: not a string");
        }
        return r;
}

static int read_own(const json_t *j, struct parts *parts, struct error *err) {
        json_t *list = NULL;
        int r = json_read_array(j, "own", false, CONFIG_OWN_MAX, &list, err);
        if (r == 0)
                r = address_set_new(&parts->own);
        for (size_t i = 0; r == 0 && i < json_array_size(list); i++) {
                const char *range = json_string_value(json_array_get(list, i));
                r = range ? address_set_add(parts->own, range, err) : error_set(err, -EINVAL, "own: not a string");
        }
        return r;
}

/* Into b, which is wiped by whoever made it when this fails in the middle. */
static int read_bindings(struct bindings *b, const json_t *j, struct error *err) {
        _cleanup_json_ json_t *none = json_array();
        json_t *list = NULL, *secrets = NULL, *one;
        const char *credential;
        int r = json_read_array(j, "bindings", false, BINDINGS_MAX, &list, err);
        if (r == 0)
                r = json_read_obj(j, "secrets", false, &secrets, err);
        if (r == 0)
                r = bindings_load(b, list ? list : none, err);
        if (r < 0 || !secrets)
                return r;
        json_object_foreach(secrets, credential, one) {
                static const char *const keys[] = { "secret", "expires_ms", NULL };
                const char *secret = NULL;
                uint64_t expires_ms = 0;
                r = json_is_object(one) ? json_only_keys(one, keys, err) : error_set(err, -EINVAL, "secrets: not an object");
                if (r == 0)
                        r = json_read_str(one, "secret", true, BINDING_SECRET_MAX, &secret, err);
                if (r == 0)
                        r = json_read_u64(one, "expires_ms", false, 0, INT64_MAX, &expires_ms, err);
                if (r == 0)
                        r = bindings_set_secret(b, credential, secret, strlen(secret), (int64_t) expires_ms, err);
                if (r < 0)
                        return error_wrap(err, "credential \"%.64s\"", credential);
        }
        return 0;
}

/* On a table of its own first: what is wrong with it must not be found half-way. */
static int check_bindings(const json_t *j, struct error *err) {
        _cleanup_(bindings_freep) struct bindings *b = NULL;
        if (bindings_new(&b) < 0)
                return error_set(err, -ENOMEM, "out of memory");
        return read_bindings(b, j, err);
}

static int read_ca(const struct gateway *gw, const json_t *j, struct parts *parts, struct error *err) {
        const char *text = NULL;
        uint8_t seed[CA_SEED_BYTES + 16];
        int r = json_read_str(j, "ca_seed", !gw->ca, 64, &text, err);
        if (r < 0 || gw->ca)
                return r;
        if (strlen(text) > 48 || base64_decode(text, strlen(text), seed) != CA_SEED_BYTES)
                return error_set(err, -EINVAL, "ca_seed is not base64 of %d bytes", CA_SEED_BYTES);
        r = ca_new(seed, &parts->ca, err);
        OPENSSL_cleanse(seed, sizeof seed);
        return r;
}

/* Straight into the table, which is empty before the first configuration and, if this fails, after it. */
static int read_names(struct gateway *gw, const json_t *j, struct error *err) {
        json_t *names = NULL;
        int r = json_read_obj(j, "names", false, &names, err);
        if (r < 0 || !names || gw->configured)
                return r;
        return dns_names_restore(gw->names, names, err);
}

/* ---- applying ------------------------------------------------------------------------------ */

static void swap_in(struct gateway *gw, struct parts *p) {
        struct policy *old_policy = gw->policy;
        struct address_set *old_own = gw->own;
        gw->policy = STEAL(p->policy);
        gw->own = STEAL(p->own);
        if (p->ca)
                gw->ca = STEAL(p->ca);
        gw->configured = true;
        upstream_drop_idle(gw);
        conn_reconsider_all(gw);
        policy_unref(old_policy);
        address_set_free(old_own);
}

int config_apply(struct gateway *gw, const void *json, size_t n, struct error *err) {
        static const char *const keys[] = { "policy", "presets", "own", "open", "ca_seed", "names", "bindings", "secrets", NULL };
        _cleanup_(parts_done) struct parts parts = { 0 };
        _cleanup_json_ json_t *j = NULL;
        int r = json_parse(json, n, GW_CONFIG_MAX, &j, err);
        if (r == 0 && !json_is_object(j))
                r = error_set(err, -EINVAL, "the configuration is no object");
        if (r == 0)
                r = json_only_keys(j, keys, err);
        if (r == 0)
                r = read_policy(j, &parts, err);
        if (r == 0)
                r = read_own(j, &parts, err);
        if (r == 0)
                r = read_open(j, &parts, err);
        if (r == 0)
                r = read_ca(gw, j, &parts, err);
        if (r == 0)
                r = check_bindings(j, err);
        if (r == 0 && (r = usage_set_policy(gw->usage, parts.policy)) < 0)
                r = error_set(err, r, "out of memory");
        if (r == 0)
                r = read_names(gw, j, err); /* only before the first policy: usage has nothing to lose then */
        if (r == 0)
                r = read_bindings(gw->bindings, j, err); /* was checked: only memory can be missing */
        if (r == 0)
                swap_in(gw, &parts);
        return r;
}
