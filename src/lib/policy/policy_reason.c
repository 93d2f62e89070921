/* SPDX-License-Identifier: Apache-2.0 */
#include <assert.h>
#include <errno.h>

#include "base/cleanup.h"
#include "base/str.h"
#include "policy/policy.h"

static const struct {
        const char *name, *text;
} reasons[] = {
        [REASON_RULE] = { "rule", "a rule decides this" },
        [REASON_NO_RULE] = { "no_rule", "no rule allows this host" },
        [REASON_NO_POLICY] = { "no_policy", "this sandbox has no policy, and nothing is allowed without one" },
        [REASON_BAD_NAME] = { "bad_name", "this is not a host name" },
        [REASON_BAD_AUTHORITY] = { "bad_authority", "the request does not say clearly which host it is for" },
        [REASON_HOST_MISMATCH] = { "host_mismatch", "the connection was opened to one host and asks for another" },
        [REASON_ADDRESS_LITERAL] = { "address_literal", "addresses are not allowed, only names, unless a CIDR rule says so" },
        [REASON_ADDRESS_UNKNOWN] = { "address_unknown", "this address stands for no name that was asked for" },
        [REASON_ADDRESS_REFUSED] = { "address_refused", "the address behind this name is not a public one" },
        [REASON_PORT] = { "port", "the host is allowed, but not on this port" },
        [REASON_PROTOCOL] = { "protocol", "the host and port are allowed, but not with this protocol" },
        [REASON_METHOD] = { "method", "the host is allowed, but not with this method" },
        [REASON_PATH] = { "path", "the host is allowed, but not with this path" },
        [REASON_PATH_AMBIGUOUS] = { "path_ambiguous", "servers could read this path in more than one way" },
        [REASON_METHOD_AMBIGUOUS] = { "method_ambiguous", "servers could read this method in more than one way" },
        [REASON_LIMIT_CONNECTIONS] = { "limit_connections", "too many connections at once" },
        [REASON_LIMIT_REQUESTS] = { "limit_requests", "too many requests in a minute" },
        [REASON_LIMIT_BYTES] = { "limit_bytes", "the allowed number of bytes is used up" },
        [REASON_LIMIT_DNS] = { "limit_dns", "too many DNS queries in a second" },
        [REASON_LIMIT_NAMES] = { "limit_names", "too many different names" },
        [REASON_DNS_TYPE] = { "dns_type", "this type of DNS record is not answered" },
        [REASON_DNS_MALFORMED] = { "dns_malformed", "the DNS query is malformed" },
        [REASON_HTTP_MALFORMED] = { "http_malformed", "the HTTP message is malformed" },
        [REASON_TLS_MALFORMED] = { "tls_malformed", "the TLS handshake is malformed" },
        [REASON_TLS_NO_SNI] = { "tls_no_sni", "the TLS handshake does not name its host" },
        [REASON_TLS_ECH] = { "tls_ech", "the TLS handshake hides its host (ECH)" },
        [REASON_TLS_UPSTREAM] = { "tls_upstream", "the server's certificate does not verify" },
        [REASON_UPGRADE] = { "upgrade", "the connection may not be upgraded to this protocol" },
        [REASON_RESOLVE_FAILED] = { "resolve_failed", "the host's address could not be found" },
        [REASON_CONNECT_FAILED] = { "connect_failed", "the host could not be reached" },
        [REASON_TIMEOUT] = { "timeout", "it took too long" },
        [REASON_LOOP] = { "loop", "this is the gateway itself" },
        [REASON_REVOKED] = { "revoked", "the policy was changed and does not allow this any more" },
        [REASON_CREDENTIAL] = { "credential", "the credential for this request is not available" },
        [REASON_BINDING_RATE] = { "binding_rate", "the credential for this request is used too often" },
        [REASON_BINDING_USES] = { "binding_uses", "the credential for this request is used up" },
        [REASON_BINDING_EXPIRED] = { "binding_expired", "the binding of the credential for this request has expired" },
        [REASON_PLACEHOLDER] = { "placeholder", "the request has a credential's placeholder where it is not replaced" },
        [REASON_INTERNAL] = { "internal", "the gateway failed" },
        [REASON_PACKET_SPOOFED] = { "packet_spoofed", "packets with another source than the sandbox's are dropped" },
        [REASON_PACKET_NOT_CARRIED] = { "packet_not_carried", "nothing but TCP and DNS is carried" },
        [REASON_PACKET_FLOOD] = { "packet_flood", "there are too many connections, or too many new ones at one time" },
};
static_assert(ARRAY_SIZE(reasons) == N_POLICY_REASONS);

const char *policy_reason_name(enum policy_reason r) {
        return (unsigned) r < N_POLICY_REASONS ? reasons[r].name : "internal";
}

const char *policy_reason_text(enum policy_reason r) {
        return (unsigned) r < N_POLICY_REASONS ? reasons[r].text : reasons[REASON_INTERNAL].text;
}

int policy_reason_parse(const char *s, enum policy_reason *ret) {
        for (size_t i = 0; i < ARRAY_SIZE(reasons); i++) {
                if (str_eq(s, reasons[i].name)) {
                        *ret = (enum policy_reason) i;
                        return 0;
                }
        }
        return -EINVAL;
}

const char *policy_protocol_name(enum policy_protocol p) {
        switch (p) {
        case POLICY_HTTP:
                return "http";
        case POLICY_TLS:
                return "tls";
        case POLICY_TCP:
                return "tcp";
        case POLICY_UNKNOWN:
                break;
        }
        return "unknown";
}
