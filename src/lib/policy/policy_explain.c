/* SPDX-License-Identifier: Apache-2.0 */

/* What the stages would say about a URL, for a person who asks why. Nothing is resolved or dialled. */

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/str.h"
#include "policy/policy_internal.h"

#define URL_MAX 8192

struct url {
        struct host host;
        uint16_t port;
        enum policy_protocol protocol;
        bool http;          /* has requests */
        const char *target; /* borrowed; "/" without one */
};

static const struct {
        const char *prefix;
        enum policy_protocol protocol;
        bool http;
        uint16_t port;
} schemes[] = {
        { "http://", POLICY_HTTP, true, 80 },   { "https://", POLICY_TLS, true, 443 }, { "ws://", POLICY_HTTP, true, 80 },
        { "wss://", POLICY_TLS, true, 443 },    { "tls://", POLICY_TLS, false, 0 },    { "tcp://", POLICY_TCP, false, 0 },
};

static int parse_url(const char *text, struct url *ret, struct error *err) {
        const char *why = NULL;

        if (strlen(text) > URL_MAX)
                return error_set(err, -EINVAL, "the URL has more than %d bytes", URL_MAX);
        for (size_t i = 0; i < ARRAY_SIZE(schemes); i++) {
                size_t n = strlen(schemes[i].prefix);
                if (!str_case_eq_n(text, strnlen(text, n), schemes[i].prefix))
                        continue;
                const char *authority = text + n;
                size_t an = strcspn(authority, "/?#");
                struct url u = { .protocol = schemes[i].protocol, .http = schemes[i].http };
                if (host_parse_authority(authority, an, schemes[i].port, &u.host, &u.port, &why) < 0)
                        return error_set(err, -EINVAL, "\"%.300s\": the host has %s", text, why);
                u.target = authority[an] == '/' ? authority + an : "/";
                *ret = u;
                return 0;
        }
        return error_set(err, -EINVAL, "\"%.300s\" is not a URL with http, https, ws, wss, tls or tcp", text);
}

static const char *outcome_name(enum policy_outcome o) {
        return o == POLICY_ALLOW ? "allow" : o == POLICY_DENY ? "deny" : "ask";
}

static json_t *stage_json(const char *stage, const struct policy_verdict *v) {
        return json_pack("{s:s,s:s,s:s,s:i,s:s}", "stage", stage, "verdict", outcome_name(v->outcome), "rule",
                         v->rule_name, "index", v->rule, "reason", policy_reason_name(v->reason));
}

/* Stages in order until one denies; *ret_last is the one that counts. */
static int run_stages(const struct policy *p, const struct url *u, const char *method, json_t *stages,
                      struct policy_verdict *ret_last, bool *ret_inspect) {
        struct policy_verdict v = { .outcome = POLICY_ALLOW };
        int r = 0;

        if (u->host.kind == HOST_NAME) {
                v = policy_dns(p, u->host.name);
                r = json_array_append_new(stages, stage_json("dns", &v));
        } else {
                struct address a = address_of_v4(u->host.addr);
                v = policy_connect(p, &u->host, u->port, POLICY_UNKNOWN);
                if (v.outcome != POLICY_DENY) {
                        v = policy_address(p, &v, &a, u->port, u->protocol, NULL, NULL);
                        r = json_array_append_new(stages, stage_json("address", &v));
                }
        }
        if (r == 0 && v.outcome != POLICY_DENY) {
                v = policy_connect(p, &u->host, u->port, u->protocol);
                *ret_inspect = u->protocol == POLICY_TLS && v.outcome != POLICY_DENY && v.inspect;
                r = json_array_append_new(stages, stage_json("connect", &v));
        }
        if (r == 0 && v.outcome == POLICY_ASK && u->http) {
                v = policy_request(p, &u->host, u->port, u->protocol, method, u->target);
                r = json_array_append_new(stages, stage_json("request", &v));
        }
        *ret_last = v;
        return r;
}

int policy_explain(const struct policy *p, const char *url, const char *method, json_t **ret, struct error *err) {
        _cleanup_json_ json_t *stages = json_array();
        struct policy_verdict v;
        bool inspect = false;
        struct url u;

        int r = parse_url(url, &u, err);
        if (r < 0)
                return r;
        if (!stages || run_stages(p, &u, method ? method : "GET", stages, &v, &inspect) < 0)
                return error_set(err, -ENOMEM, "out of memory");
        /* A tls:// URL has no request to ask about, so what is left open stays so. */
        json_t *j = json_pack("{s:s,s:s,s:i,s:s,s:s,s:i,s:s,s:s,s:b,s:O}", "url", url, "host", u.host.name, "port",
                              (int) u.port, "verdict", outcome_name(v.outcome), "rule", v.rule_name, "index", v.rule,
                              "reason", policy_reason_name(v.reason), "message", policy_reason_text(v.reason),
                              "inspect", inspect, "stages", stages);
        if (!j)
                return error_set(err, -ENOMEM, "out of memory");
        *ret = j;
        return 0;
}
