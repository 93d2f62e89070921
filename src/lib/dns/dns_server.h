/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * The sandbox's DNS server: bytes of a query in, bytes of an answer and an audit record out. It never asks
 * anyone: an allowed name gets its synthetic address (dns_names.h), and what that really is, is resolved when it
 * is dialled. So nothing that a guest puts into a name leaves the host at this point, and the names that do
 * leave it, at dial time, are allowed ones.
 *
 *   allowed name    A                      the synthetic address
 *                   AAAA, HTTPS, SVCB and other data   NOERROR without records: no IPv6, no hints, no ECH
 *                   _service._proto below it           NXDOMAIN
 *   denied name     any                    REFUSED, with the rule as an extended error (RFC 8914) if EDNS is used
 *   reverse         PTR                    the name behind a synthetic address, else NXDOMAIN
 *   ANY, NULL, AXFR and other questions that are no data, opcodes but QUERY      NOTIMP
 *   class but IN                           REFUSED
 *   more or less than one question, junk, trailing bytes                         FORMERR
 *   shorter than a header, an answer instead of a question                       dropped
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"
#include "dns/dns_names.h"
#include "policy/audit.h"
#include "policy/policy.h"

#define DNS_QUERY_MAX 1232      /* bytes; longer ones are FORMERR */
#define DNS_ANSWER_MAX 1232     /* over UDP, whatever the guest offers */
#define DNS_TTL_S 60
#define DNS_RATE 500            /* queries a second, over all names */
#define DNS_BURST 1000
#define DNS_NAME_RATE 50        /* queries a second for one name */
#define DNS_NAME_BURST 200

struct dns_server;

enum dns_transport { DNS_UDP, DNS_TCP };

struct dns_result {
        size_t n;          /* of the answer; 0: none is sent */
        bool record;       /* audit is to be recorded (false for floods, of which one in a second is) */
        struct audit audit; /* without sandbox */
};

/* names is borrowed. */
int dns_server_new(struct dns_names *names, uint64_t seed, struct dns_server **ret);
void dns_server_free(struct dns_server *s);
void dns_server_freep(struct dns_server **s);

/* now_ms: monotonic; wall_ms: for the record. out holds at least DNS_ANSWER_MAX. The policy may be another at each
 * call. */
void dns_server_answer(struct dns_server *s, const struct policy *p, const uint8_t *query, size_t n,
                       enum dns_transport transport, uint64_t now_ms, int64_t wall_ms, uint8_t *out,
                       struct dns_result *ret);

/* TCP framing (RFC 1035, 4.2.2): append what was read to in (limit DNS_TCP_BUFFER), take messages from it. */
#define DNS_TCP_BUFFER (16u * 1024)
/* 1: *msg, *n borrowed until dns_tcp_consume(); 0: not whole yet; -EMSGSIZE: longer than a query may be, close. */
int dns_tcp_next(const struct buf *in, const uint8_t **msg, size_t *n);
void dns_tcp_consume(struct buf *in);
int dns_tcp_put(struct buf *out, const uint8_t *answer, size_t n);
