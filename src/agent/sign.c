/* SPDX-License-Identifier: Apache-2.0 */

/* The low-level SHA-256 of libcrypto: EVP would bring a third of the library into the binary. */
#define OPENSSL_SUPPRESS_DEPRECATED
#include "sign.h"

#include <openssl/sha.h>
#include <string.h>

#include "base/str.h"

static void add(SHA256_CTX *c, const char *s) {
        SHA256_Update(c, s, strlen(s));
}

void sign_files(const char *path, const char *operation, const char *user, const char *token,
                const char *expiration, char out[SIGNATURE_SIZE]) {
        uint8_t digest[SHA256_DIGEST_LENGTH];
        SHA256_CTX c;
        SHA256_Init(&c);
        const char *parts[] = { path, ":", operation, ":", user, ":", token };
        for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++)
                add(&c, parts[i]);
        if (expiration) {
                add(&c, ":");
                add(&c, expiration);
        }
        SHA256_Final(digest, &c);
        char text[48];
        base64_encode(digest, sizeof digest, text);
        text[strcspn(text, "=")] = '\0';
        memcpy(out, "v1_", 3);
        (void) str_copy(out + 3, SIGNATURE_SIZE - 3, text);
}

bool sign_check(const char *signature, const char *path, const char *operation, const char *user,
                const char *token, const char *expiration) {
        char want[SIGNATURE_SIZE];
        sign_files(path, operation, user, token, expiration, want);
        size_t n = strlen(want);
        return strlen(signature) == n && mem_eq_ct(signature, want, n);
}
