/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * Queries and answers of dns_server.c as structs. What is read is the little that an honest stub resolver sends: one
 * question without compression (there is nothing before it to point to, so a pointer there can only be a loop), no
 * other section but one OPT, no trailing bytes. What is written is one of a few fixed shapes. So neither needs
 * memory of its own, and the server answers when there is none.
 */

#include <netinet/in.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "policy/host.h"

#define DNS_HEADER_SIZE 12
#define DNS_SHOWN_SIZE 260

enum { DNS_TYPE_A = 1, DNS_TYPE_NULL = 10, DNS_TYPE_PTR = 12, DNS_TYPE_OPT = 41, DNS_CLASS_IN = 1 };

enum dns_rcode {
        DNS_NOERROR = 0,
        DNS_FORMERR = 1,
        DNS_SERVFAIL = 2,
        DNS_NXDOMAIN = 3,
        DNS_NOTIMP = 4,
        DNS_REFUSED = 5,
        DNS_BADVERS = 16, /* needs EDNS */
};

struct dns_query {
        const uint8_t *data;        /* borrowed */
        size_t question_end;        /* the question is what lies between the header and this */
        uint16_t type, class;
        bool edns;
        uint8_t edns_version;
        char name[HOST_SIZE];       /* canonical, "" if it has no such form */
        char shown[DNS_SHOWN_SIZE]; /* as it came, for the record only; any bytes but NUL */
};

struct dns_reply {
        enum dns_rcode rcode;
        bool has_addr;
        struct in_addr addr;
        const char *ptr;        /* canonical name, or NULL */
        const char *rule, *why; /* of a refusal */
};

bool dns_is_answer(const uint8_t *header); /* QR */

/* n >= DNS_HEADER_SIZE. 0, -EOPNOTSUPP (opcode), -EBADMSG. */
int dns_query_read(const uint8_t *data, size_t n, struct dns_query *ret);

/* Returns the length, 0 when cap is too small. */
size_t dns_reply_write(const struct dns_query *q, const struct dns_reply *r, uint8_t *out, size_t cap);
/* Only a header, for queries that were not read. */
size_t dns_reply_bare(const uint8_t *query_header, enum dns_rcode rcode, uint8_t out[DNS_HEADER_SIZE]);
