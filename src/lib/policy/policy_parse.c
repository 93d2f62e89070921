/* SPDX-License-Identifier: Apache-2.0 */

/* Policy text into a compiled policy. Whatever is not understood refuses the whole: a rule that was
 * skipped, or half read, could allow what its author meant to deny. */

#include <arpa/inet.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/str.h"
#include "policy/path.h"
#include "policy/policy_internal.h"
#include "wire/http1.h"

#define LIMIT_VALUE_MAX (1ULL << 53) /* what every JSON reader can hold */

static int no_memory(struct error *err) {
        return error_set(err, -ENOMEM, "out of memory");
}

/* --- hosts ------------------------------------------------------------------------------ */

void host_pattern_done(struct host_pattern *p) {
        free(p->name);
        *p = (struct host_pattern){ 0 };
}

bool host_pattern_match(const struct host_pattern *p, const char *name) {
        if (!p->name)
                return true;
        return p->below ? host_name_below(name, p->name) : strcmp(name, p->name) == 0;
}

static int check_suffix(const char *suffix, const struct policy_context *ctx, enum host_pattern_suffix kind, struct error *err) {
        if (kind == HOST_PATTERN_ANY_SUFFIX)
                return 0;
        if (!strchr(suffix, '.'))
                return error_set(err, -EINVAL, "\"*.%s\" is all of a top-level domain; write \"*\" for any name", suffix);
        if (kind == HOST_PATTERN_OWN_SUFFIX && ctx && ctx->is_public_suffix && ctx->is_public_suffix(suffix))
                return error_set(err, -EINVAL, "\"*.%s\": below it anyone can register a name; set \"shared_suffix\": true if that is meant", suffix);
        return 0;
}

static int split_port(const char *text, size_t *ret_n, uint16_t *ret_port, struct error *err) {
        const char *colon = strchr(text, ':');
        uint64_t port = 0;

        if (strstr(text, "://"))
                return error_set(err, -EINVAL, "\"%.300s\" is a URL, and a host's name is needed, as in \"api.example.com\" or \"api.example.com:8443\"",
                                 text);
        if (colon && (str_to_u64(colon + 1, UINT16_MAX, &port) < 0 || port == 0 || colon[1] == '0'))
                return error_set(err, -EINVAL, "\"%.300s\": the port must be a number from 1 to 65535", text);
        *ret_n = colon ? (size_t) (colon - text) : strlen(text);
        *ret_port = (uint16_t) port;
        return 0;
}

int host_pattern_parse(const char *text, const struct policy_context *ctx, enum host_pattern_suffix suffix,
                       struct host_pattern *ret, struct error *err) {
        struct host_pattern p = { 0 };
        struct host h;
        const char *why = NULL;
        size_t n = 0;

        int r = split_port(text, &n, &p.port, err);
        if (r < 0)
                return r;
        if (n == 1 && text[0] == '*') {
                *ret = p;
                return 0;
        }
        p.below = n > 2 && text[0] == '*' && text[1] == '.';
        size_t skip = p.below ? 2 : 0;
        if (host_parse(text + skip, n - skip, &h, &why) < 0)
                return error_set(err, -EINVAL, "\"%.300s\" is not a host: it has %s", text, why);
        if (h.kind == HOST_IPV4)
                return error_set(err, -EINVAL, "\"%.300s\" is an address; addresses belong in \"cidr\"", text);
        r = p.below ? check_suffix(h.name, ctx, suffix, err) : 0;
        if (r < 0)
                return r;
        p.name = strdup(h.name);
        if (!p.name)
                return no_memory(err);
        *ret = p;
        return 0;
}

static const struct policy_preset *find_preset(const struct policy_context *ctx, const char *name) {
        for (size_t i = 0; ctx && i < ctx->n_presets; i++)
                if (str_eq(ctx->presets[i].name, name))
                        return &ctx->presets[i];
        return NULL;
}

static int add_host(struct rule *rule, const char *text, const struct policy_context *ctx, enum host_pattern_suffix suffix,
                    struct error *err) {
        if (rule->n_hosts == POLICY_HOSTS_MAX)
                return error_set(err, -E2BIG, "more than %d hosts", POLICY_HOSTS_MAX);
        struct host_pattern *more = reallocarray(rule->hosts, rule->n_hosts + 1, sizeof *more);
        if (!more)
                return no_memory(err);
        rule->hosts = more;
        int r = host_pattern_parse(text, ctx, suffix, &rule->hosts[rule->n_hosts], err);
        if (r == 0)
                rule->n_hosts++;
        return r;
}

static int add_preset(struct rule *rule, const char *name, const struct policy_context *ctx, struct error *err) {
        const struct policy_preset *p = find_preset(ctx, name);

        if (!p)
                return error_set(err, -EINVAL, "there is no preset \"%.64s\"", name);
        for (size_t i = 0; i < p->n_hosts; i++) {
                int r = add_host(rule, p->hosts[i], ctx, HOST_PATTERN_SHARED_SUFFIX, err);
                if (r < 0)
                        return error_wrap(err, "%s", name);
        }
        return 0;
}

/* As json_only_keys(), and no null: what a template left empty must not read as "no restriction". */
int policy_only_keys(const json_t *j, const char *const *keys, struct error *err) {
        int r = json_only_keys(j, keys, err);

        for (size_t i = 0; r == 0 && keys[i]; i++)
                if (json_is_null(json_object_get(j, keys[i])))
                        r = error_set(err, -EINVAL, "\"%s\" is null; leave it out or give it a value", keys[i]);
        return r;
}

/* An array that is not there, or has something in it. */
static int read_list(const json_t *j, const char *key, size_t max, json_t **ret, struct error *err) {
        json_t *list = NULL;

        int r = json_read_array(j, key, false, max, &list, err);
        if (r == 0 && list && json_array_size(list) == 0)
                return error_set(err, -EINVAL, "\"%s\" is empty; leave it out or list some", key);
        if (r == 0)
                *ret = list;
        return r;
}

static int parse_hosts(const json_t *j, struct rule *rule, const struct policy_context *ctx, struct error *err) {
        json_t *list = NULL, *v;
        bool shared_ok = false;
        size_t i;

        int r = read_list(j, "hosts", POLICY_HOSTS_MAX, &list, err);
        if (r == 0)
                r = json_read_bool(j, "shared_suffix", false, &shared_ok, err);
        if (r < 0)
                return r;
        json_array_foreach(list, i, v) {
                const char *text = json_string_value(v);
                if (!text)
                        return error_set(err, -EINVAL, "hosts[%zu]: must be a string", i);
                size_t before = rule->n_hosts;
                r = text[0] == '@' ? add_preset(rule, text, ctx, err)
                                   : add_host(rule, text, ctx, shared_ok ? HOST_PATTERN_SHARED_SUFFIX : HOST_PATTERN_OWN_SUFFIX, err);
                if (r == 0 && text[0] != '@' && rule->hosts[before].port && json_object_get(j, "ports"))
                        r = error_set(err, -EINVAL, "a port here and \"ports\" contradict each other");
                if (r < 0)
                        return error_wrap(err, "hosts[%zu]", i);
        }
        return 0;
}

/* --- addresses, ports, protocol ---------------------------------------------------------- */

static bool cidr_public(const struct cidr *c) {
        struct address a = address_of_v4((struct in_addr){ .s_addr = htonl(c->net) });
        struct address z = address_of_v4((struct in_addr){ .s_addr = htonl(c->net | ~c->mask) });

        /* Good enough for a hint: ranges that mix are judged address by address when dialled. */
        return address_classify(&a) == ADDRESS_PUBLIC || address_classify(&z) == ADDRESS_PUBLIC || c->mask == 0;
}

static int parse_cidrs(const json_t *j, struct rule *rule, struct error *err) {
        json_t *list = NULL, *v;
        size_t i;

        int r = read_list(j, "cidr", POLICY_CIDRS_MAX, &list, err);
        if (r < 0 || !list)
                return r;
        rule->cidrs = calloc(json_array_size(list), sizeof *rule->cidrs);
        if (!rule->cidrs)
                return no_memory(err);
        json_array_foreach(list, i, v) {
                const char *text = json_string_value(v);
                struct cidr *c = &rule->cidrs[rule->n_cidrs];
                if (!text || cidr_parse(text, c) < 0)
                        return error_set(err, -EINVAL, "cidr[%zu]: must be an IPv4 range such as \"192.0.2.0/24\", with no bits set beyond its prefix", i);
                if (rule->allow && !rule->internal && !cidr_public(c))
                        return error_set(err, -EINVAL, "cidr[%zu]: \"%s\" is not public; it needs \"internal\": true", i, text);
                rule->n_cidrs++;
        }
        return 0;
}

static int parse_port(const json_t *v, struct port_range *ret) {
        uint64_t first, last;

        if (json_is_integer(v)) {
                if (json_integer_value(v) < 1 || json_integer_value(v) > UINT16_MAX)
                        return -EINVAL;
                first = last = (uint64_t) json_integer_value(v);
        } else {
                const char *s = json_string_value(v), *dash = s ? strchr(s, '-') : NULL;
                char left[8];
                if (!dash || dash - s >= (ptrdiff_t) sizeof left)
                        return -EINVAL;
                memcpy(left, s, (size_t) (dash - s));
                left[dash - s] = '\0';
                if (str_to_u64(left, UINT16_MAX, &first) < 0 || str_to_u64(dash + 1, UINT16_MAX, &last) < 0 ||
                    first == 0 || first > last)
                        return -EINVAL;
        }
        *ret = (struct port_range){ .first = (uint16_t) first, .last = (uint16_t) last };
        return 0;
}

static int add_port(struct rule *rule, uint16_t first, uint16_t last, struct error *err) {
        struct port_range *more = reallocarray(rule->ports, rule->n_ports + 1, sizeof *more);

        if (!more)
                return no_memory(err);
        rule->ports = more;
        rule->ports[rule->n_ports++] = (struct port_range){ first, last };
        return 0;
}

/* Without "ports": a deny rule means all of them, an allow rule those that the web uses. */
static int default_ports(struct rule *rule, struct error *err) {
        bool own = rule->n_cidrs == 0;

        rule->default_ports = true;
        if (!rule->allow) {
                rule->all_ports = true;
                return 0;
        }
        for (size_t i = 0; i < rule->n_hosts; i++)
                own = own && rule->hosts[i].port;
        if (own)
                return 0;
        if (rule->protocols & POLICY_TCP)
                return error_set(err, -EINVAL, "\"ports\" is missing: protocols other than HTTP and TLS have no usual ports");
        int r = rule->protocols & POLICY_HTTP ? add_port(rule, 80, 80, err) : 0;
        if (r == 0 && (rule->protocols & POLICY_TLS))
                r = add_port(rule, 443, 443, err);
        return r;
}

static int parse_ports(const json_t *j, struct rule *rule, struct error *err) {
        json_t *list = NULL, *v;
        size_t i;

        int r = read_list(j, "ports", POLICY_PORTS_MAX, &list, err);
        if (r < 0)
                return r;
        if (!list)
                return default_ports(rule, err);
        json_array_foreach(list, i, v) {
                struct port_range p;
                if (parse_port(v, &p) < 0)
                        return error_set(err, -EINVAL, "ports[%zu]: must be a port or a range such as \"8000-8080\"", i);
                r = add_port(rule, p.first, p.last, err);
                if (r < 0)
                        return r;
        }
        return 0;
}

static int parse_protocol(const json_t *j, struct rule *rule, struct error *err) {
        static const struct {
                const char *name;
                unsigned protocols;
        } known[] = {
                { "web", POLICY_HTTP | POLICY_TLS }, { "any", POLICY_ALL_PROTOCOLS }, { "http", POLICY_HTTP },
                { "https", POLICY_TLS },             { "tls", POLICY_TLS },           { "tcp", POLICY_TCP },
        };
        const char *name = NULL;

        int r = json_read_str(j, "protocol", false, 16, &name, err);
        if (r < 0)
                return r;
        if (!name) {
                rule->protocols = rule->allow || rule_conditional(rule) ? POLICY_HTTP | POLICY_TLS : POLICY_ALL_PROTOCOLS;
                return 0;
        }
        for (size_t i = 0; i < ARRAY_SIZE(known); i++) {
                if (str_eq(known[i].name, name)) {
                        rule->protocols = known[i].protocols;
                        return 0;
                }
        }
        return error_set(err, -EINVAL, "protocol: must be \"web\", \"http\", \"https\", \"tls\", \"tcp\" or \"any\"");
}

/* --- methods, paths ---------------------------------------------------------------------- */

void policy_strings_free(char **list, size_t n) {
        for (size_t i = 0; list && i < n; i++)
                free(list[i]);
        free(list);
}

bool policy_method_plain(const char *method) {
        size_t n = strlen(method);

        for (size_t i = 0; i < n; i++)
                if (method[i] >= 'a' && method[i] <= 'z')
                        return false;
        return n > 0 && n <= POLICY_METHOD_MAX && http1_is_token(method, n);
}

static int method_parse(const char *text, char **ret, struct error *err) {
        if (!policy_method_plain(text))
                return error_set(err, -EINVAL, "\"%.40s\" is not a method in upper case", text);
        *ret = strdup(text);
        return *ret ? 0 : no_memory(err);
}

static int parse_strings(const json_t *obj, const char *key, size_t max,
                         int (*parse)(const char *, char **, struct error *), char ***ret, size_t *ret_n,
                         struct error *err) {
        json_t *list = NULL, *v;
        size_t i, n = 0;

        int r = read_list(obj, key, max, &list, err);
        if (r < 0 || !list)
                return r;
        char **out = calloc(json_array_size(list), sizeof *out);
        if (!out)
                return no_memory(err);
        json_array_foreach(list, i, v) {
                const char *text = json_string_value(v);
                r = text ? parse(text, &out[n], err) : error_set(err, -EINVAL, "must be a string");
                if (r < 0) {
                        policy_strings_free(out, n);
                        return error_wrap(err, "%s[%zu]", key, i);
                }
                n++;
        }
        *ret = out;
        *ret_n = n;
        return 0;
}

int policy_methods_parse(const json_t *obj, char ***ret, size_t *ret_n, struct error *err) {
        return parse_strings(obj, "methods", POLICY_METHODS_MAX, method_parse, ret, ret_n, err);
}

int policy_paths_parse(const json_t *obj, char ***ret, size_t *ret_n, struct error *err) {
        return parse_strings(obj, "paths", POLICY_PATHS_MAX, path_pattern, ret, ret_n, err);
}

/* --- limits ------------------------------------------------------------------------------ */

static int parse_limits(const json_t *obj, struct policy_limits *ret, struct error *err) {
        static const char *const keys[] = { "connections", "requests_per_minute", "bytes_out", "bytes_in", "names", NULL };
        struct policy_limits l = { 0 };
        uint64_t *const to[] = { &l.connections, &l.requests_per_minute, &l.bytes_out, &l.bytes_in, &l.names };
        json_t *j = NULL;

        int r = json_read_obj(obj, "limits", false, &j, err);
        if (r < 0 || !j)
                return r;
        r = policy_only_keys(j, keys, err);
        for (size_t i = 0; r == 0 && keys[i]; i++)
                r = json_read_u64(j, keys[i], false, 1, to[i] == &l.names ? POLICY_LIMIT_NAMES_MAX : LIMIT_VALUE_MAX, to[i], err);
        if (r < 0)
                return error_wrap(err, "limits");
        *ret = l;
        return 0;
}

/* --- rules ------------------------------------------------------------------------------- */

static void rule_done(struct rule *r) {
        for (size_t i = 0; i < r->n_hosts; i++)
                host_pattern_done(&r->hosts[i]);
        free(r->hosts);
        free(r->cidrs);
        free(r->ports);
        policy_strings_free(r->methods, r->n_methods);
        policy_strings_free(r->paths, r->n_paths);
        free(r->name);
}

static bool name_ok(const char *s) {
        size_t n = strspn(s, "abcdefghijklmnopqrstuvwxyz0123456789._-");

        return n > 0 && s[n] == '\0' && s[0] != '.' && s[0] != '_' && s[0] != '-';
}

static int parse_name(const json_t *j, struct rule *rule, struct error *err) {
        const char *name = NULL;

        int r = json_read_str(j, "name", false, POLICY_NAME_MAX, &name, err);
        if (r < 0 || !name)
                return r;
        /* "default" and "rules[3]" mean something else in an audit record. */
        if (!name_ok(name) || str_eq(name, "default"))
                return error_set(err, -EINVAL, "name: must be of [a-z0-9._-], begin with a letter or digit, and not be \"default\"");
        rule->name = strdup(name);
        return rule->name ? 0 : no_memory(err);
}

static int parse_action(const json_t *j, struct rule *rule, struct error *err) {
        const char *action = NULL;

        int r = json_read_str(j, "action", true, 16, &action, err);
        if (r < 0)
                return r;
        rule->allow = str_eq(action, "allow");
        if (!rule->allow && !str_eq(action, "deny"))
                return error_set(err, -EINVAL, "action: must be \"allow\" or \"deny\"");
        return 0;
}

static int check_contradictions(const json_t *j, const struct rule *rule, struct error *err) {
        static const char *const allow_only[] = { "inspect", "internal", "limits" };

        for (size_t i = 0; !rule->allow && i < ARRAY_SIZE(allow_only); i++)
                if (json_object_get(j, allow_only[i]))
                        return error_set(err, -EINVAL, "\"%s\" says nothing in a rule that denies", allow_only[i]);
        if (!json_object_get(j, "hosts") && !json_object_get(j, "cidr"))
                return error_set(err, -EINVAL, "\"hosts\" or \"cidr\" is missing; write \"hosts\": [\"*\"] for any name");
        if (rule_conditional(rule) && (rule->protocols & POLICY_TCP))
                return error_set(err, -EINVAL, "\"methods\" and \"paths\" need the protocol \"web\", \"http\" or \"https\"");
        if (rule_conditional(rule) && !rule->inspect && (rule->protocols & POLICY_TLS))
                return error_set(err, -EINVAL, "\"methods\" and \"paths\" cannot be seen with \"inspect\": false");
        if (json_object_get(j, "inspect") && !(rule->protocols & POLICY_TLS))
                return error_set(err, -EINVAL, "\"inspect\" is about TLS, which this rule does not match");
        if (rule->internal && rule->n_cidrs == 0)
                return error_set(err, -EINVAL, "\"internal\" needs \"cidr\": the addresses that are meant");
        return 0;
}

static int parse_rule(const json_t *j, struct rule *rule, const struct policy_context *ctx, struct error *err) {
        static const char *const keys[] = { "name", "hosts", "shared_suffix", "cidr", "ports", "protocol", "methods",
                                            "paths", "inspect", "internal", "limits", "action", NULL };
        rule->inspect = true;
        if (!json_is_object(j))
                return error_set(err, -EINVAL, "must be an object");
        int r = policy_only_keys(j, keys, err);
        if (r == 0)
                r = parse_name(j, rule, err);
        if (r == 0)
                r = parse_action(j, rule, err);
        if (r == 0)
                r = json_read_bool(j, "inspect", false, &rule->inspect, err);
        if (r == 0)
                r = json_read_bool(j, "internal", false, &rule->internal, err);
        if (r == 0)
                r = parse_limits(j, &rule->limits, err);
        if (r == 0)
                r = policy_methods_parse(j, &rule->methods, &rule->n_methods, err);
        if (r == 0)
                r = policy_paths_parse(j, &rule->paths, &rule->n_paths, err);
        if (r == 0)
                r = parse_protocol(j, rule, err);
        if (r == 0)
                r = parse_hosts(j, rule, ctx, err);
        if (r == 0)
                r = parse_cidrs(j, rule, err);
        if (r == 0)
                r = check_contradictions(j, rule, err);
        return r == 0 ? parse_ports(j, rule, err) : r;
}

/* What a rule matches, without what it then does. */
static json_t *conditions_of(const json_t *rule) {
        static const char *const keys[] = { "hosts", "cidr", "ports", "protocol", "methods", "paths" };
        json_t *c = json_object();

        for (size_t i = 0; c && i < ARRAY_SIZE(keys); i++) {
                json_t *v = json_object_get(rule, keys[i]);
                if (v && json_object_set(c, keys[i], v) < 0) {
                        json_decref(c);
                        return NULL;
                }
        }
        return c;
}

/* Two rules with one condition: the later one is never reached, and its author does not know. Rules without
 * ports or protocol mean different ones by their action, and are then not the same. */
static int check_twice(const struct policy *p, const json_t *conditions, size_t i, struct error *err) {
        const json_t *mine = json_array_get(conditions, i);

        for (size_t k = 0; k < i; k++) {
                const struct rule *a = &p->rules[k], *b = &p->rules[i];
                if (a->name && str_eq(a->name, b->name))
                        return error_set(err, -EINVAL, "name: \"%s\" is the name of rules[%zu] already", a->name, k);
                if (a->protocols == b->protocols && a->all_ports == b->all_ports && json_equal(mine, json_array_get(conditions, k)))
                        return error_set(err, -EINVAL, "is never reached: rules[%zu] has the same conditions", k);
        }
        return 0;
}

/* "rules[3]" and "hosts[0]: ..." make "rules[3].hosts[0]: ...". */
static int wrap_place(struct error *err, const char *place, int r) {
        char text[ERROR_MSG_MAX];

        if (!err)
                return r;
        size_t n = strspn(err->msg, "abcdefghijklmnopqrstuvwxyz_");
        bool member = n > 0 && (err->msg[n] == '[' || err->msg[n] == ':');
        snprintf(text, sizeof text, "%s", err->msg);
        return error_set(err, r, "%s%s%s", place, member ? "." : ": ", text);
}

static int parse_rules(const json_t *j, struct policy *p, const struct policy_context *ctx, struct error *err) {
        _cleanup_json_ json_t *conditions = json_array();
        json_t *list = NULL, *v;
        size_t i;

        int r = json_read_array(j, "rules", false, POLICY_RULES_MAX, &list, err);
        if (r < 0 || json_array_size(list) == 0)
                return r;
        p->rules = calloc(json_array_size(list), sizeof *p->rules);
        if (!p->rules)
                return no_memory(err);
        json_array_foreach(list, i, v) {
                struct rule *rule = &p->rules[p->n_rules++];
                snprintf(rule->place, sizeof rule->place, "rules[%zu]", i);
                r = parse_rule(v, rule, ctx, err);
                if (r == 0 && json_array_append_new(conditions, conditions_of(v)) < 0)
                        r = no_memory(err);
                if (r == 0)
                        r = check_twice(p, conditions, i, err);
                if (r < 0)
                        return wrap_place(err, rule->place, r);
        }
        return 0;
}

/* --- the whole --------------------------------------------------------------------------- */

static int parse_object(const json_t *j, struct policy *p, const struct policy_context *ctx, struct error *err) {
        static const char *const keys[] = { "version", "rules", "limits", NULL };
        uint64_t version = 1;

        int r = policy_only_keys(j, keys, err);
        if (r == 0)
                r = json_read_u64(j, "version", false, 1, 1, &version, err);
        if (r == 0)
                r = parse_limits(j, &p->limits, err);
        return r == 0 ? parse_rules(j, p, ctx, err) : r;
}

/* A preset's name alone: "none", or "@name" for a rule that allows what it stands for. */
static int parse_preset(const char *name, struct policy *p, const struct policy_context *ctx, struct error *err) {
        if (str_eq(name, "none"))
                return 0;
        if (name[0] != '@')
                return error_set(err, -EINVAL, "there is no preset \"%.64s\"", name);
        _cleanup_json_ json_t *j = json_pack("{s:[{s:[s],s:s}]}", "rules", "hosts", name, "action", "allow");
        return j ? parse_object(j, p, ctx, err) : no_memory(err);
}

int policy_compile(const json_t *j, const struct policy_context *ctx, struct policy **ret, struct error *err) {
        static _Atomic uint64_t serial;
        _cleanup_policy_ struct policy *p = calloc(1, sizeof *p);
        struct error own = ERROR_INIT;
        int r;

        if (!err)
                err = &own; /* error_wrap() takes the code from it */
        if (!p)
                return no_memory(err);
        p->refs = 1;
        p->serial = ++serial;
        if (json_is_object(j))
                r = parse_object(j, p, ctx, err);
        else if (json_is_string(j))
                r = parse_preset(json_string_value(j), p, ctx, err);
        else
                r = error_set(err, -EINVAL, "a policy must be an object or the name of a preset");
        if (r < 0)
                return r;
        *ret = STEAL(p);
        return 0;
}

int policy_parse(const void *json, size_t n, const struct policy_context *ctx, struct policy **ret, struct error *err) {
        _cleanup_json_ json_t *j = NULL;

        int r = n == 0 ? 0 : json_parse(json, n, POLICY_JSON_MAX, &j, err);
        if (r == 0 && !j) {
                j = json_object();
                r = j ? 0 : no_memory(err);
        }
        return r == 0 ? policy_compile(j, ctx, ret, err) : r;
}

json_t *policy_json_of_hosts(const char *const *hosts, size_t n) {
        _cleanup_json_ json_t *list = json_array();

        if (n == 0)
                return json_pack("{s:[]}", "rules");
        for (size_t i = 0; i < n; i++)
                if (json_array_append_new(list, json_string(hosts[i])) < 0)
                        return NULL;
        return json_pack("{s:[{s:s,s:s,s:O}]}", "rules", "name", "allow", "action", "allow", "hosts", list);
}

struct policy *policy_ref(struct policy *p) {
        if (p)
                p->refs++;
        return p;
}

void policy_unref(struct policy *p) {
        if (!p || --p->refs > 0)
                return;
        for (size_t i = 0; i < p->n_rules; i++)
                rule_done(&p->rules[i]);
        free(p->rules);
        free(p);
}

void policy_unrefp(struct policy **p) {
        policy_unref(*p);
}
