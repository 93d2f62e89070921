/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Not a test by itself (tests/integration/policy uses it): each line of stdin is a policy, or with the argument "bindings" a
 * list of bindings; for each comes "ok" or the parser's message. With "judge" it is
 * {"policy","host","port","protocol","method","target"}, and what comes is "DNS RULE CONNECT RULE REQUEST RULE", with
 * "pass" for TLS that is let through unseen and "-" for no request.
 */

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "policy/binding.h"
#include "policy/policy.h"
#include "policy/suffix.h"

static int read_policy(const char *line, size_t n, struct error *err) {
        static const char *const hosts[] = { "mirror.test", "*.files.test:8080" };
        static const struct policy_preset preset = { "@packages", hosts, 2 };
        static const struct policy_context ctx = { &preset, 1, public_suffix_is };
        _cleanup_policy_ struct policy *p = NULL;

        return policy_parse(line, n, &ctx, &p, err);
}

static int read_bindings(const char *line, size_t n, struct error *err) {
        _cleanup_(bindings_freep) struct bindings *b = NULL;
        _cleanup_json_ json_t *j = NULL;

        int r = bindings_new(&b);
        if (r == 0)
                r = json_parse(line, n, 65536, &j, err);
        return r == 0 ? bindings_load(b, j, err) : r;
}

static const char *outcome(const struct policy_verdict *v) {
        return v->outcome == POLICY_DENY ? "deny" : v->outcome == POLICY_ALLOW ? "allow" : "ask";
}

static int judge(const json_t *j, struct error *err) {
        _cleanup_policy_ struct policy *p = NULL;
        const char *host, *protocol, *method, *target;
        struct host h;
        int port;

        if (json_unpack((json_t *) (uintptr_t) j, "{s:s,s:i,s:s,s:s,s:s}", "host", &host, "port", &port, "protocol", &protocol, "method",
                        &method, "target", &target) < 0 ||
            host_parse(host, strlen(host), &h, NULL) < 0)
                return error_set(err, -EINVAL, "not a question");
        int r = policy_compile(json_object_get(j, "policy"), NULL, &p, err);
        if (r < 0)
                return r;
        enum policy_protocol kind = strcmp(protocol, "http") == 0 ? POLICY_HTTP : strcmp(protocol, "tls") == 0 ? POLICY_TLS : POLICY_TCP;
        struct policy_verdict d = policy_dns(p, h.name), c = policy_connect(p, &h, (uint16_t) port, kind);
        struct policy_verdict q = policy_request(p, &h, (uint16_t) port, kind, method, target);
        printf("%s %s %s %s %s %s\n", outcome(&d), d.rule_name,
               kind == POLICY_TLS && c.outcome == POLICY_ALLOW ? "pass" : outcome(&c), c.rule_name,
               kind == POLICY_TCP ? "-" : outcome(&q), kind == POLICY_TCP ? "-" : q.rule_name);
        return 0;
}

static int judge_lines(void) {
        _cleanup_free_ char *line = NULL;
        size_t cap = 0;
        ssize_t n;

        while ((n = getline(&line, &cap, stdin)) > 0) {
                _cleanup_json_ json_t *j = NULL;
                struct error err = ERROR_INIT;
                if (json_parse(line, (size_t) n, POLICY_JSON_MAX, &j, &err) < 0 || judge(j, &err) < 0)
                        printf("error: %s\n", err.msg);
        }
        return 0;
}

int main(int argc, char **argv) {
        if (argc > 1 && strcmp(argv[1], "judge") == 0)
                return judge_lines();
        bool bindings = argc > 1 && strcmp(argv[1], "bindings") == 0;
        _cleanup_free_ char *line = NULL;
        size_t cap = 0;
        ssize_t n;

        while ((n = getline(&line, &cap, stdin)) > 0) {
                struct error err = ERROR_INIT;
                int r = (bindings ? read_bindings : read_policy)(line, (size_t) n, &err);
                for (char *c = err.msg; *c; c++)
                        if (*c == '\n')
                                *c = ' ';
                printf("%s\n", r < 0 ? err.msg : "ok");
        }
        return 0;
}
