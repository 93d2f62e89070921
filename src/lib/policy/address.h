/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * Which addresses may be dialled. A name is judged by rules; what it resolves to is judged here, at dial
 * time, on the very address that connect() gets. Everything that is not plainly the public internet is
 * refused: by the registries of special addresses (RFC 6890), by the well-known metadata addresses, and
 * by the ranges of this host that the gateway's starter knows (its own addresses, LANs, control plane).
 */

#include <netinet/in.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"

#define ADDRESS_SET_MAX 256  /* ranges in a struct address_set */
#define ADDRESS_OPEN_MAX 64  /* and those in it that the operator opened */
#define ADDRESS_TEXT_SIZE INET6_ADDRSTRLEN

/* IPv4 is held as ::ffff:a.b.c.d, so there is one form to judge. */
struct address {
        struct in6_addr in6;
};

struct address address_of_v4(struct in_addr a);
struct address address_of_v6(const struct in6_addr *a); /* v4-mapped, v4-compatible and NAT64 become what they carry */
int address_of_sockaddr(const struct sockaddr *sa, socklen_t n, struct address *ret); /* 0 or -EAFNOSUPPORT */
int address_parse(const char *s, struct address *ret);  /* strict text of either family; 0 or -EINVAL */
bool address_is_v4(const struct address *a);
void address_text(const struct address *a, char out[ADDRESS_TEXT_SIZE]);

enum address_class {
        ADDRESS_PUBLIC = 0,
        ADDRESS_UNSPECIFIED,  /* 0/8, :: */
        ADDRESS_LOOPBACK,
        ADDRESS_LINK_LOCAL,
        ADDRESS_METADATA,     /* cloud metadata services, in whatever range they lie */
        ADDRESS_PRIVATE,      /* RFC 1918, CGNAT, unique local */
        ADDRESS_RESERVED,     /* documentation, benchmarking, protocol assignments, 240/4, tunnels, not 2000::/3 */
        ADDRESS_MULTICAST,
        ADDRESS_BROADCAST,
        ADDRESS_HOST,         /* in the address_set: this host's own */
        N_ADDRESS_CLASSES
};

enum address_class address_classify(const struct address *a);
const char *address_class_name(enum address_class c); /* "public", "link_local", ...; stable */

/* IPv4 range. */
struct cidr {
        uint32_t net, mask; /* host byte order, net already masked */
};
int cidr_parse(const char *s, struct cidr *ret); /* "a.b.c.d/n" or "a.b.c.d"; bits below the prefix must be 0 */
bool cidr_has(const struct cidr *c, struct in_addr a);
void cidr_text(const struct cidr *c, char out[INET_ADDRSTRLEN + 3]);
/* The IPv4 ranges that are not public, the narrower of two first; *pos begins with 0. False: no more. */
bool address_special_next(size_t *pos, struct cidr *ret, enum address_class *ret_class);

/* Ranges of both families that this host has an opinion of: its own, which are never dialled, and private or reserved
 * ones that its operator has opened, so that they count as public. */
struct address_set;
int address_set_new(struct address_set **ret);
void address_set_free(struct address_set *s);
void address_set_freep(struct address_set **s);
/* "10.1.0.0/16", "203.0.113.7", "2001:db8::/32". */
int address_set_add(struct address_set *s, const char *range, struct error *err);
int address_set_open(struct address_set *s, const char *range, struct error *err);
bool address_set_is_open(const struct address_set *s, const struct address *a);
bool address_set_has(const struct address_set *s, const struct address *a); /* NULL has none */
