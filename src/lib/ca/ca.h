/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * The sandbox's certificate authority. Its key is derived from a seed that cspaced keeps with the other
 * secrets, so that a gateway that was started again is the authority that the guest already trusts; it
 * is never written anywhere and the process cannot be dumped. Leaves share one key, are made for a name
 * at its first use, and are kept in a bounded cache. Keys and certificate are made when one of them is wanted: the first thing that a
 * process does with OpenSSL takes milliseconds, and most gateways never see TLS.
 */

#include <openssl/ssl.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"

#define CA_SEED_BYTES 32
#define CA_COMMON_NAME "cspace sandbox CA" /* one for all: the guest's disk has a link named after its hash (agent/trust.h) */
#define CA_LEAVES_MAX 128          /* kept; the least recently used one goes */
#define CA_LEAF_DAYS 90
#define CA_LEAF_RENEW_DAYS 30      /* a kept leaf is made anew when it has this much left */

struct ca;
/* seed has CA_SEED_BYTES. The same seed gives the same certificate, whoever asks. */
int ca_new(const uint8_t *seed, struct ca **ret, struct error *err);
void ca_free(struct ca *ca); /* NULL is fine */

/* The certificate to trust, PEM; borrowed. NULL: it cannot be made. */
const char *ca_pem(struct ca *ca, struct error *err);

/* Makes ssl answer with a certificate for name: a canonical DNS name or an IPv4 address. */
int ca_use_leaf(struct ca *ca, const char *name, SSL *ssl, struct error *err);
size_t ca_leaves(const struct ca *ca);
