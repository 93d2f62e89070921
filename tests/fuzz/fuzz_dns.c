/* SPDX-License-Identifier: Apache-2.0 */

/*
 * The DNS server: the input is a query. Holds: an answer is one, has the query's id, fits into any transport and
 * reads as DNS for libldns, as does each query that was understood, and both agree on the question; only an allowed name ever gets an address or a place in the table; a record is made that can
 * be written and read back.
 */

#include "fuzz.h"

#include <ldns/ldns.h>
#include <strings.h>

#include "dns/dns_server.h"

static const char rules[] = "{\"rules\":[{\"action\":\"deny\",\"hosts\":[\"bad.a.test\"]},"
                            "{\"action\":\"allow\",\"name\":\"yes\",\"hosts\":[\"a.test\",\"*.a.test\"]}]}";

static bool is_allowed(void *arg, const char *name) {
        REQUIRE(policy_dns(arg, name).outcome == POLICY_ALLOW);
        char again[HOST_SIZE];
        REQUIRE(host_parse_name(name, strlen(name), again, NULL) == 0 && strcmp(name, again) == 0);
        return true;
}

static void check_answer(const uint8_t *query, const struct dns_result *r, const uint8_t *out) {
        ldns_pkt *pkt = NULL;

        REQUIRE(r->n <= 512 && r->n >= 12);
        REQUIRE(out[0] == query[0] && out[1] == query[1] && (out[2] & 0x80));
        REQUIRE(ldns_wire2pkt(&pkt, out, r->n) == LDNS_STATUS_OK);
        if (ldns_pkt_ancount(pkt) > 0)
                REQUIRE(r->audit.allow && ldns_pkt_get_rcode(pkt) == LDNS_RCODE_NOERROR);
        ldns_pkt_free(pkt);
}

/* What was read (so not answered with a header alone) is a query for libldns too. */
static void check_query(const uint8_t *query, size_t n, const struct dns_result *r) {
        ldns_pkt *pkt = NULL;

        REQUIRE(ldns_wire2pkt(&pkt, query, n) == LDNS_STATUS_OK);
        REQUIRE(ldns_pkt_qdcount(pkt) == 1 && ldns_pkt_ancount(pkt) == 0 && ldns_pkt_nscount(pkt) == 0);
        REQUIRE(ldns_pkt_get_opcode(pkt) == LDNS_PACKET_QUERY && !ldns_pkt_qr(pkt));
        ldns_rr *question = ldns_rr_list_rr(ldns_pkt_question(pkt), 0);
        REQUIRE(ldns_rr_get_type(question) == r->audit.qtype);
        char *name = ldns_rdf2str(ldns_rr_owner(question));
        if (r->audit.allow)
                REQUIRE(strncasecmp(name, r->audit.host, strlen(r->audit.host)) == 0 && strcmp(name + strlen(r->audit.host), ".") == 0);
        free(name);
        ldns_pkt_free(pkt);
}

static void check_record(const struct audit *a) {
        struct buf line = BUF_INIT(AUDIT_LINE_MAX), text = BUF_INIT(AUDIT_LINE_MAX);
        struct audit back;

        REQUIRE(audit_json(a, &line) == 0 && audit_text(a, &text) == 0);
        REQUIRE(audit_parse((const char *) buf_data(&line), line.len, &back, NULL) == 0);
        REQUIRE(audit_same(a, &back));
        buf_done(&line);
        buf_done(&text);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n) {
        static struct policy *p;
        struct dns_names *names = NULL;
        struct dns_server *s = NULL;
        struct dns_result r;
        uint8_t out[DNS_ANSWER_MAX];

        if (!p)
                REQUIRE(policy_parse(rules, sizeof rules - 1, NULL, &p, NULL) == 0);
        REQUIRE(dns_names_new(1, 4, &names) == 0 && dns_server_new(names, 1, &s) == 0);
        uint8_t *copy = piece_of(data, n);
        dns_server_answer(s, p, copy, n, DNS_UDP, 1000, 1000, out, &r);
        if (r.n > 0)
                check_answer(copy, &r, out);
        if (r.n > 12)
                check_query(copy, n, &r);
        if (r.record)
                check_record(&r.audit);
        dns_names_each(names, is_allowed, p);
        free(copy);
        dns_server_free(s);
        dns_names_free(names);
        return 0;
}
