/* SPDX-License-Identifier: Apache-2.0 */

/*
 * The rules in order; the first that matches decides. A rule that looks at methods or paths cannot decide
 * before there is a request: in earlier stages it leaves the question open (POLICY_ASK), and a later
 * rule cannot close it again.
 */

#include <arpa/inet.h>
#include <errno.h>
#include <string.h>

#include "base/cleanup.h"
#include "policy/path.h"
#include "policy/policy_internal.h"

uint64_t policy_serial(const struct policy *p) {
        return p ? p->serial : 0;
}

size_t policy_n_rules(const struct policy *p) {
        return p ? p->n_rules : 0;
}

const char *policy_rule_name(const struct policy *p, int rule) {
        if (!p || rule < 0 || (size_t) rule >= p->n_rules)
                return "default";
        return p->rules[rule].name ? p->rules[rule].name : p->rules[rule].place;
}

struct policy_limits policy_total_limits(const struct policy *p) {
        return p ? p->limits : (struct policy_limits){ 0 };
}

struct policy_limits policy_rule_limits(const struct policy *p, int rule) {
        return p && rule >= 0 && (size_t) rule < p->n_rules ? p->rules[rule].limits : (struct policy_limits){ 0 };
}

static struct policy_verdict decided(const struct policy *p, size_t i) {
        const struct rule *r = &p->rules[i];

        return (struct policy_verdict){ .outcome = r->allow ? POLICY_ALLOW : POLICY_DENY,
                                        .reason = REASON_RULE,
                                        .rule = (int) i,
                                        .rule_name = policy_rule_name(p, (int) i),
                                        .inspect = r->allow && r->inspect };
}

static struct policy_verdict denied(const struct policy *p, enum policy_reason why) {
        if (policy_n_rules(p) == 0)
                why = REASON_NO_POLICY;
        return (struct policy_verdict){ .reason = why, .rule = -1, .rule_name = "default" };
}

/* --- conditions -------------------------------------------------------------------------- */

static bool port_in(const struct rule *r, uint16_t port) {
        for (size_t i = 0; i < r->n_ports; i++)
                if (port >= r->ports[i].first && port <= r->ports[i].last)
                        return true;
        return r->all_ports;
}

/* Whether the destination is meant; *port_ok whether with this port too. */
static bool host_matches(const struct rule *r, const struct host *h, uint16_t port, bool *port_ok) {
        bool found = false, in = port_in(r, port);

        *port_ok = false;
        for (size_t i = 0; h->kind == HOST_NAME && i < r->n_hosts; i++) {
                const struct host_pattern *p = &r->hosts[i];
                if (!host_pattern_match(p, h->name))
                        continue;
                found = true;
                /* A port of a preset's host counts within the rule's ports, if it has any. */
                bool own = p->port == port && (in || r->default_ports);
                *port_ok = *port_ok || (p->port ? own : in);
        }
        for (size_t i = 0; h->kind == HOST_IPV4 && i < r->n_cidrs; i++) {
                if (cidr_has(&r->cidrs[i], h->addr)) {
                        found = true;
                        *port_ok = in;
                }
        }
        return found;
}

struct question {
        const struct host *host;
        uint16_t port;
        enum policy_protocol protocol;
        const char *method; /* NULL: not known yet */
        struct path *path;  /* read when first needed */
        const char *target;
};

/* Reasons by how far a request got; the furthest is the one worth telling. */
static void closest(enum policy_reason *best, enum policy_reason r) {
        static const enum policy_reason order[] = { REASON_NO_RULE, REASON_ADDRESS_LITERAL, REASON_PORT,
                                                    REASON_PROTOCOL, REASON_METHOD, REASON_PATH };
        size_t a = 0, b = 0;

        for (size_t i = 0; i < ARRAY_SIZE(order); i++) {
                if (order[i] == *best)
                        a = i;
                if (order[i] == r)
                        b = i;
        }
        if (b > a)
                *best = r;
}

static bool method_in(const struct rule *r, const char *method) {
        for (size_t i = 0; i < r->n_methods; i++)
                if (strcmp(r->methods[i], method) == 0)
                        return true;
        return false;
}

/* Destination and protocol. */
static bool reaches(const struct rule *r, const struct question *q, enum policy_reason *near) {
        bool port_ok;

        if (!host_matches(r, q->host, q->port, &port_ok))
                return false;
        if (!port_ok) {
                if (r->allow)
                        closest(near, REASON_PORT);
                return false;
        }
        if (!(r->protocols & q->protocol)) {
                if (r->allow)
                        closest(near, REASON_PROTOCOL);
                return false;
        }
        return true;
}

/* Method and path of a rule that reaches(). 1 matches, 0 not, negative: -EINVAL cannot be decided (*near says
 * why), -ENOMEM. */
static int request_matches(const struct rule *r, struct question *q, enum policy_reason *near,
                           struct policy_verdict *note) {
        if (r->n_methods > 0) {
                note->by_method = true;
                if (!policy_method_plain(q->method)) {
                        *near = REASON_METHOD_AMBIGUOUS;
                        return -EINVAL;
                }
                if (!method_in(r, q->method)) {
                        if (r->allow)
                                closest(near, REASON_METHOD);
                        return 0;
                }
        }
        if (r->n_paths == 0)
                return 1;
        note->by_path = true;
        if (!q->path)
                q->path = path_read(q->target);
        if (!q->path) {
                *near = REASON_INTERNAL;
                return -ENOMEM;
        }
        enum path_match m = path_match(q->path, (const char *const *) r->paths, r->n_paths);
        if (m == PATH_AMBIGUOUS) {
                *near = REASON_PATH_AMBIGUOUS;
                return -EINVAL;
        }
        if (m == PATH_NO && r->allow)
                closest(near, REASON_PATH);
        return m == PATH_YES;
}

static enum policy_reason start_reason(const struct host *h) {
        return h->kind == HOST_IPV4 ? REASON_ADDRESS_LITERAL : h->kind == HOST_NAME ? REASON_NO_RULE : REASON_BAD_NAME;
}

/* --- stages ------------------------------------------------------------------------------ */

struct policy_verdict policy_dns(const struct policy *p, const char *name) {
        struct host h = { .kind = HOST_NAME };

        if (strlen(name) >= sizeof h.name)
                return denied(p, REASON_BAD_NAME);
        strcpy(h.name, name);
        for (size_t i = 0; i < policy_n_rules(p); i++) {
                const struct rule *r = &p->rules[i];
                for (size_t k = 0; k < r->n_hosts; k++) {
                        if (!host_pattern_match(&r->hosts[k], h.name))
                                continue;
                        bool whole = r->all_ports && !r->hosts[k].port && r->protocols == POLICY_ALL_PROTOCOLS;
                        if (r->allow || (whole && !rule_conditional(r)))
                                return decided(p, i);
                }
        }
        return denied(p, REASON_NO_RULE);
}

static struct policy_verdict connect_known(const struct policy *p, const struct question *q) {
        enum policy_reason near = start_reason(q->host);
        struct policy_verdict open = { 0 };
        bool conditional = false;

        for (size_t i = 0; i < policy_n_rules(p); i++) {
                const struct rule *r = &p->rules[i];
                if (!reaches(r, q, &near))
                        continue;
                struct policy_verdict v = decided(p, i);
                if (rule_conditional(r)) {
                        /* A request can be denied by it; whether one can be allowed is seen further on. */
                        if (r->allow && open.outcome == POLICY_DENY) {
                                open = v;
                                open.outcome = POLICY_ASK;
                        }
                        conditional = true;
                        continue;
                }
                if (!r->allow)
                        return open.outcome == POLICY_ASK ? open : v;
                if (open.outcome == POLICY_ASK)
                        return open;
                if (conditional || q->protocol == POLICY_HTTP || (q->protocol == POLICY_TLS && r->inspect)) {
                        v.outcome = POLICY_ASK;
                        v.inspect = true;
                }
                return v;
        }
        return open.outcome == POLICY_ASK ? open : denied(p, near);
}

static struct policy_verdict connect_unknown(const struct policy *p, struct question *q) {
        static const enum policy_protocol all[] = { POLICY_HTTP, POLICY_TLS, POLICY_TCP };
        struct policy_verdict best = denied(p, start_reason(q->host));
        unsigned protocols = 0;

        for (size_t i = 0; i < ARRAY_SIZE(all); i++) {
                q->protocol = all[i];
                struct policy_verdict v = connect_known(p, q);
                if (v.outcome != POLICY_DENY) {
                        if (protocols == 0)
                                best = v;
                        protocols |= all[i];
                } else if (protocols == 0 && (v.reason == REASON_RULE || best.reason != REASON_RULE)) {
                        best = v;
                }
        }
        if (protocols)
                best.outcome = POLICY_ASK;
        best.protocols = protocols;
        return best;
}

struct policy_verdict policy_connect(const struct policy *p, const struct host *host, uint16_t port,
                                     enum policy_protocol protocol) {
        struct question q = { .host = host, .port = port, .protocol = protocol };

        if (protocol == POLICY_UNKNOWN)
                return connect_unknown(p, &q);
        struct policy_verdict v = connect_known(p, &q);
        v.protocols = v.outcome == POLICY_DENY ? 0 : (unsigned) protocol;
        return v;
}

struct policy_verdict policy_request(const struct policy *p, const struct host *host, uint16_t port,
                                     enum policy_protocol protocol, const char *method, const char *target) {
        struct question q = { .host = host, .port = port, .protocol = protocol, .method = method, .target = target };
        enum policy_reason near = start_reason(host);
        struct policy_verdict v, note = { 0 };
        size_t i;

        for (i = 0; i < policy_n_rules(p); i++) {
                const struct rule *r = &p->rules[i];
                if (!reaches(r, &q, &near))
                        continue;
                int m = request_matches(r, &q, &near, &note);
                if (m == 0)
                        continue;
                v = decided(p, i);
                if (m < 0) {
                        v.outcome = POLICY_DENY;
                        v.reason = near;
                }
                break;
        }
        path_free(q.path);
        if (i == policy_n_rules(p))
                v = denied(p, near);
        v.protocols = v.outcome == POLICY_DENY ? 0 : (unsigned) protocol;
        v.by_method = note.by_method;
        v.by_path = note.by_path;
        return v;
}

/* --- dial time --------------------------------------------------------------------------- */

static bool v4_of(const struct address *a, struct in_addr *ret) {
        if (!address_is_v4(a))
                return false;
        memcpy(ret, a->in6.s6_addr + 12, 4);
        return true;
}

bool cidr_means(const struct cidr *c, enum address_class class) {
        const int bits = __builtin_popcount(c->mask);
        const struct address net = address_of_v4((struct in_addr){ .s_addr = htonl(c->net) });
        if (bits < 8)
                return false;
        switch (class) {
        case ADDRESS_PUBLIC:
        case ADDRESS_PRIVATE:
        case ADDRESS_RESERVED:
        case ADDRESS_HOST:
                return true;
        case ADDRESS_LOOPBACK:
                return address_classify(&net) == class;
        case ADDRESS_LINK_LOCAL:
                return bits >= 16;
        case ADDRESS_METADATA:
                return bits == 32;
        case ADDRESS_UNSPECIFIED:
        case ADDRESS_MULTICAST:
        case ADDRESS_BROADCAST:
        case N_ADDRESS_CLASSES:
                break;
        }
        return false;
}

/* Whether the operator listed this address, and meant it. */
static bool lists_internal(const struct rule *r, struct in_addr a, enum address_class class) {
        for (size_t i = 0; r->internal && i < r->n_cidrs; i++)
                if (cidr_has(&r->cidrs[i], a) && cidr_means(&r->cidrs[i], class))
                        return true;
        return false;
}

/* A deny rule with a CIDR, standing before the rule that allowed the name. */
static int denied_by_cidr(const struct policy *p, int before, struct in_addr a, uint16_t port,
                          enum policy_protocol protocol) {
        struct host h;

        host_of_addr(a, &h);
        struct question q = { .host = &h, .port = port, .protocol = protocol };
        enum policy_reason near = REASON_NO_RULE;
        for (int i = 0; i < before && (size_t) i < policy_n_rules(p); i++) {
                const struct rule *r = &p->rules[i];
                if (!r->allow && !rule_conditional(r) && reaches(r, &q, &near))
                        return i;
        }
        return -1;
}

struct policy_verdict policy_address(const struct policy *p, const struct policy_verdict *allowed,
                                     const struct address *a, uint16_t port, enum policy_protocol protocol,
                                     const struct address_set *own, enum address_class *ret_class) {
        struct policy_verdict v = *allowed;
        enum address_class class = address_classify(a);
        struct in_addr v4 = { 0 };
        bool is_v4 = v4_of(a, &v4), ok = false;

        if ((class == ADDRESS_PUBLIC || class == ADDRESS_PRIVATE || class == ADDRESS_RESERVED) && address_set_has(own, a))
                class = ADDRESS_HOST;
        if ((class == ADDRESS_PRIVATE || class == ADDRESS_RESERVED) && address_set_is_open(own, a))
                class = ADDRESS_PUBLIC;
        if (ret_class)
                *ret_class = class;
        if (allowed->outcome == POLICY_DENY)
                return v;
        bool has_rule = allowed->rule >= 0 && (size_t) allowed->rule < policy_n_rules(p);
        int by = is_v4 && has_rule ? denied_by_cidr(p, allowed->rule, v4, port, protocol) : -1;
        if (by >= 0)
                return decided(p, (size_t) by);
        if (has_rule)
                ok = class == ADDRESS_PUBLIC || (is_v4 && lists_internal(&p->rules[allowed->rule], v4, class));
        v.outcome = ok ? POLICY_ALLOW : POLICY_DENY;
        if (!ok)
                v.reason = REASON_ADDRESS_REFUSED;
        return v;
}
