/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * Java's key stores ("JKS"), as far as one more trusted certificate is to be put into one:
 *
 *   u32 0xfeedfeed, u32 version (1 or 2), u32 entries, entries ..., 20 bytes of digest
 *   entry: u32 2, utf alias, u64 milliseconds, utf "X.509", u32 length, DER       (utf: u16 length, bytes)
 *
 * The digest is SHA-1 of the password (each character two bytes), "Mighty Aphrodite" and everything before it. What is hashed of
 * the store is hashed once, so that adding costs no more than the entry.
 */

#include <openssl/sha.h>
#include <stddef.h>
#include <stdint.h>

#define JKS_DIGEST_BYTES 20
#define JKS_COUNT_AT 8
#define JKS_ENTRY_MAX (8192 + 64)

struct jks {
        size_t body;         /* bytes before the digest */
        uint32_t count;      /* of entries, as it was */
        SHA_CTX plain, more; /* hashed so far: as it was, and with one entry more in its head */
};

/* 0 or -EINVAL: not such a store. */
int jks_read(const uint8_t *store, size_t n, struct jks *ret);
/* What comes behind the body: of the certificate (DER; n 0: none) an entry, and the digest. Returns the length, or -E2BIG. */
long jks_tail(const struct jks *j, const uint8_t *der, size_t n, uint8_t out[JKS_ENTRY_MAX + JKS_DIGEST_BYTES]);
