/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/clock.h"
#include "base/str.h"
#include "policy/binding_internal.h"

#define SECRET_MARK "{secret}"
#define USER_MAX 256
#define NAME_MAX_LEN 64
#define USES_MAX (1ULL << 53)

static int no_memory(struct error *err) {
        return error_set(err, -ENOMEM, "out of memory");
}

void binding_done(struct binding *b) {
        for (size_t i = 0; i < b->n_hosts; i++)
                host_pattern_done(&b->hosts[i]);
        free(b->hosts);
        policy_strings_free(b->methods, b->n_methods);
        policy_strings_free(b->paths, b->n_paths);
        free(b->name);
        free(b->before);
        free(b->after);
        free(b->placeholder);
        memset(b, 0, sizeof *b);
}

static int parse_id(const json_t *j, const char *key, char ret[BINDING_ID_MAX + 1], struct error *err) {
        static const char allowed[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-";
        const char *s = NULL;

        int r = json_read_str(j, key, true, BINDING_ID_MAX, &s, err);
        if (r < 0)
                return r;
        if (s[0] == '\0' || s[strspn(s, allowed)] != '\0')
                return error_set(err, -EINVAL, "%s: must be of [A-Za-z0-9._-]", key);
        return str_copy(ret, BINDING_ID_MAX + 1, s);
}

static int parse_hosts(const json_t *j, struct binding *b, struct error *err) {
        json_t *list = NULL, *v;
        size_t i;

        int r = json_read_array(j, "hosts", true, POLICY_HOSTS_MAX, &list, err);
        if (r < 0)
                return r;
        if (json_array_size(list) == 0)
                return error_set(err, -EINVAL, "\"hosts\" is empty");
        b->hosts = calloc(json_array_size(list), sizeof *b->hosts);
        if (!b->hosts)
                return no_memory(err);
        json_array_foreach(list, i, v) {
                const char *text = json_string_value(v);
                struct host_pattern *p = &b->hosts[b->n_hosts];
                if (!text)
                        return error_set(err, -EINVAL, "hosts[%zu]: must be a string", i);
                r = host_pattern_parse(text, NULL, HOST_PATTERN_OWN_SUFFIX, p, err);
                if (r < 0)
                        return error_wrap(err, "hosts[%zu]", i);
                b->n_hosts++;
                if (!p->name)
                        return error_set(err, -EINVAL, "hosts[%zu]: a credential is not for every host", i);
        }
        return 0;
}

/* Fields that are the gateway's own, or that frame the message. */
static bool header_forbidden(const char *name) {
        static const char *const names[] = { "host", "connection", "content-length", "transfer-encoding", "te", "trailer", "upgrade",
                                             "keep-alive", "expect", "proxy-authorization", "proxy-connection", "accept-encoding" };
        for (size_t i = 0; i < ARRAY_SIZE(names); i++)
                if (strcasecmp(name, names[i]) == 0)
                        return true;
        return false;
}

static int parse_template(const json_t *j, struct binding *b, struct error *err) {
        const char *text = SECRET_MARK;

        int r = json_read_str(j, "template", false, BINDING_TEMPLATE_MAX, &text, err);
        if (r < 0)
                return r;
        const char *mark = strstr(text, SECRET_MARK);
        if (!mark || strstr(mark + 1, SECRET_MARK))
                return error_set(err, -EINVAL, "template: must have \"%s\" once", SECRET_MARK);
        if (!http1_is_value(text, strlen(text)) || text[0] == ' ' || text[0] == '\t')
                return error_set(err, -EINVAL, "template: has bytes that no header may have");
        b->before = strndup(text, (size_t) (mark - text));
        b->after = strdup(mark + strlen(SECRET_MARK));
        return b->before && b->after ? 0 : no_memory(err);
}

static int parse_header(const json_t *j, struct binding *b, struct error *err) {
        static const char *const keys[] = { "as", "name", "template", NULL };
        const char *name = NULL;

        int r = policy_only_keys(j, keys, err);
        if (r == 0)
                r = json_read_str(j, "name", true, NAME_MAX_LEN, &name, err);
        if (r < 0)
                return r;
        if (!http1_is_token(name, strlen(name)) || header_forbidden(name))
                return error_set(err, -EINVAL, "name: \"%s\" is not a header for credentials", name);
        b->name = strdup(name);
        if (!b->name)
                return no_memory(err);
        for (char *c = b->name; *c; c++)
                if (*c >= 'A' && *c <= 'Z')
                        *c = (char) (*c - 'A' + 'a');
        return parse_template(j, b, err);
}

static int parse_basic(const json_t *j, struct binding *b, struct error *err) {
        static const char *const keys[] = { "as", "user", NULL };
        const char *user = NULL;

        int r = policy_only_keys(j, keys, err);
        if (r == 0)
                r = json_read_str(j, "user", true, USER_MAX, &user, err);
        if (r < 0)
                return r;
        if (strchr(user, ':'))
                return error_set(err, -EINVAL, "user: has a \":\"");
        b->name = strdup("authorization");
        b->before = malloc(strlen(user) + 2);
        b->after = strdup("");
        if (!b->name || !b->before || !b->after)
                return no_memory(err);
        strcpy(stpcpy(b->before, user), ":");
        return 0;
}

static int parse_query(const json_t *j, struct binding *b, struct error *err) {
        static const char *const keys[] = { "as", "name", NULL };
        static const char allowed[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-~";
        const char *name = NULL;

        int r = policy_only_keys(j, keys, err);
        if (r == 0)
                r = json_read_str(j, "name", true, NAME_MAX_LEN, &name, err);
        if (r < 0)
                return r;
        if (name[0] == '\0' || name[strspn(name, allowed)] != '\0')
                return error_set(err, -EINVAL, "name: must be of [A-Za-z0-9._~-]");
        b->name = strdup(name);
        b->before = strdup("");
        b->after = strdup("");
        return b->name && b->before && b->after ? 0 : no_memory(err);
}

static int parse_inject(const json_t *obj, struct binding *b, struct error *err) {
        static int (*const parse[])(const json_t *, struct binding *, struct error *) = {
                [BINDING_HEADER] = parse_header, [BINDING_BASIC] = parse_basic, [BINDING_QUERY] = parse_query
        };
        static const char *const names[] = { [BINDING_HEADER] = "header", [BINDING_BASIC] = "basic", [BINDING_QUERY] = "query" };
        const char *as = NULL;
        json_t *j = NULL;

        int r = json_read_obj(obj, "inject", true, &j, err);
        if (r < 0)
                return r;
        r = json_read_str(j, "as", true, 16, &as, err);
        for (size_t i = 0; r == 0 && i < ARRAY_SIZE(parse); i++) {
                if (str_eq(as, names[i])) {
                        b->place = (enum binding_place) i;
                        r = parse[i](j, b, err);
                        return r < 0 ? error_wrap(err, "inject") : 0;
                }
        }
        if (r == 0)
                error_set(err, -EINVAL, "as: must be \"header\", \"basic\" or \"query\"");
        return error_wrap(err, "inject");
}

static int parse_rate(const json_t *obj, struct binding *b, struct error *err) {
        static const char *const keys[] = { "per_minute", "burst", NULL };
        json_t *j = NULL;

        int r = json_read_obj(obj, "rate", false, &j, err);
        if (r < 0 || !j)
                return r;
        r = policy_only_keys(j, keys, err);
        if (r == 0)
                r = json_read_u64(j, "per_minute", true, 1, BUCKET_RATE_MAX, &b->per_minute, err);
        b->burst = b->per_minute;
        if (r == 0)
                r = json_read_u64(j, "burst", false, 1, BUCKET_RATE_MAX, &b->burst, err);
        return r < 0 ? error_wrap(err, "rate") : 0;
}

static int parse_limits(const json_t *j, struct binding *b, struct error *err) {
        const char *expires = NULL;

        int r = parse_rate(j, b, err);
        if (r == 0)
                r = json_read_u64(j, "uses", false, 1, USES_MAX, &b->uses, err);
        if (r == 0)
                r = json_read_u64(j, "used", false, 0, USES_MAX, &b->used, err);
        if (r == 0)
                r = json_read_str(j, "expires", false, RFC3339_SIZE, &expires, err);
        if (r == 0 && expires && (clock_parse_rfc3339(expires, &b->expires_ms) < 0 || b->expires_ms <= 0))
                r = error_set(err, -EINVAL, "expires: is not a time such as \"2026-01-02T03:04:05Z\"");
        return r;
}

bool placeholder_valid(const char *s) {
        size_t n = strspn(s, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-");

        return s[n] == '\0' && n >= PLACEHOLDER_MIN && n <= PLACEHOLDER_MAX;
}

static int parse_placeholder(const json_t *j, struct binding *b, struct error *err) {
        const char *s = NULL;

        int r = json_read_str(j, "placeholder", false, PLACEHOLDER_MAX, &s, err);
        if (r < 0 || !s)
                return r;
        if (!placeholder_valid(s))
                return error_set(err, -EINVAL, "placeholder: must be %d to %d of [A-Za-z0-9_-]", PLACEHOLDER_MIN, PLACEHOLDER_MAX);
        b->placeholder = strdup(s);
        return b->placeholder ? 0 : no_memory(err);
}

int binding_parse(const json_t *j, struct binding *ret, struct error *err) {
        static const char *const keys[] = { "id", "credential", "hosts", "methods", "paths", "inject", "rate",
                                            "uses", "used", "expires", "placeholder", NULL };
        struct binding b = { 0 };

        int r = json_is_object(j) ? policy_only_keys(j, keys, err) : error_set(err, -EINVAL, "must be an object");
        if (r == 0)
                r = parse_id(j, "id", b.id, err);
        if (r == 0)
                r = parse_id(j, "credential", b.credential, err);
        if (r == 0)
                r = parse_hosts(j, &b, err);
        if (r == 0)
                r = policy_methods_parse(j, &b.methods, &b.n_methods, err);
        if (r == 0)
                r = policy_paths_parse(j, &b.paths, &b.n_paths, err);
        if (r == 0)
                r = parse_inject(j, &b, err);
        if (r == 0)
                r = parse_limits(j, &b, err);
        if (r == 0)
                r = parse_placeholder(j, &b, err);
        if (r < 0) {
                binding_done(&b);
                return r;
        }
        *ret = b;
        return 0;
}
