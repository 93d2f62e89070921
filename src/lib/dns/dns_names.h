/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * The synthetic addresses of a sandbox: each name that it was allowed to ask for stands for one address of
 * 198.18.0.0/15 (RFC 2544: never routed), so that a connection's destination says which name is meant and
 * the guest never chooses a real address.
 *
 * An address stays with its name for the sandbox's life, over restart and fork (dns_names_save()), as long as
 * the table has room. When it is full the name that was not used for the longest time gives way, but
 * none with a live user; its address is not given to another name before the whole range has been gone
 * round, so that a guest with an old answer meets "unknown", not a stranger.
 */

#include <netinet/in.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"
#include "base/json.h"

#define DNS_NET 0xc6120000u        /* 198.18.0.0, host byte order */
#define DNS_NET_MASK 0xfffe0000u   /* /15 */
#define DNS_NET_FIRST 256u         /* the first /24 is left to the gateway's own use */
#define DNS_NET_SIZE 131072u
#define DNS_NAMES_MAX 8192         /* names at once */

struct dns_names;

/* seed: random, for the hash (a guest chooses the names). max: at most DNS_NAMES_MAX. */
int dns_names_new(uint64_t seed, size_t max, struct dns_names **ret);
void dns_names_free(struct dns_names *n);
void dns_names_freep(struct dns_names **n);

/* The address of a canonical name (host_parse_name()), made when there is none. -ENOSPC: all names are
 * in use. ret_new may be NULL. */
int dns_names_get(struct dns_names *n, const char *name, struct in_addr *ret, bool *ret_new);
/* Without making one. */
bool dns_names_find(const struct dns_names *n, const char *name, struct in_addr *ret);
/* The name behind an address, or NULL; valid until the table next changes. Counts as use. */
const char *dns_names_lookup(struct dns_names *n, struct in_addr a);
bool dns_names_in_range(struct in_addr a); /* whether it is a synthetic one at all */

/* A live connection holds its name. false: not there. */
bool dns_names_hold(struct dns_names *n, struct in_addr a);
void dns_names_release(struct dns_names *n, struct in_addr a);

size_t dns_names_count(const struct dns_names *n);
/* Changes whenever dns_names_save() would say something else about which name has which address. */
uint64_t dns_names_version(const struct dns_names *n);
/* Calls f for each name, longest unused first, until it returns false. */
void dns_names_each(const struct dns_names *n, bool (*f)(void *arg, const char *name), void *arg);

/* {"version":1,"next":N,"names":[["a.test","198.18.1.0"],...]} */
int dns_names_save(const struct dns_names *n, json_t **ret, struct error *err);
/* Into an empty table; checked as what it is, input. On failure the table is empty. */
int dns_names_restore(struct dns_names *n, const json_t *j, struct error *err);
