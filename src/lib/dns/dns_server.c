/* SPDX-License-Identifier: Apache-2.0 */
#include "dns/dns_server.h"

#include <arpa/inet.h>
#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/str.h"
#include "dns/dns_message.h"
#include "policy/bucket.h"

#define NAME_BUCKETS 256
static_assert(POLICY_LIMIT_NAMES_MAX == DNS_NAMES_MAX); /* more could not be counted */

/* How many names of the table a rule has allowed; counted again when one of these changes. */
struct rule_count {
        const struct policy *policy; /* while counting */
        uint64_t serial, version;
        int rule;
        uint64_t count;
};

struct dns_server {
        struct dns_names *names;
        uint64_t seed;
        struct bucket all, records;
        struct {
                uint64_t hash;
                struct bucket bucket;
        } by_name[NAME_BUCKETS];
        struct rule_count rule_count;
};

int dns_server_new(struct dns_names *names, uint64_t seed, struct dns_server **ret) {
        struct dns_server *s = calloc(1, sizeof *s);

        if (!s)
                return -ENOMEM;
        s->names = names;
        s->seed = seed;
        *ret = s;
        return 0;
}

void dns_server_free(struct dns_server *s) {
        free(s);
}

void dns_server_freep(struct dns_server **s) {
        dns_server_free(*s);
}

/* --- limits ------------------------------------------------------------------------------ */

static bool name_rate(struct dns_server *s, const char *name, uint64_t now_ms) {
        uint64_t h = s->seed ^ 0xcbf29ce484222325u;

        for (; *name; name++) {
                h = (h ^ (uint8_t) *name) * 0x100000001b3u;
                h ^= h >> 29;
        }
        size_t i = (h ^ h >> 32) % NAME_BUCKETS;
        if (s->by_name[i].hash != h) {
                s->by_name[i].hash = h;
                s->by_name[i].bucket = (struct bucket){ 0 };
        }
        return bucket_take(&s->by_name[i].bucket, DNS_NAME_RATE * 60, DNS_NAME_BURST, now_ms);
}

static bool count_one(void *arg, const char *name) {
        struct rule_count *c = arg;

        if (policy_dns(c->policy, name).rule == c->rule)
                c->count++;
        return true;
}

static uint64_t names_of_rule(struct dns_server *s, const struct policy *p, int rule) {
        struct rule_count *c = &s->rule_count;
        uint64_t version = dns_names_version(s->names);

        if (c->serial != policy_serial(p) || c->version != version || c->rule != rule) {
                *c = (struct rule_count){ .policy = p, .serial = policy_serial(p), .version = version, .rule = rule };
                dns_names_each(s->names, count_one, c);
        }
        return c->count;
}

static bool names_left(struct dns_server *s, const struct policy *p, int rule) {
        uint64_t total = policy_total_limits(p).names, own = policy_rule_limits(p, rule).names;

        if (total && dns_names_count(s->names) >= total)
                return false;
        return !own || names_of_rule(s, p, rule) < own;
}

/* --- answers ----------------------------------------------------------------------------- */

struct answering {
        struct dns_server *s;
        const struct policy *policy;
        const struct dns_query *q;
        struct dns_reply reply;
        struct audit *audit;
};

static void refuse(struct answering *a, const struct policy_verdict *v, enum dns_rcode rcode) {
        audit_verdict(a->audit, v);
        a->audit->allow = false;
        a->reply.rcode = rcode;
        a->reply.rule = a->audit->rule;
        a->reply.why = policy_reason_text(v->reason);
}

static void refuse_as(struct answering *a, const struct policy_verdict *v, enum policy_reason why, enum dns_rcode rcode) {
        struct policy_verdict w = *v;

        w.outcome = POLICY_DENY;
        w.reason = why;
        refuse(a, &w, rcode);
}

/* Types that are questions about the server or carry arbitrary bytes. */
static bool type_is_data(uint16_t t) {
        return t != 0 && t != DNS_TYPE_NULL && t != DNS_TYPE_OPT && (t < 128 || t > 255);
}

/* "d.c.b.a.in-addr.arpa" of a synthetic address. */
static bool reverse_addr(const char *name, struct in_addr *ret) {
        char text[INET_ADDRSTRLEN];
        const char *suffix = strstr(name, ".in-addr.arpa");
        unsigned b[4];
        int end = 0;

        if (!suffix || strlen(suffix) != strlen(".in-addr.arpa") || suffix - name >= (ptrdiff_t) sizeof text)
                return false;
        memcpy(text, name, (size_t) (suffix - name));
        text[suffix - name] = '\0';
        if (sscanf(text, "%3u.%3u.%3u.%3u%n", &b[0], &b[1], &b[2], &b[3], &end) != 4 || text[end] != '\0')
                return false;
        char forward[INET_ADDRSTRLEN * 2];
        snprintf(forward, sizeof forward, "%u.%u.%u.%u", b[3], b[2], b[1], b[0]);
        return inet_pton(AF_INET, forward, ret) == 1 && dns_names_in_range(*ret);
}

static void answer_reverse(struct answering *a) {
        const struct policy_verdict none = { .reason = REASON_NO_RULE, .rule = -1, .rule_name = "default" };
        struct in_addr addr;
        const char *name = NULL;

        if (a->q->type == DNS_TYPE_PTR && reverse_addr(a->q->name, &addr))
                name = dns_names_lookup(a->s->names, addr);
        if (!name) {
                refuse_as(a, &none, REASON_NO_RULE, DNS_NXDOMAIN);
                return;
        }
        struct policy_verdict v = policy_dns(a->policy, name);
        if (v.outcome == POLICY_DENY) {
                refuse(a, &v, DNS_NXDOMAIN);
                return;
        }
        audit_verdict(a->audit, &v);
        a->reply.ptr = name;
}

/* "_http._tcp.a.test" where a.test is allowed: no such service is announced, which is not a refusal. */
static bool is_service_of_allowed(const struct answering *a, struct policy_verdict *ret) {
        const char *name = a->q->name;

        if (name[0] != '_')
                return false;
        while (name && name[0] == '_') {
                name = strchr(name, '.');
                name = name ? name + 1 : NULL;
        }
        if (!name)
                return false;
        struct policy_verdict v = policy_dns(a->policy, name);
        if (v.outcome == POLICY_DENY)
                return false;
        *ret = v;
        return true;
}

static void answer_address(struct answering *a, const struct policy_verdict *v) {
        struct in_addr addr;

        if (!dns_names_find(a->s->names, a->q->name, &addr) && !names_left(a->s, a->policy, v->rule)) {
                refuse_as(a, v, REASON_LIMIT_NAMES, DNS_REFUSED);
                return;
        }
        int r = dns_names_get(a->s->names, a->q->name, &addr, NULL);
        if (r < 0) {
                refuse_as(a, v, r == -ENOSPC ? REASON_LIMIT_NAMES : REASON_INTERNAL, r == -ENOSPC ? DNS_REFUSED : DNS_SERVFAIL);
                return;
        }
        a->reply.addr = addr;
        a->reply.has_addr = true;
        inet_ntop(AF_INET, &addr, a->audit->address, sizeof a->audit->address);
}

static void answer_name(struct answering *a) {
        struct policy_verdict v = policy_dns(a->policy, a->q->name), service;

        if (v.outcome == POLICY_DENY && is_service_of_allowed(a, &service))
                refuse_as(a, &service, REASON_DNS_TYPE, DNS_NXDOMAIN);
        else if (v.outcome == POLICY_DENY)
                refuse(a, &v, DNS_REFUSED);
        else if (!type_is_data(a->q->type))
                refuse_as(a, &v, REASON_DNS_TYPE, DNS_NOTIMP);
        else {
                audit_verdict(a->audit, &v);
                if (a->q->type == DNS_TYPE_A)
                        answer_address(a, &v);
        }
}

static bool is_reverse(const char *name) {
        return host_name_below(name, "in-addr.arpa") || host_name_below(name, "ip6.arpa");
}

static void answer_query(struct answering *a, uint64_t now_ms) {
        const struct policy_verdict none = { .rule = -1, .rule_name = "default" };
        const struct dns_query *q = a->q;

        if (q->edns && q->edns_version != 0)
                refuse_as(a, &none, REASON_DNS_MALFORMED, DNS_BADVERS);
        else if (q->class != DNS_CLASS_IN)
                refuse_as(a, &none, REASON_DNS_TYPE, DNS_REFUSED);
        else if (!q->name[0])
                refuse_as(a, &none, REASON_BAD_NAME, DNS_REFUSED);
        else if (!name_rate(a->s, q->name, now_ms))
                refuse_as(a, &none, REASON_LIMIT_DNS, DNS_REFUSED);
        else if (is_reverse(q->name))
                answer_reverse(a);
        else
                answer_name(a);
}

/* --- the whole --------------------------------------------------------------------------- */

static size_t write_reply(struct answering *a, uint8_t *out) {
        size_t n = dns_reply_write(a->q, &a->reply, out, DNS_ANSWER_MAX);

        a->audit->status = (uint16_t) a->reply.rcode;
        if (n > 0)
                return n;
        audit_deny(a->audit, REASON_INTERNAL);
        a->audit->status = DNS_SERVFAIL;
        return dns_reply_bare(a->q->data, DNS_SERVFAIL, out);
}

/* Floods get one record a second; the guest sees each refusal. */
static void bare(struct dns_server *s, const uint8_t *query, enum policy_reason why, enum dns_rcode rcode, uint64_t now_ms,
                 uint8_t *out, struct dns_result *ret) {
        ret->n = dns_reply_bare(query, rcode, out);
        ret->record = bucket_take(&s->records, 60, 1, now_ms);
        audit_deny(&ret->audit, why);
        ret->audit.status = (uint16_t) rcode;
}

void dns_server_answer(struct dns_server *s, const struct policy *p, const uint8_t *query, size_t n,
                       enum dns_transport transport, uint64_t now_ms, int64_t wall_ms, uint8_t *out,
                       struct dns_result *ret) {
        struct answering a = { .s = s, .policy = p, .audit = &ret->audit };
        struct dns_query q;

        ret->n = 0;
        ret->record = false;
        audit_init(&ret->audit, AUDIT_DNS, wall_ms, NULL);
        ret->audit.port = 53;
        ret->audit.protocol = transport == DNS_TCP ? POLICY_TCP : POLICY_UNKNOWN;
        ret->audit.bytes_out = n;
        if (n < DNS_HEADER_SIZE || dns_is_answer(query))
                return;
        if (!bucket_take(&s->all, DNS_RATE * 60, DNS_BURST, now_ms)) {
                bare(s, query, REASON_LIMIT_DNS, DNS_REFUSED, now_ms, out, ret);
                ret->audit.bytes_in = ret->n;
                return;
        }
        int r = dns_query_read(query, n, &q);
        if (r < 0) {
                bare(s, query, REASON_DNS_MALFORMED, r == -EOPNOTSUPP ? DNS_NOTIMP : DNS_FORMERR, now_ms, out, ret);
                ret->audit.bytes_in = ret->n;
                return;
        }
        audit_set_host(&ret->audit, q.name[0] ? q.name : q.shown, strlen(q.name[0] ? q.name : q.shown));
        ret->audit.qtype = q.type;
        ret->record = true;
        a.q = &q;
        answer_query(&a, now_ms);
        if (ret->audit.reason == REASON_LIMIT_DNS)
                ret->record = bucket_take(&s->records, 60, 1, now_ms);
        ret->n = write_reply(&a, out);
        ret->audit.bytes_in = ret->n;
}

/* --- TCP --------------------------------------------------------------------------------- */

int dns_tcp_next(const struct buf *in, const uint8_t **msg, size_t *n) {
        const uint8_t *d = buf_data(in);

        if (in->len < 2)
                return 0;
        size_t len = (size_t) d[0] << 8 | d[1];
        if (len > DNS_QUERY_MAX)
                return -EMSGSIZE;
        if (in->len < 2 + len)
                return 0;
        *msg = d + 2;
        *n = len;
        return 1;
}

void dns_tcp_consume(struct buf *in) {
        const uint8_t *d = buf_data(in);

        if (in->len >= 2)
                buf_consume(in, 2 + ((size_t) d[0] << 8 | d[1]));
}

int dns_tcp_put(struct buf *out, const uint8_t *answer, size_t n) {
        const uint8_t len[2] = { (uint8_t) (n >> 8), (uint8_t) n };
        int r = n > UINT16_MAX ? -EMSGSIZE : buf_append(out, len, sizeof len);

        return r == 0 ? buf_append(out, answer, n) : r;
}
