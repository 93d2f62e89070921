/* SPDX-License-Identifier: Apache-2.0 */

/*
 * The DNS server, bytes to bytes (attack catalogue D; field failures N02, N25, N42). Queries are written here
 * byte by byte, answers are read by libldns.
 */

#include <arpa/inet.h>
#include <errno.h>
#include <ldns/ldns.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/str.h"
#include "dns/dns_message.h"
#include "dns/dns_server.h"
#include "test.h"

struct fixture {
        struct dns_names *names;
        struct dns_server *server;
        struct policy *policy;
        uint64_t now_ms;
};

static void use_policy(struct fixture *f, const char *json) {
        _cleanup_free_ char *text = strdup(json);
        struct error err = ERROR_INIT;
        for (char *c = text; *c; c++)
                *c = *c == '\'' ? '"' : *c;
        policy_unref(f->policy);
        f->policy = NULL;
        if (policy_parse(text, strlen(text), NULL, &f->policy, &err) < 0)
                fail_msg("%s", err.msg);
}

static int setup(void **state) {
        struct fixture *f = calloc(1, sizeof *f);
        assert_int_equal(dns_names_new(1, 100, &f->names), 0);
        assert_int_equal(dns_server_new(f->names, 2, &f->server), 0);
        f->now_ms = 1000000;
        use_policy(f, "{'rules':[{'action':'deny','name':'no','hosts':['bad.a.test']},"
                      "{'action':'allow','name':'yes','hosts':['a.test','*.a.test']}]}");
        *state = f;
        return 0;
}

static int teardown(void **state) {
        struct fixture *f = *state;
        policy_unref(f->policy);
        dns_server_free(f->server);
        dns_names_free(f->names);
        free(f);
        return 0;
}

/* --- queries ----------------------------------------------------------------------------- */

struct query {
        uint8_t d[2048];
        size_t n;
};

static void put16(struct query *q, unsigned v) {
        q->d[q->n++] = (uint8_t) (v >> 8);
        q->d[q->n++] = (uint8_t) v;
}

static void header(struct query *q, unsigned flags, unsigned qd, unsigned ar) {
        q->n = 0;
        put16(q, 0x1234);
        put16(q, flags);
        put16(q, qd);
        put16(q, 0);
        put16(q, 0);
        put16(q, ar);
}

static void put_name(struct query *q, const char *name) {
        while (*name) {
                size_t n = strcspn(name, ".");
                q->d[q->n++] = (uint8_t) n;
                memcpy(q->d + q->n, name, n);
                q->n += n;
                name += n + (name[n] == '.');
        }
        q->d[q->n++] = 0;
}

static void put_opt(struct query *q, unsigned version, unsigned size) {
        q->d[q->n++] = 0;
        put16(q, 41);
        put16(q, size);
        put16(q, version);
        put16(q, 0);
        put16(q, 0);
}

static struct query ask(const char *name, unsigned type) {
        struct query q;
        header(&q, 0x0100, 1, 0);
        put_name(&q, name);
        put16(&q, type);
        put16(&q, 1);
        return q;
}

static struct query ask_edns(const char *name, unsigned type) {
        struct query q = ask(name, type);
        q.d[11] = 1;
        put_opt(&q, 0, 4096);
        return q;
}

/* --- answers ----------------------------------------------------------------------------- */

static struct dns_result send_query(struct fixture *f, const struct query *q, uint8_t *out) {
        struct dns_result r;
        uint8_t *copy = malloc(q->n ? q->n : 1); /* of its own size, for the sanitizer */
        memcpy(copy, q->d, q->n);
        dns_server_answer(f->server, f->policy, copy, q->n, DNS_UDP, f->now_ms, 5, out, &r);
        free(copy);
        assert_true(r.n <= 512);
        if (r.n > 0) {
                assert_true(r.n >= 12);
                assert_memory_equal(out, q->d, 2);
                assert_true(out[2] & 0x80);
        }
        return r;
}

/* "RCODE records reason recorded|quiet" */
static void expect(struct fixture *f, const struct query *q, const char *what, const char *want) {
        uint8_t out[DNS_ANSWER_MAX];
        struct dns_result r = send_query(f, q, out);
        char got[600] = "dropped";
        if (r.n > 0) {
                ldns_pkt *pkt = NULL;
                assert_int_equal(ldns_wire2pkt(&pkt, out, r.n), LDNS_STATUS_OK);
                _cleanup_free_ char *rcode = ldns_pkt_rcode2str(ldns_pkt_get_rcode(pkt));
                snprintf(got, sizeof got, "%s", rcode);
                ldns_rr_list *answer = ldns_pkt_answer(pkt);
                for (size_t i = 0; i < ldns_rr_list_rr_count(answer); i++) {
                        ldns_rr *rr = ldns_rr_list_rr(answer, i);
                        _cleanup_free_ char *owner = ldns_rdf2str(ldns_rr_owner(rr)), *type = ldns_rr_type2str(ldns_rr_get_type(rr)),
                                            *data = ldns_rdf2str(ldns_rr_rdf(rr, 0));
                        snprintf(got + strlen(got), sizeof got - strlen(got), " %s %s %s", owner, type, data);
                        assert_int_equal(ldns_rr_ttl(rr), DNS_TTL_S);
                }
                assert_int_equal(r.audit.status & 15, ldns_pkt_get_rcode(pkt));
                assert_int_equal(ldns_pkt_nscount(pkt), 0);
                ldns_pkt_free(pkt);
        }
        snprintf(got + strlen(got), sizeof got - strlen(got), " | %s %s %s%s", r.audit.allow ? "allow" : "deny", r.audit.rule,
                 policy_reason_name(r.audit.reason), r.record ? "" : " quiet");
        if (!str_eq(got, want))
                fail_msg("%s: %s\nnot %s", what, got, want);
}

static void expect_name(struct fixture *f, const char *name, unsigned type, const char *want) {
        struct query q = ask(name, type);
        expect(f, &q, name, want);
        f->now_ms += 100;
}

static void test_types(void **state) {
        struct fixture *f = *state;
        expect_name(f, "a.test", 1, "NOERROR a.test. A 198.18.1.0 | allow yes rule");
        expect_name(f, "x.a.test", 1, "NOERROR x.a.test. A 198.18.1.1 | allow yes rule");
        expect_name(f, "a.test", 1, "NOERROR a.test. A 198.18.1.0 | allow yes rule");
        /* No IPv6, no hints, no ECH, no data: XD03, XD13, N42. */
        static const unsigned empty[] = { 28, 64, 65, 16, 15, 33, 2, 6, 5, 257, 43, 48, 256, 65399 };
        for (size_t i = 0; i < ARRAY_SIZE(empty); i++)
                expect_name(f, "a.test", empty[i], "NOERROR | allow yes rule");
        static const unsigned not[] = { 255, 251, 252, 253, 254, 10, 41, 0, 128, 249 };
        for (size_t i = 0; i < ARRAY_SIZE(not); i++)
                expect_name(f, "a.test", not[i], "NOTIMPL | deny yes dns_type");
        assert_int_equal(dns_names_count(f->names), 2);
}

static void test_denied(void **state) {
        struct fixture *f = *state;
        static const unsigned types[] = { 1, 28, 16, 255, 10, 65 };
        for (size_t i = 0; i < ARRAY_SIZE(types); i++) {
                expect_name(f, "c2VjcmV0.evil.test", types[i], "REFUSED | deny default no_rule");
                expect_name(f, "bad.a.test", types[i], "REFUSED | deny no rule");
        }
        expect_name(f, "evila.test", 1, "REFUSED | deny default no_rule");
        expect_name(f, "a.test.evil", 1, "REFUSED | deny default no_rule");
        expect_name(f, "test", 1, "REFUSED | deny default no_rule");
        expect_name(f, "metadata.google.internal", 1, "REFUSED | deny default no_rule");
        expect_name(f, "", 1, "REFUSED | deny default bad_name");
        expect_name(f, "", 2, "REFUSED | deny default bad_name");
        /* Services: announced nowhere; not a refusal below an allowed name. */
        expect_name(f, "_http._tcp.evil.test", 33, "REFUSED | deny default no_rule");
        expect_name(f, "_tcp", 33, "REFUSED | deny default no_rule");
        use_policy(f, "{'rules':[{'action':'allow','name':'yes','hosts':['a.test']}]}");
        expect_name(f, "_http._tcp.a.test", 33, "NXDOMAIN | deny yes dns_type");
        use_policy(f, "{}");
        expect_name(f, "a.test", 1, "REFUSED | deny default no_policy");
        assert_int_equal(dns_names_count(f->names), 0);
}

/* XD12. */
static void test_names(void **state) {
        struct fixture *f = *state;
        expect_name(f, "A.TesT", 1, "NOERROR A.TesT. A 198.18.1.0 | allow yes rule");
        expect_name(f, "a.test", 1, "NOERROR a.test. A 198.18.1.0 | allow yes rule");
        expect_name(f, "x_y.a.test", 1, "NOERROR x_y.a.test. A 198.18.1.1 | allow yes rule");
        static const char *const bad[] = { "-x.a.test", "x y.a.test", "x\xc3\xbc.a.test", "\xef\xbd\x81.test", "127.0.0.1", "2852039166",
                                           "0xa9fea9fe", "x*.a.test", "*.a.test", "x\\.a.test", "x\x01.a.test" };
        for (size_t i = 0; i < ARRAY_SIZE(bad); i++)
                expect_name(f, bad[i], 1, "REFUSED | deny default bad_name");
        /* A dot or NUL inside a label. */
        struct query q = ask("xx.a.test", 1);
        q.d[14] = '.';
        expect(f, &q, "dot in label", "REFUSED | deny default bad_name");
        q.d[14] = 0;
        expect(f, &q, "NUL in label", "REFUSED | deny default bad_name");
        /* 0x20: the question comes back as it was. */
        uint8_t out[DNS_ANSWER_MAX];
        q = ask("wWw.A.tEsT", 1);
        struct dns_result r = send_query(f, &q, out);
        assert_memory_equal(out + 12, q.d + 12, q.n - 12);
        assert_string_equal(r.audit.host, "www.a.test");
        assert_string_equal(r.audit.address, "198.18.1.2");
        assert_int_equal(r.audit.qtype, 1);
        assert_int_equal(r.audit.kind, AUDIT_DNS);
        assert_int_equal(r.audit.bytes_out, q.n);
        assert_int_equal(r.audit.bytes_in, r.n);
        /* Shown for the record: printable, bounded. */
        q = ask("\x1b[31m.evil", 1);
        r = send_query(f, &q, out);
        assert_string_equal(r.audit.host, "?[31m.evil.");
}

static void test_long_names(void **state) {
        struct fixture *f = *state;
        char name[300];
        uint8_t out[DNS_ANSWER_MAX];
        use_policy(f, "{'rules':[{'action':'allow','name':'a-rule-whose-name-is-as-long-as-a-name-of-a-rule-may-poss','hosts':['*']}]}");
        /* 253 bytes as text, 255 on the wire. */
        memset(name, 'x', sizeof name);
        for (size_t i = 63; i < 253; i += 64)
                name[i] = '.';
        name[253] = '\0';
        struct query q = ask_edns(name, 1);
        struct dns_result r = send_query(f, &q, out);
        assert_true(r.audit.allow);
        q = ask_edns(name, 255);
        r = send_query(f, &q, out);
        assert_int_equal(r.audit.status, 4);
        /* One more: the wire form has 256. */
        name[253] = 'x';
        name[254] = '\0';
        q = ask(name, 1);
        expect(f, &q, "256", "FORMERR | deny default dns_malformed");
}

static void test_reverse(void **state) {
        struct fixture *f = *state;
        expect_name(f, "a.test", 1, "NOERROR a.test. A 198.18.1.0 | allow yes rule");
        expect_name(f, "0.1.18.198.in-addr.arpa", 12, "NOERROR 0.1.18.198.in-addr.arpa. PTR a.test. | allow yes rule");
        expect_name(f, "0.1.18.198.IN-ADDR.ARPA", 12, "NOERROR 0.1.18.198.IN-ADDR.ARPA. PTR a.test. | allow yes rule");
        static const char *const none[] = { "1.1.18.198.in-addr.arpa", "8.8.8.8.in-addr.arpa", "1.18.198.in-addr.arpa", "x.1.18.198.in-addr.arpa",
                                            "0.0.1.18.198.in-addr.arpa", "0.1.18.198.in-addr.arpa.in-addr.arpa", "999.1.18.198.in-addr.arpa",
                                            "1.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.8.e.f.ip6.arpa" };
        for (size_t i = 0; i < ARRAY_SIZE(none); i++)
                expect_name(f, none[i], 12, "NXDOMAIN | deny default no_rule");
        expect_name(f, "0.1.18.198.in-addr.arpa", 1, "NXDOMAIN | deny default no_rule");
        /* Not allowed any more. */
        use_policy(f, "{'rules':[{'action':'allow','hosts':['b.test']}]}");
        expect_name(f, "0.1.18.198.in-addr.arpa", 12, "NXDOMAIN | deny default no_rule");
}

/* XD11. */
static void test_malformed(void **state) {
        struct fixture *f = *state;
        struct query q;
        static const char formerr[] = "FORMERR | deny default dns_malformed";
        for (size_t n = 0; n < 12; n++) {
                q = ask("a.test", 1);
                q.n = n;
                expect(f, &q, "short", "dropped | deny default rule quiet");
        }
        q = ask("a.test", 1);
        q.d[2] |= 0x80;
        expect(f, &q, "an answer", "dropped | deny default rule quiet");
        struct query whole = ask_edns("a.test", 1);
        for (size_t n = 12; n < whole.n; n++) {
                q = whole;
                q.n = n;
                expect(f, &q, "cut", formerr);
                f->now_ms += 1000;
        }
        static const struct {
                size_t at;
                uint8_t value;
        } counts[] = { { 5, 0 }, { 5, 2 }, { 7, 1 }, { 9, 1 }, { 11, 1 }, { 11, 2 }, { 4, 1 }, { 10, 255 } };
        for (size_t i = 0; i < ARRAY_SIZE(counts); i++) {
                q = ask("a.test", 1);
                q.d[counts[i].at] = counts[i].value;
                expect(f, &q, "counts", formerr);
                f->now_ms += 1000;
        }
        q = ask("a.test", 1);
        q.n++;
        expect(f, &q, "trailing byte", formerr);
        f->now_ms += 1000;
        q = ask("a.test", 1);
        q.d[2] |= 2;
        expect(f, &q, "truncated", formerr);
        /* Compression: to itself, forward, to the header, reserved label kinds. */
        static const unsigned pointers[] = { 0xc00c, 0xc00e, 0xc000, 0xffff, 0x4001, 0x8001 };
        for (size_t i = 0; i < ARRAY_SIZE(pointers); i++) {
                f->now_ms += 1000;
                header(&q, 0x0100, 1, 0);
                put16(&q, pointers[i]);
                q.d[q.n++] = 0;
                put16(&q, 1);
                put16(&q, 1);
                expect(f, &q, "pointer", formerr);
                header(&q, 0x0100, 1, 0);
                q.d[q.n++] = 1;
                q.d[q.n++] = 'a';
                put16(&q, pointers[i]);
                put16(&q, 1);
                put16(&q, 1);
                expect(f, &q, "pointer", "FORMERR | deny default dns_malformed quiet");
        }
        f->now_ms += 1000;
        q = ask("a.test", 1);
        q.n = DNS_QUERY_MAX + 1;
        expect(f, &q, "oversize", formerr);
        /* Floods of junk get one record a second. */
        expect(f, &q, "oversize", "FORMERR | deny default dns_malformed quiet");
        for (unsigned opcode = 1; opcode < 16; opcode++) {
                f->now_ms += 1000;
                q = ask("a.test", 1);
                q.d[2] = (uint8_t) (opcode << 3);
                expect(f, &q, "opcode", "NOTIMPL | deny default dns_malformed");
        }
        static const unsigned classes[] = { 0, 3, 4, 254, 255 };
        for (size_t i = 0; i < ARRAY_SIZE(classes); i++) {
                q = ask("a.test", 1);
                q.d[q.n - 1] = (uint8_t) classes[i];
                expect(f, &q, "class", "REFUSED | deny default dns_type");
        }
        assert_int_equal(dns_names_count(f->names), 0);
}

static void test_edns(void **state) {
        struct fixture *f = *state;
        uint8_t out[DNS_ANSWER_MAX];
        struct query q = ask_edns("a.test", 1);
        expect(f, &q, "edns", "NOERROR a.test. A 198.18.1.0 | allow yes rule");
        q = ask_edns("evil.test", 1);
        expect(f, &q, "edns", "REFUSED | deny default no_rule");
        /* The refusal says why. */
        struct dns_result r = send_query(f, &q, out);
        static const char text[] = "cspace rule default: no rule allows this host";
        assert_non_null(memmem(out, r.n, text, strlen(text)));
        ldns_pkt *pkt = NULL;
        assert_int_equal(ldns_wire2pkt(&pkt, out, r.n), LDNS_STATUS_OK);
        assert_int_equal(ldns_pkt_edns_udp_size(pkt), DNS_ANSWER_MAX);
        ldns_edns_option_list *options = ldns_pkt_edns_get_option_list(pkt);
        assert_int_equal(ldns_edns_option_list_get_count(options), 1);
        assert_int_equal(ldns_edns_get_code(ldns_edns_option_list_get_option(options, 0)), LDNS_EDNS_EDE);
        ldns_pkt_free(pkt);
        /* Nothing of it for those who do not speak EDNS. */
        q = ask("evil.test", 1);
        r = send_query(f, &q, out);
        assert_null(memmem(out, r.n, "cspace", 6));
        assert_int_equal(r.n, q.n);
        /* Another version. */
        q = ask("a.test", 1);
        q.d[11] = 1;
        put_opt(&q, 1 << 8, 4096);
        q.d[q.n - 5] = 1;
        r = send_query(f, &q, out);
        assert_int_equal(r.audit.status, 16);
        pkt = NULL;
        assert_int_equal(ldns_wire2pkt(&pkt, out, r.n), LDNS_STATUS_OK);
        assert_int_equal(ldns_pkt_edns_extended_rcode(pkt), 1);
        ldns_pkt_free(pkt);
        /* Options: skipped when whole. */
        q = ask("a.test", 1);
        q.d[11] = 1;
        put_opt(&q, 0, 512);
        q.d[q.n - 1] = 6;
        put16(&q, 10);
        put16(&q, 2);
        put16(&q, 0xabcd);
        expect(f, &q, "option", "NOERROR a.test. A 198.18.1.0 | allow yes rule");
        q.d[q.n - 3] = 3;
        expect(f, &q, "option", "FORMERR | deny default dns_malformed");
        /* An additional record that is not OPT. */
        q = ask_edns("a.test", 1);
        q.d[q.n - 9] = 1;
        expect(f, &q, "additional", "FORMERR | deny default dns_malformed quiet");
}

/* XD16. */
static void test_rate(void **state) {
        struct fixture *f = *state;
        uint8_t out[DNS_ANSWER_MAX];
        struct query q = ask("a.test", 1);
        unsigned answered = 0, records = 0;
        for (unsigned i = 0; i < 5000; i++) {
                struct dns_result r = send_query(f, &q, out);
                answered += r.audit.allow ? 1 : 0;
                records += r.record && !r.audit.allow ? 1 : 0;
                assert_true(r.audit.allow || r.audit.reason == REASON_LIMIT_DNS);
        }
        assert_int_equal(answered, DNS_NAME_BURST);
        assert_int_equal(records, 1);
        /* Over all names; another name has its own share. */
        f->now_ms += 60000;
        unsigned total = 0;
        for (unsigned i = 0; i < 5000; i++) {
                char name[32];
                snprintf(name, sizeof name, "n%u.a.test", i % 50);
                q = ask(name, 1);
                total += send_query(f, &q, out).audit.allow ? 1 : 0;
        }
        assert_int_equal(total, DNS_BURST);
        /* It comes back with time, and only with time. */
        f->now_ms += 1000;
        total = 0;
        for (unsigned i = 0; i < 5000; i++) {
                char name[32];
                snprintf(name, sizeof name, "n%u.a.test", i % 50);
                q = ask(name, 1);
                total += send_query(f, &q, out).audit.allow ? 1 : 0;
        }
        assert_int_equal(total, DNS_RATE);
        f->now_ms -= 500;
        assert_false(send_query(f, &q, out).audit.allow);
}

static void test_name_limits(void **state) {
        struct fixture *f = *state;
        use_policy(f, "{'limits':{'names':5},'rules':[{'action':'allow','name':'wild','hosts':['*.a.test'],'limits':{'names':2}},"
                      "{'action':'allow','name':'all','hosts':['*']}]}");
        expect_name(f, "b.test", 1, "NOERROR b.test. A 198.18.1.0 | allow all rule");
        expect_name(f, "1.a.test", 1, "NOERROR 1.a.test. A 198.18.1.1 | allow wild rule");
        expect_name(f, "2.a.test", 1, "NOERROR 2.a.test. A 198.18.1.2 | allow wild rule");
        expect_name(f, "3.a.test", 1, "REFUSED | deny wild limit_names");
        expect_name(f, "3.a.test", 28, "NOERROR | allow wild rule");
        expect_name(f, "1.a.test", 1, "NOERROR 1.a.test. A 198.18.1.1 | allow wild rule");
        expect_name(f, "c.test", 1, "NOERROR c.test. A 198.18.1.3 | allow all rule");
        expect_name(f, "d.test", 1, "NOERROR d.test. A 198.18.1.4 | allow all rule");
        expect_name(f, "e.test", 1, "REFUSED | deny all limit_names");
        /* Another policy, other counts. */
        use_policy(f, "{'rules':[{'action':'allow','name':'wild','hosts':['*.a.test'],'limits':{'names':3}}]}");
        expect_name(f, "3.a.test", 1, "NOERROR 3.a.test. A 198.18.1.5 | allow wild rule");
        expect_name(f, "4.a.test", 1, "REFUSED | deny wild limit_names");
}

static void test_table_full(void **state) {
        struct fixture *f = *state;
        for (unsigned i = 0; i < 100; i++) {
                struct in_addr a;
                char name[32];
                snprintf(name, sizeof name, "n%u.a.test", i);
                assert_int_equal(dns_names_get(f->names, name, &a, NULL), 0);
                dns_names_hold(f->names, a);
        }
        expect_name(f, "a.test", 1, "REFUSED | deny yes limit_names");
        expect_name(f, "n7.a.test", 1, "NOERROR n7.a.test. A 198.18.1.7 | allow yes rule");
}

/* Whatever room there is: whole or nothing, and not a byte beyond. */
static void test_room(void **state) {
        static const struct dns_reply replies[] = {
                { .rcode = DNS_NOERROR, .has_addr = true },
                { .rcode = DNS_NOERROR, .ptr = "a-name.of.some.length.test" },
                { .rcode = DNS_REFUSED, .rule = "a-rule", .why = "a reason" },
                { .rcode = DNS_BADVERS },
        };
        struct query q = ask_edns("a.test", 1);
        struct dns_query read;
        (void) state;
        assert_int_equal(dns_query_read(q.d, q.n, &read), 0);
        for (size_t i = 0; i < ARRAY_SIZE(replies); i++) {
                uint8_t whole[DNS_ANSWER_MAX];
                size_t n = dns_reply_write(&read, &replies[i], whole, sizeof whole);
                assert_true(n > DNS_HEADER_SIZE);
                for (size_t cap = 0; cap <= n + 1; cap++) {
                        uint8_t *out = malloc(cap + 1);
                        size_t got = dns_reply_write(&read, &replies[i], out, cap);
                        assert_int_equal(got, cap < n ? 0 : n);
                        assert_memory_equal(out, whole, got);
                        free(out);
                }
        }
}

/* XD17. */
static void test_tcp(void **state) {
        _cleanup_buf_ struct buf in = BUF_INIT(DNS_TCP_BUFFER), out = { 0 };
        struct fixture *f = *state;
        const uint8_t *msg;
        size_t n;
        for (unsigned i = 0; i < 3; i++) {
                struct query q = ask(i == 1 ? "evil.test" : "a.test", 1);
                q.d[1] = (uint8_t) i;
                const uint8_t len[2] = { 0, (uint8_t) q.n };
                assert_int_equal(dns_tcp_next(&in, &msg, &n), 0);
                buf_append(&in, len, 1);
                assert_int_equal(dns_tcp_next(&in, &msg, &n), 0);
                buf_append(&in, len + 1, 1);
                buf_append(&in, q.d, q.n - 1);
                assert_int_equal(dns_tcp_next(&in, &msg, &n), 0);
                buf_append(&in, q.d + q.n - 1, 1);
                /* The next one is there already. */
                buf_append(&in, len, 1);
                assert_int_equal(dns_tcp_next(&in, &msg, &n), 1);
                assert_int_equal(n, q.n);
                uint8_t answer[DNS_ANSWER_MAX];
                struct dns_result r;
                dns_server_answer(f->server, f->policy, msg, n, DNS_TCP, f->now_ms, 0, answer, &r);
                assert_int_equal(answer[1], i);
                assert_int_equal(r.audit.allow, i != 1);
                assert_int_equal(r.audit.protocol, POLICY_TCP);
                assert_int_equal(dns_tcp_put(&out, answer, r.n), 0);
                dns_tcp_consume(&in);
                assert_int_equal(in.len, 1);
                buf_clear(&in);
        }
        assert_int_equal(dns_tcp_next(&out, &msg, &n), 1);
        assert_int_equal(dns_tcp_put(&out, msg, 70000), -EMSGSIZE);
        buf_append(&in, "\xff\xff", 2);
        assert_int_equal(dns_tcp_next(&in, &msg, &n), -EMSGSIZE);
        buf_clear(&in);
        buf_append(&in, "\0\0", 2);
        assert_int_equal(dns_tcp_next(&in, &msg, &n), 1);
        assert_int_equal(n, 0);
}

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test_setup_teardown(test_types, setup, teardown),
                cmocka_unit_test_setup_teardown(test_denied, setup, teardown),
                cmocka_unit_test_setup_teardown(test_names, setup, teardown),
                cmocka_unit_test_setup_teardown(test_long_names, setup, teardown),
                cmocka_unit_test_setup_teardown(test_reverse, setup, teardown),
                cmocka_unit_test_setup_teardown(test_malformed, setup, teardown),
                cmocka_unit_test_setup_teardown(test_edns, setup, teardown),
                cmocka_unit_test_setup_teardown(test_rate, setup, teardown),
                cmocka_unit_test_setup_teardown(test_name_limits, setup, teardown),
                cmocka_unit_test_setup_teardown(test_table_full, setup, teardown),
                cmocka_unit_test(test_room),
                cmocka_unit_test_setup_teardown(test_tcp, setup, teardown),
        };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
