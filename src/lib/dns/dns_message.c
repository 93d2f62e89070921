/* SPDX-License-Identifier: Apache-2.0 */
#include "dns/dns_message.h"

#include <errno.h>
#include <ldns/ldns.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "dns/dns_server.h"

#define LABEL_MAX 63
#define NAME_WIRE_MAX 255
#define OPT_FIXED 11      /* root name, type, class, ttl, length */
#define EDE_OPTION 15
#define EDE_BLOCKED 15
#define EDE_TEXT_MAX 160  /* an answer stays below the 512 bytes that any resolver takes */
#define UDP_ALWAYS 512

static uint16_t u16(const uint8_t *p) {
        return (uint16_t) (p[0] << 8 | p[1]);
}

bool dns_is_answer(const uint8_t *header) {
        return header[2] >> 7;
}

static unsigned opcode(const uint8_t *header) {
        return header[2] >> 3 & 15;
}

/* Where the question ends: labels, type, class. 0: malformed. */
static size_t question_end(const uint8_t *d, size_t n) {
        size_t at = DNS_HEADER_SIZE;

        while (at < n && d[at] != 0) {
                if (d[at] > LABEL_MAX)
                        return 0;
                at += 1u + d[at];
        }
        at += 1;
        return at - DNS_HEADER_SIZE > NAME_WIRE_MAX || at + 4 > n ? 0 : at + 4;
}

/* The one additional record that a query may have. */
static int read_opt(const uint8_t *d, size_t n, struct dns_query *q) {
        if (n < OPT_FIXED || d[0] != 0 || u16(d + 1) != DNS_TYPE_OPT || n != OPT_FIXED + (size_t) u16(d + 9))
                return -EBADMSG;
        q->edns = true;
        q->edns_version = d[6];
        /* Options are not used, but they must be whole. */
        for (size_t at = OPT_FIXED; at < n;) {
                if (n - at < 4 || n - at - 4 < u16(d + at + 2))
                        return -EBADMSG;
                at += 4u + u16(d + at + 2);
        }
        return 0;
}

/* Labels joined by dots. A dot or NUL within a label has no canonical form. */
static void read_name(const uint8_t *d, struct dns_query *q) {
        char text[DNS_SHOWN_SIZE];
        size_t n = 0;
        bool plain = true;

        for (size_t at = DNS_HEADER_SIZE; d[at] != 0; at += 1u + d[at]) {
                for (size_t i = 1; i <= d[at]; i++) {
                        uint8_t c = d[at + i];
                        plain = plain && c != '.' && c != 0;
                        text[n++] = c ? (char) c : '?';
                }
                text[n++] = '.';
        }
        text[n] = '\0';
        memcpy(q->shown, text, n + 1);
        if (!plain || n < 2 || host_parse_name(text, n, q->name, NULL) < 0)
                q->name[0] = '\0';
        if (n == 0)
                strcpy(q->shown, ".");
}

int dns_query_read(const uint8_t *data, size_t n, struct dns_query *ret) {
        struct dns_query q = { .header = data };
        size_t end, pos = DNS_HEADER_SIZE;
        ldns_rr *rr = NULL;

        if (opcode(data) != LDNS_PACKET_QUERY)
                return -EOPNOTSUPP;
        /* One question, no answers, no authority, at most OPT; not truncated. */
        if (n > DNS_QUERY_MAX || u16(data + 4) != 1 || u16(data + 6) != 0 || u16(data + 8) != 0 || u16(data + 10) > 1 ||
            (data[2] & 2))
                return -EBADMSG;
        end = question_end(data, n);
        if (end == 0)
                return -EBADMSG;
        int r = u16(data + 10) ? read_opt(data + end, n - end, &q) : n == end ? 0 : -EBADMSG;
        if (r < 0)
                return r;
        ldns_status st = ldns_wire2rr(&rr, data, end, &pos, LDNS_SECTION_QUESTION);
        if (st != LDNS_STATUS_OK || pos != end) {
                ldns_rr_free(rr);
                return st == LDNS_STATUS_MEM_ERR ? -ENOMEM : -EBADMSG;
        }
        q.question = rr;
        q.type = (uint16_t) ldns_rr_get_type(rr);
        q.class = (uint16_t) ldns_rr_get_class(rr);
        read_name(data, &q);
        *ret = q;
        return 0;
}

void dns_query_done(struct dns_query *q) {
        ldns_rr_free(q->question);
        q->question = NULL;
}

/* --- answers ----------------------------------------------------------------------------- */

static void pkt_freep(ldns_pkt **p) {
        ldns_pkt_free(*p);
}

/* Takes rdf. */
static int push_record(ldns_pkt *pkt, const struct dns_query *q, uint16_t type, ldns_rdf *rdf) {
        ldns_rr *rr = rdf ? ldns_rr_new() : NULL;
        ldns_rdf *owner = rr ? ldns_rdf_clone(ldns_rr_owner(q->question)) : NULL;

        if (!rr || !owner) {
                ldns_rdf_deep_free(rdf);
                ldns_rr_free(rr);
                return -ENOMEM;
        }
        ldns_rr_set_owner(rr, owner);
        ldns_rr_set_type(rr, type);
        ldns_rr_set_class(rr, LDNS_RR_CLASS_IN);
        ldns_rr_set_ttl(rr, DNS_TTL_S);
        if (!ldns_rr_push_rdf(rr, rdf)) {
                ldns_rdf_deep_free(rdf);
                ldns_rr_free(rr);
                return -ENOMEM;
        }
        if (!ldns_pkt_push_rr(pkt, LDNS_SECTION_ANSWER, rr)) {
                ldns_rr_free(rr);
                return -ENOMEM;
        }
        return 0;
}

static ldns_rdf *ptr_rdf(const char *name) {
        char text[HOST_SIZE + 1];

        snprintf(text, sizeof text, "%s.", name);
        return ldns_dname_new_frm_str(text);
}

/* "Blocked", with a sentence that dig and a good resolver library show. */
static int put_refusal(ldns_pkt *pkt, const struct dns_reply *r) {
        uint8_t option[6 + EDE_TEXT_MAX];
        char text[EDE_TEXT_MAX];

        int n = snprintf(text, sizeof text, "cspace rule %s: %s", r->rule, r->why);
        size_t len = n < 0 ? 0 : (size_t) n < sizeof text ? (size_t) n : sizeof text - 1;
        const uint8_t head[6] = { 0, EDE_OPTION, 0, (uint8_t) (len + 2), 0, EDE_BLOCKED };
        memcpy(option, head, sizeof head);
        memcpy(option + sizeof head, text, len);
        ldns_rdf *rdf = ldns_rdf_new_frm_data(LDNS_RDF_TYPE_NONE, sizeof head + len, option);
        if (!rdf)
                return -ENOMEM;
        ldns_pkt_set_edns_data(pkt, rdf);
        return 0;
}

static ldns_pkt *start_reply(const struct dns_query *q, const struct dns_reply *r) {
        _cleanup_(pkt_freep) ldns_pkt *pkt = ldns_pkt_new();
        ldns_rr *question = pkt ? ldns_rr_clone(q->question) : NULL;

        if (!question)
                return NULL;
        if (!ldns_pkt_push_rr(pkt, LDNS_SECTION_QUESTION, question)) {
                ldns_rr_free(question);
                return NULL;
        }
        ldns_pkt_set_id(pkt, u16(q->header));
        ldns_pkt_set_qr(pkt, true);
        ldns_pkt_set_rd(pkt, q->header[2] & 1);
        ldns_pkt_set_ra(pkt, true);
        ldns_pkt_set_rcode(pkt, r->rcode & 15);
        if (q->edns) {
                ldns_pkt_set_edns_udp_size(pkt, DNS_ANSWER_MAX);
                ldns_pkt_set_edns_extended_rcode(pkt, (uint8_t) (r->rcode >> 4));
        }
        return STEAL(pkt);
}

int dns_reply_write(const struct dns_query *q, const struct dns_reply *r, uint8_t *out, size_t cap, size_t *ret_n) {
        _cleanup_(pkt_freep) ldns_pkt *pkt = start_reply(q, r);
        _cleanup_free_ uint8_t *wire = NULL;
        size_t n = 0;
        int e = pkt ? 0 : -ENOMEM;

        if (e == 0 && r->has_addr)
                e = push_record(pkt, q, LDNS_RR_TYPE_A, ldns_rdf_new_frm_data(LDNS_RDF_TYPE_A, 4, &r->addr));
        if (e == 0 && r->ptr)
                e = push_record(pkt, q, LDNS_RR_TYPE_PTR, ptr_rdf(r->ptr));
        if (e == 0 && q->edns && r->why)
                e = put_refusal(pkt, r);
        if (e < 0)
                return e;
        if (ldns_pkt2wire(&wire, pkt, &n) != LDNS_STATUS_OK)
                return -ENOMEM;
        if (n > cap || n > UDP_ALWAYS)
                return -EMSGSIZE;
        memcpy(out, wire, n);
        *ret_n = n;
        return 0;
}

size_t dns_reply_bare(const uint8_t *query_header, enum dns_rcode rcode, uint8_t out[DNS_HEADER_SIZE]) {
        memset(out, 0, DNS_HEADER_SIZE);
        out[0] = query_header[0];
        out[1] = query_header[1];
        out[2] = (uint8_t) (0x80 | (query_header[2] & 0x79)); /* answer; opcode and RD as they were */
        out[3] = (uint8_t) (0x80 | (rcode & 15));             /* RA */
        return DNS_HEADER_SIZE;
}
