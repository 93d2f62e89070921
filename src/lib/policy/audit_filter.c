/* SPDX-License-Identifier: Apache-2.0 */
#include "policy/audit_filter.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/str.h"
#include "policy/policy_internal.h"

enum key { K_SINCE, K_UNTIL, K_SANDBOX, K_HOST, K_VERDICT, K_KIND, K_RULE, K_REASON, K_BINDING, K_METHOD, N_KEYS };

static const char *const key_names[] = {
        [K_SINCE] = "since", [K_UNTIL] = "until", [K_SANDBOX] = "sandbox", [K_HOST] = "host",       [K_VERDICT] = "verdict",
        [K_KIND] = "kind",   [K_RULE] = "rule",   [K_REASON] = "reason",   [K_BINDING] = "binding", [K_METHOD] = "method",
};
static_assert(ARRAY_SIZE(key_names) == N_KEYS);

struct audit_filter {
        bool given[N_KEYS];
        int64_t since_ms, until_ms;
        char sandbox[ID_SIZE];
        struct host_pattern host;
        struct host addr;    /* host given as an address */
        bool host_is_addr;
        uint16_t port;       /* 0: any */
        bool allow;
        enum audit_kind kind;
        enum policy_reason reason;
        char rule[POLICY_NAME_MAX + 1], binding[AUDIT_BINDING_MAX + 1], method[POLICY_METHOD_MAX + 1];
};

int audit_filter_new(struct audit_filter **ret) {
        struct audit_filter *f = calloc(1, sizeof *f);

        if (!f)
                return -ENOMEM;
        *ret = f;
        return 0;
}

void audit_filter_free(struct audit_filter *f) {
        if (!f)
                return;
        host_pattern_done(&f->host);
        free(f);
}

void audit_filter_freep(struct audit_filter **f) {
        audit_filter_free(*f);
}

static int parse_time(const char *value, int64_t now_ms, int64_t *ret, struct error *err) {
        uint64_t s;

        if (clock_parse_rfc3339(value, ret) == 0)
                return 0;
        if (str_to_seconds(value, &s) < 0 || s > (uint64_t) (now_ms > 0 ? now_ms : 0) / 1000)
                return error_set(err, -EINVAL, "\"%.64s\" is neither a time (\"2026-01-02T03:04:05Z\") nor a time back from now (\"15m\")",
                                 value);
        *ret = now_ms - (int64_t) s * 1000;
        return 0;
}

static int parse_host(struct audit_filter *f, const char *value, struct error *err) {
        struct host h;
        uint16_t port = 0;

        /* An address, with a port or without; anything else is a name. */
        bool is_addr = (host_parse(value, strlen(value), &h, NULL) == 0 ||
                        host_parse_authority(value, strlen(value), 0, &h, &port, NULL) == 0) &&
                       h.kind == HOST_IPV4;
        if (!is_addr)
                return host_pattern_parse(value, NULL, HOST_PATTERN_ANY_SUFFIX, &f->host, err);
        f->host_is_addr = true;
        f->addr = h;
        f->port = port;
        return 0;
}

static int parse_word(const char *value, char *dst, size_t cap, struct error *err) {
        if (value[0] == '\0' || str_copy(dst, cap, value) < 0)
                return error_set(err, -EINVAL, "\"%.64s\" is empty or too long", value);
        return 0;
}

static int parse_enum(struct audit_filter *f, enum key key, const char *value, struct error *err) {
        const char *known = "allow or deny";
        bool ok = false;

        if (key == K_VERDICT) {
                f->allow = str_eq(value, "allow");
                ok = f->allow || str_eq(value, "deny");
        } else if (key == K_REASON) {
                known = "a reason, such as no_rule";
                ok = policy_reason_parse(value, &f->reason) == 0;
        } else {
                known = "dns, connect, request, packets or lost";
                for (unsigned i = 0; i < N_AUDIT_KINDS; i++) {
                        if (str_eq(value, audit_kind_name((enum audit_kind) i))) {
                                f->kind = (enum audit_kind) i;
                                ok = true;
                        }
                }
        }
        return ok ? 0 : error_set(err, -EINVAL, "\"%.64s\" is not %s", value, known);
}

static int set(struct audit_filter *f, enum key key, const char *value, int64_t now_ms, struct error *err) {
        switch (key) {
        case K_SINCE:
                return parse_time(value, now_ms, &f->since_ms, err);
        case K_UNTIL:
                return parse_time(value, now_ms, &f->until_ms, err);
        case K_SANDBOX:
                if (!id_valid(value))
                        return error_set(err, -EINVAL, "\"%.64s\" is not a sandbox id", value);
                return str_copy(f->sandbox, sizeof f->sandbox, value);
        case K_HOST:
                return parse_host(f, value, err);
        case K_VERDICT:
        case K_KIND:
        case K_REASON:
                return parse_enum(f, key, value, err);
        case K_RULE:
                return parse_word(value, f->rule, sizeof f->rule, err);
        case K_BINDING:
                return parse_word(value, f->binding, sizeof f->binding, err);
        case K_METHOD:
                return parse_word(value, f->method, sizeof f->method, err);
        case N_KEYS:
                break;
        }
        return -EINVAL;
}

int audit_filter_set(struct audit_filter *f, const char *key, const char *value, int64_t now_ms, struct error *err) {
        for (unsigned i = 0; i < N_KEYS; i++) {
                struct error own = ERROR_INIT;
                if (!str_eq(key, key_names[i]))
                        continue;
                if (f->given[i])
                        return error_set(err, -EINVAL, "%s: given twice", key);
                int r = set(f, (enum key) i, value, now_ms, &own);
                if (r < 0)
                        return error_set(err, r, "%s: %.400s", key, own.msg);
                f->given[i] = true;
                return 0;
        }
        return error_set(err, -EINVAL, "\"%.64s\" is not something that records can be chosen by", key);
}

static bool host_matches(const struct audit_filter *f, const struct audit *a) {
        if (f->host_is_addr) {
                return (str_eq(a->host, f->addr.name) || str_eq(a->address, f->addr.name)) && (!f->port || f->port == a->port);
        }
        return a->host[0] && host_pattern_match(&f->host, a->host) && (!f->host.port || f->host.port == a->port);
}

bool audit_filter_match(const struct audit_filter *f, const struct audit *a) {
        if (!f)
                return true;
        return (!f->given[K_SINCE] || a->time_ms >= f->since_ms) && (!f->given[K_UNTIL] || a->time_ms < f->until_ms) &&
               (!f->given[K_SANDBOX] || str_eq(f->sandbox, a->sandbox)) && (!f->given[K_HOST] || host_matches(f, a)) &&
               (!f->given[K_VERDICT] || f->allow == a->allow) && (!f->given[K_KIND] || f->kind == a->kind) &&
               (!f->given[K_RULE] || str_eq(f->rule, a->rule)) && (!f->given[K_REASON] || f->reason == a->reason) &&
               (!f->given[K_BINDING] || str_eq(f->binding, a->binding)) && (!f->given[K_METHOD] || str_eq(f->method, a->method));
}
