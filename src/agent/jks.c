/* SPDX-License-Identifier: Apache-2.0 */

/* The low-level SHA-1 of libcrypto, for the reason that sign.c has. */
#define OPENSSL_SUPPRESS_DEPRECATED
#include "jks.h"

#include <errno.h>
#include <string.h>

#define MAGIC 0xfeedfeedu
#define HEAD 12
#define PASSWORD "changeit" /* everybody's */
#define SALT "Mighty Aphrodite"
#define TRUSTED 2

static uint8_t *put_u16(uint8_t *p, size_t v) {
        *p++ = (uint8_t) (v >> 8);
        *p++ = (uint8_t) v;
        return p;
}

static uint8_t *put_u32(uint8_t *p, size_t v) {
        return put_u16(put_u16(p, v >> 16 & 0xffff), v & 0xffff);
}

static uint8_t *put_utf(uint8_t *p, const char *s) {
        size_t n = strlen(s);
        memcpy(put_u16(p, n), s, n);
        return p + 2 + n;
}

static uint32_t get_u32(const uint8_t *p) {
        return (uint32_t) p[0] << 24 | (uint32_t) p[1] << 16 | (uint32_t) p[2] << 8 | p[3];
}

static void start(SHA_CTX *c, const uint8_t *store, uint32_t count, size_t body) {
        uint8_t wide[2] = { 0 }, number[4];
        SHA1_Init(c);
        for (const char *s = PASSWORD; *s; s++) {
                wide[1] = (uint8_t) *s;
                SHA1_Update(c, wide, sizeof wide);
        }
        SHA1_Update(c, SALT, sizeof SALT - 1);
        (void) put_u32(number, count);
        SHA1_Update(c, store, JKS_COUNT_AT);
        SHA1_Update(c, number, sizeof number);
        SHA1_Update(c, store + HEAD, body - HEAD);
}

int jks_read(const uint8_t *store, size_t n, struct jks *ret) {
        if (n < HEAD + JKS_DIGEST_BYTES || get_u32(store) != MAGIC || get_u32(store + 4) < 1 || get_u32(store + 4) > 2)
                return -EINVAL;
        ret->body = n - JKS_DIGEST_BYTES;
        ret->count = get_u32(store + JKS_COUNT_AT);
        if (ret->count > 100000)
                return -EINVAL;
        start(&ret->plain, store, ret->count, ret->body);
        start(&ret->more, store, ret->count + 1, ret->body);
        return 0;
}

long jks_tail(const struct jks *j, const uint8_t *der, size_t n, uint8_t out[JKS_ENTRY_MAX + JKS_DIGEST_BYTES]) {
        SHA_CTX c = n > 0 ? j->more : j->plain;
        uint8_t *p = out;
        if (n > JKS_ENTRY_MAX - 64)
                return -E2BIG;
        if (n > 0) {
                p = put_utf(put_u32(p, TRUSTED), "cspace");
                p = put_u32(put_u32(p, 0), 0); /* since when: nobody asks */
                p = put_u32(put_utf(p, "X.509"), n);
                memcpy(p, der, n);
                p += n;
        }
        SHA1_Update(&c, out, (size_t) (p - out));
        SHA1_Final(p, &c);
        return p + JKS_DIGEST_BYTES - out;
}
