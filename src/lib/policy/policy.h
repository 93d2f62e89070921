/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * The policy of a sandbox: what it may reach. docs/egress.md has the language, api/policy.schema.json its
 * form. Compiled once, immutable, counted; everything here is a pure function of its arguments.
 *
 * A connection meets the rules up to four times, and each stage answers with the same rules:
 *
 *   policy_dns()      a name is asked for: could anything at all be allowed with it?
 *   policy_connect()  a connection to (host, port): first without (POLICY_UNKNOWN: which protocols are
 *                     worth waiting for?), then with the protocol that the first bytes are
 *   policy_address()  a real address is about to be dialled for an allowed connection
 *   policy_request()  one HTTP request (also each one on a connection that was allowed before)
 *
 * After a live update all open connections are judged again with the new policy.
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"
#include "base/json.h"
#include "policy/address.h"
#include "policy/host.h"

#define POLICY_JSON_MAX (256u * 1024)
#define POLICY_RULES_MAX 256
#define POLICY_HOSTS_MAX 1024      /* patterns of one rule, presets expanded */
#define POLICY_CIDRS_MAX 256       /* of one rule */
#define POLICY_PORTS_MAX 64        /* ports and ranges of one rule */
#define POLICY_METHODS_MAX 32      /* of one rule */
#define POLICY_PATHS_MAX 64        /* of one rule */
#define POLICY_NAME_MAX 63         /* [a-z0-9][a-z0-9._-]* */
#define POLICY_METHOD_MAX 32
#define POLICY_LIMIT_NAMES_MAX 8192 /* of limits.names: as many as are remembered (DNS_NAMES_MAX) */

/* What the bytes of a connection are. */
enum policy_protocol {
        POLICY_UNKNOWN = 0, /* not seen yet */
        POLICY_HTTP = 1 << 0,
        POLICY_TLS = 1 << 1,
        POLICY_TCP = 1 << 2, /* anything else; never looked into */
};
const char *policy_protocol_name(enum policy_protocol p); /* "http", "tls", "tcp", "unknown" */

enum policy_outcome {
        POLICY_DENY = 0,
        POLICY_ALLOW,
        POLICY_ASK, /* not yet decided: by protocol (UNKNOWN) or by request (HTTP, inspected TLS) */
};

/* Why, as a stable string in answers, audit records and tests (policy_reason_name()). */
enum policy_reason {
        REASON_RULE = 0,          /* the named rule says so */
        REASON_NO_RULE,           /* nothing matched: the default is deny */
        REASON_NO_POLICY,         /* an empty policy */
        REASON_BAD_NAME,          /* not a host name in canonical form */
        REASON_BAD_AUTHORITY,     /* Host, :authority or CONNECT target cannot be read */
        REASON_HOST_MISMATCH,     /* SNI, Host and the name behind the address are not one name */
        REASON_ADDRESS_LITERAL,   /* an address that no CIDR rule allows */
        REASON_ADDRESS_UNKNOWN,   /* a synthetic address that stands for no name */
        REASON_ADDRESS_REFUSED,   /* what the name resolves to may not be dialled (class in the record) */
        REASON_PORT,              /* host allowed, but not on this port */
        REASON_PROTOCOL,          /* host and port allowed, but not with this protocol */
        REASON_METHOD,
        REASON_PATH,
        REASON_PATH_AMBIGUOUS,
        REASON_METHOD_AMBIGUOUS,  /* lower case, where a rule looks at methods */
        REASON_LIMIT_CONNECTIONS,
        REASON_LIMIT_REQUESTS,
        REASON_LIMIT_BYTES,
        REASON_LIMIT_DNS,         /* queries per second */
        REASON_LIMIT_NAMES,       /* names in use at once, or of one rule */
        REASON_DNS_TYPE,          /* a record type that is not answered */
        REASON_DNS_MALFORMED,
        REASON_HTTP_MALFORMED,
        REASON_TLS_MALFORMED,
        REASON_TLS_NO_SNI,
        REASON_TLS_ECH,
        REASON_TLS_UPSTREAM,      /* upstream's certificate does not verify */
        REASON_UPGRADE,           /* an upgrade (h2c, ...) that would leave inspection */
        REASON_RESOLVE_FAILED,
        REASON_CONNECT_FAILED,
        REASON_TIMEOUT,
        REASON_LOOP,              /* the gateway's own address */
        REASON_REVOKED,           /* allowed when opened, not any more */
        REASON_CREDENTIAL,        /* a binding applies and its secret is not there */
        REASON_BINDING_RATE,
        REASON_BINDING_USES,
        REASON_BINDING_EXPIRED,
        REASON_PLACEHOLDER,       /* a placeholder where it is not replaced */
        REASON_INTERNAL,          /* the gateway itself failed */
        REASON_PACKET_SPOOFED,    /* with another source than the sandbox's */
        REASON_PACKET_NOT_CARRIED, /* neither TCP nor DNS */
        REASON_PACKET_FLOOD,      /* beyond the kernel's limits of connections */
        N_POLICY_REASONS
};
const char *policy_reason_name(enum policy_reason r); /* "rule", "no_rule", ... */
const char *policy_reason_text(enum policy_reason r); /* a sentence for the one who is refused */
int policy_reason_parse(const char *s, enum policy_reason *ret);

struct policy_verdict {
        enum policy_outcome outcome;
        enum policy_reason reason;
        int rule;              /* index, -1: none */
        const char *rule_name; /* the rule's name, "rules[3]" without one, "default" without a rule; borrowed */
        unsigned protocols;    /* policy_connect(UNKNOWN): which could be allowed, bits of policy_protocol */
        bool inspect;          /* TLS: terminate it; false with POLICY_ALLOW: pass it through */
        bool by_method;        /* a rule on the way here looked at the method: overriding headers are dangerous */
        bool by_path;          /* a rule on the way here looked at the path: it must be forwarded unchanged */
};

/* Host lists from outside that "@name" stands for in "hosts". Entries as in "hosts" ("name",
 * "*.suffix", each with ":port" if need be). */
struct policy_preset {
        const char *name; /* "@packages" */
        const char *const *hosts;
        size_t n_hosts;
};

struct policy_context {
        const struct policy_preset *presets;
        size_t n_presets;
        /* Whether registrants share this suffix ("co.uk"); NULL: not checked. */
        bool (*is_public_suffix)(const char *suffix);
};

struct policy_limits { /* 0: none */
        uint64_t connections;         /* at once */
        uint64_t requests_per_minute;
        uint64_t bytes_out, bytes_in; /* for the sandbox's life; out: from the sandbox */
        uint64_t names;               /* different names, for the sandbox's life */
};

struct policy;

/* Text of a policy. n == 0 is the policy that denies all. Refused whole (-EINVAL, -EFBIG; the message names the
 * place: `rules[3].hosts[0]: ...`). ctx may be NULL. */
int policy_parse(const void *json, size_t n, const struct policy_context *ctx, struct policy **ret, struct error *err);
int policy_compile(const json_t *j, const struct policy_context *ctx, struct policy **ret, struct error *err);
/* What `--allow HOST` given n times means, as JSON ({"rules":[...]}; none for n == 0); a new reference, NULL: no
 * memory. It is checked where it is compiled. */
json_t *policy_json_of_hosts(const char *const *hosts, size_t n);
struct policy *policy_ref(struct policy *p); /* the count is for one thread */
void policy_unref(struct policy *p); /* NULL is fine */
void policy_unrefp(struct policy **p);
#define _cleanup_policy_ _cleanup_(policy_unrefp)

/* For evaluation NULL is the policy that denies all. */
uint64_t policy_serial(const struct policy *p); /* another for each compiled one, so that what is kept of it can be told stale */
size_t policy_n_rules(const struct policy *p);
const char *policy_rule_name(const struct policy *p, int rule); /* as in the verdict */
struct policy_limits policy_total_limits(const struct policy *p);
struct policy_limits policy_rule_limits(const struct policy *p, int rule); /* none for -1 */

/* name is canonical (host_parse_name()). ALLOW or DENY. */
struct policy_verdict policy_dns(const struct policy *p, const char *name);

/*
 * host as the gateway knows it: the name behind the synthetic address, or the address that was dialled.
 *   UNKNOWN: DENY, or ASK with .protocols; if that is POLICY_TCP alone there is nothing to wait for.
 *   HTTP:    DENY, or ASK (each request is judged).
 *   TLS:     DENY, ALLOW (.inspect false: pass through), or ASK with .inspect true.
 *   TCP:     DENY or ALLOW.
 */
struct policy_verdict policy_connect(const struct policy *p, const struct host *host, uint16_t port,
                                     enum policy_protocol protocol);

/* protocol: POLICY_HTTP, or POLICY_TLS for a request inside inspected TLS. target as sent. ALLOW or DENY. */
struct policy_verdict policy_request(const struct policy *p, const struct host *host, uint16_t port,
                                     enum policy_protocol protocol, const char *method, const char *target);

/*
 * Dial time: a is what `host` resolved to (or is), `allowed` the verdict that let the connection through,
 * `own` this host's ranges. Refused unless a is public or in a range that the operator opened, or the allowing rule is marked `"internal": true` and
 * has a CIDR with a in it; and if a rule before the allowing one denies a by CIDR. A request whose verdict names
 * another rule than the one its upstream connection was dialled under is to be asked again. Loopback, link-local and
 * the metadata addresses need the whole CIDR within that class to be listed (0.0.0.0/0 does not list them).
 * ret_class may be NULL.
 */
struct policy_verdict policy_address(const struct policy *p, const struct policy_verdict *allowed,
                                     const struct address *a, uint16_t port, enum policy_protocol protocol,
                                     const struct address_set *own, enum address_class *ret_class);

/* What a policy that compiles may not do as its writer thinks: an array of at most POLICY_WARNINGS_MAX sentences, a new
 * reference; NULL: nothing to say, or no memory. ASCII; nothing of it is from outside but ranges. */
#define POLICY_WARNINGS_MAX 16
json_t *policy_warnings(const json_t *policy);

/* For `cspace policy check`: every stage for a URL ("https://host:port/path", also tcp://host:port and tls://host:port) as an
 * object {"url","verdict","rule","reason","message","inspect","stages":[...]}. method NULL is GET. */
int policy_explain(const struct policy *p, const char *url, const char *method, json_t **ret, struct error *err);
