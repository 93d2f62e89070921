/* SPDX-License-Identifier: Apache-2.0 */

/*
 * The policy language and its evaluation: the first line is a host, the second a method and a target, the rest
 * a policy. Holds: what is refused says why; the stages never contradict each other (a request that is allowed
 * was not cut off by an earlier stage); an address that is not public is never dialled without "internal".
 */

#include "fuzz.h"

#include "policy/policy.h"

static const char *const addresses[] = { "127.0.0.1", "10.0.0.1", "169.254.169.254", "8.8.8.8", "fd00::1", "::1", "2a00::1", "224.0.0.1" };

static void check_addresses(const struct policy *p, const struct policy_verdict *v, enum policy_protocol protocol, bool internal) {
        for (size_t i = 0; i < sizeof addresses / sizeof addresses[0]; i++) {
                struct address a;
                enum address_class class;
                REQUIRE(address_parse(addresses[i], &a) == 0);
                struct policy_verdict d = policy_address(p, v, &a, 443, protocol, NULL, &class);
                if (v->outcome == POLICY_DENY || (class != ADDRESS_PUBLIC && !internal))
                        REQUIRE(d.outcome == POLICY_DENY);
                if (class == ADDRESS_MULTICAST || !address_is_v4(&a))
                        REQUIRE(d.outcome == POLICY_DENY || class == ADDRESS_PUBLIC);
        }
}

static void check_stages(const struct policy *p, const struct host *h, uint16_t port, const char *method, const char *target,
                         bool internal) {
        static const enum policy_protocol protocols[] = { POLICY_HTTP, POLICY_TLS, POLICY_TCP };
        struct policy_verdict dns = policy_dns(p, h->name), any = policy_connect(p, h, port, POLICY_UNKNOWN);

        for (size_t i = 0; i < 3; i++) {
                struct policy_verdict c = policy_connect(p, h, port, protocols[i]);
                REQUIRE(((any.protocols & protocols[i]) != 0) == (c.outcome != POLICY_DENY));
                if (c.outcome != POLICY_DENY && h->kind == HOST_NAME)
                        REQUIRE(dns.outcome == POLICY_ALLOW);
                check_addresses(p, &c, protocols[i], internal);
                if (protocols[i] == POLICY_TCP)
                        continue;
                struct policy_verdict r = policy_request(p, h, port, protocols[i], method, target);
                REQUIRE(r.outcome != POLICY_ASK);
                if (r.outcome == POLICY_ALLOW) {
                        REQUIRE(c.outcome != POLICY_DENY && r.rule >= 0);
                        REQUIRE((size_t) r.rule < policy_n_rules(p));
                }
                /* Passed through unseen only if no request could be refused. */
                if (c.outcome == POLICY_ALLOW)
                        REQUIRE(r.outcome == POLICY_ALLOW && !c.inspect);
                check_addresses(p, &r, protocols[i], internal);
        }
}

/* Up to c; *rest is what follows it. */
static char *take(const uint8_t **d, size_t *n, char c) {
        const uint8_t *end = memchr(*d, c, *n);
        size_t len = end ? (size_t) (end - *d) : *n;
        char *s = malloc(len + 1);

        REQUIRE(s);
        memcpy(s, *d, len);
        s[len] = '\0';
        *d += len + (end != NULL);
        *n -= len + (end != NULL);
        return s;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n) {
        static const char *const package_hosts[] = { "mirror.test", "*.files.test:8080" };
        static const struct policy_preset preset = { "@packages", package_hosts, 2 };
        static const struct policy_context ctx = { &preset, 1, NULL };
        struct error err = ERROR_INIT;
        struct policy *p = NULL;
        struct host h;
        uint16_t port;

        char *host = take(&data, &n, '\n'), *method = take(&data, &n, ' '), *target = take(&data, &n, '\n');
        uint8_t *copy = piece_of(data, n);
        bool named = host_parse_authority(host, strlen(host), 443, &h, &port, NULL) == 0;
        int r = policy_parse(copy, n, &ctx, &p, &err);
        if (r < 0) {
                REQUIRE(!p && err.msg[0] && err.code == r);
        } else if (named) {
                check_stages(p, &h, port, method, target, memmem(copy, n, "internal", 8) || memchr(copy, '\\', n));
                json_t *j = NULL;
                if (policy_explain(p, target, method, &j, &err) == 0)
                        json_decref(j);
        }
        policy_unref(p);
        free(copy);
        free(host);
        free(method);
        free(target);
        return 0;
}
