/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * What a destination is called: a DNS name in its one canonical form, or an IPv4 address. Every name
 * that the gateway judges (DNS question, SNI, Host, :authority, a rule's pattern) comes through here, so
 * that two spellings of one name cannot get two verdicts.
 *
 * Canonical: lower case ASCII, no trailing dot, labels of 1 to 63 of [a-z0-9_-] that neither begin nor
 * end with "-", at most 253 bytes. Anything else (NUL, escapes, UTF-8, full-width dots, circled digits)
 * is refused, not repaired: names are IDNA-encoded ("xn--...") by who sends them. A name whose last
 * label is a number in any notation ("2852039166", "0xa9fea9fe", "0251.0376.1.1") is what some
 * resolvers take for an address; it is refused. An address is four decimal numbers without
 * leading zeros, nothing else.
 */

#include <netinet/in.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define HOST_NAME_MAX_LEN 253
#define HOST_SIZE (HOST_NAME_MAX_LEN + 1)
#define HOST_LABEL_MAX 63

enum host_kind { HOST_NONE, HOST_NAME, HOST_IPV4 };

struct host {
        enum host_kind kind;
        char name[HOST_SIZE];  /* HOST_NAME; for HOST_IPV4 its text */
        struct in_addr addr;   /* HOST_IPV4, network byte order */
};

/* Name or IPv4 address: 0 or -EINVAL (*why, which may be NULL, says what is wrong). "[...]" (IPv6) is refused. */
int host_parse(const char *s, size_t n, struct host *ret, const char **why);
/* Only a name. A single label ("localhost") is a name. */
int host_parse_name(const char *s, size_t n, char ret[HOST_SIZE], const char **why);
void host_of_addr(struct in_addr a, struct host *ret);

/* "name", "name:port", "a.b.c.d", "a.b.c.d:port" as in Host, :authority and CONNECT. No user part, no
 * empty or zero port. */
int host_parse_authority(const char *s, size_t n, uint16_t default_port, struct host *ret, uint16_t *ret_port,
                         const char **why);

bool host_eq(const struct host *a, const struct host *b);
/* Whether name lies strictly below suffix: "a.b.c" below "b.c"; not "b.c" itself, not "ab.c". */
bool host_name_below(const char *name, const char *suffix);
