/* SPDX-License-Identifier: Apache-2.0 */
#include "ca/ca.h"

#include <arpa/inet.h>
#include <errno.h>
#include <openssl/bn.h>
#include <openssl/core_names.h>
#include <openssl/ec.h>
#include <openssl/err.h>
#include <openssl/kdf.h>
#include <openssl/param_build.h>
#include <openssl/pem.h>
#include <openssl/x509v3.h>
#include <stdlib.h>
#include <string.h>
#include <sys/queue.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/id.h"
#include "base/str.h"
#include "io/stream_tls.h"

#define NAME_MAX_LEN 253
#define COMMON_NAME_MAX 64 /* RFC 5280, ub-common-name */
#define DAY_S 86400
#define BACKDATE_S (2 * DAY_S) /* the guest's clock may lag */
#define SERIAL_BYTES 16

struct leaf {
        TAILQ_ENTRY(leaf) entry;
        X509 *cert;
        int64_t until_s; /* as long as it is used */
        char name[NAME_MAX_LEN + 1];
};
TAILQ_HEAD(leaves, leaf);

struct ca {
        uint8_t seed[CA_SEED_BYTES];
        EVP_PKEY *key, *leaf_key; /* NULL, as cert and pem: not wanted yet */
        X509 *cert;
        char *pem;
        struct leaves leaves; /* most recently used first */
        size_t n;
};

static int fail(struct error *err) {
        return stream_tls_error(err, "certificate authority");
}

/* ---- keys ---------------------------------------------------------------------------------- */

static int derive(const uint8_t *seed, const char *what, uint8_t *out, size_t n) {
        EVP_KDF *kdf = EVP_KDF_fetch(NULL, "HKDF", NULL);
        EVP_KDF_CTX *ctx = kdf ? EVP_KDF_CTX_new(kdf) : NULL;
        OSSL_PARAM params[] = {
                OSSL_PARAM_construct_utf8_string(OSSL_KDF_PARAM_DIGEST, (char[]){ "SHA256" }, 0),
                OSSL_PARAM_construct_octet_string(OSSL_KDF_PARAM_KEY, (void *) (uintptr_t) seed, CA_SEED_BYTES),
                OSSL_PARAM_construct_octet_string(OSSL_KDF_PARAM_INFO, (void *) (uintptr_t) what, strlen(what)),
                OSSL_PARAM_construct_end(),
        };
        int r = ctx && EVP_KDF_derive(ctx, out, n, params) == 1 ? 0 : -EIO;
        EVP_KDF_CTX_free(ctx);
        EVP_KDF_free(kdf);
        return r;
}

/* A scalar in [1, order): 64 surplus bits make the remainder as good as uniform (FIPS 186-5, A.2.1). */
static BIGNUM *scalar_of(const uint8_t *seed, const EC_GROUP *group) {
        uint8_t wide[40];
        BN_CTX *ctx = BN_CTX_new();
        BIGNUM *order = BN_dup(EC_GROUP_get0_order(group)), *k = NULL;
        if (ctx && order && derive(seed, "cspace ca key", wide, sizeof wide) == 0)
                k = BN_bin2bn(wide, sizeof wide, NULL);
        if (k && (!BN_sub_word(order, 1) || !BN_mod(k, k, order, ctx) || !BN_add_word(k, 1))) {
                BN_clear_free(k);
                k = NULL;
        }
        OPENSSL_cleanse(wide, sizeof wide);
        BN_free(order);
        BN_CTX_free(ctx);
        return k;
}

static EVP_PKEY *key_of(const EC_GROUP *group, const BIGNUM *k) {
        EC_POINT *point = EC_POINT_new(group);
        uint8_t pub[65];
        EVP_PKEY *key = NULL;
        OSSL_PARAM_BLD *b = OSSL_PARAM_BLD_new();
        EVP_PKEY_CTX *ctx = EVP_PKEY_CTX_new_from_name(NULL, "EC", NULL);
        OSSL_PARAM *params = NULL;
        if (point && b && ctx && EC_POINT_mul(group, point, k, NULL, NULL, NULL) == 1 &&
            EC_POINT_point2oct(group, point, POINT_CONVERSION_UNCOMPRESSED, pub, sizeof pub, NULL) == sizeof pub &&
            OSSL_PARAM_BLD_push_utf8_string(b, OSSL_PKEY_PARAM_GROUP_NAME, "prime256v1", 0) == 1 &&
            OSSL_PARAM_BLD_push_BN(b, OSSL_PKEY_PARAM_PRIV_KEY, k) == 1 &&
            OSSL_PARAM_BLD_push_octet_string(b, OSSL_PKEY_PARAM_PUB_KEY, pub, sizeof pub) == 1)
                params = OSSL_PARAM_BLD_to_param(b);
        if (params && EVP_PKEY_fromdata_init(ctx) == 1)
                (void) EVP_PKEY_fromdata(ctx, &key, EVP_PKEY_KEYPAIR, params);
        OSSL_PARAM_free(params);
        OSSL_PARAM_BLD_free(b);
        EVP_PKEY_CTX_free(ctx);
        EC_POINT_free(point);
        return key;
}

static EVP_PKEY *ca_key(const uint8_t *seed) {
        EC_GROUP *group = EC_GROUP_new_by_curve_name(NID_X9_62_prime256v1);
        BIGNUM *k = group ? scalar_of(seed, group) : NULL;
        EVP_PKEY *key = k ? key_of(group, k) : NULL;
        BN_clear_free(k);
        EC_GROUP_free(group);
        return key;
}

/* ---- certificates -------------------------------------------------------------------------- */

static bool set_serial(X509 *c, const uint8_t bytes[SERIAL_BYTES]) {
        BIGNUM *bn = BN_bin2bn(bytes, SERIAL_BYTES, NULL);
        bool ok = bn && BN_clear_bit(bn, SERIAL_BYTES * 8 - 1) >= 0 && BN_set_bit(bn, 0) == 1 &&
                  BN_to_ASN1_INTEGER(bn, X509_get_serialNumber(c));
        BN_free(bn);
        return ok;
}

static bool add_ext(X509 *c, X509 *issuer, int nid, const char *value) {
        X509V3_CTX ctx;
        X509V3_set_ctx(&ctx, issuer, c, NULL, NULL, 0);
        X509_EXTENSION *e = X509V3_EXT_conf_nid(NULL, &ctx, nid, value);
        bool ok = e && X509_add_ext(c, e, -1) == 1;
        X509_EXTENSION_free(e);
        return ok;
}

static bool add_name(X509_NAME *n, const char *field, const char *value) {
        return X509_NAME_add_entry_by_txt(n, field, MBSTRING_ASC, (const uint8_t *) value, -1, -1, 0) == 1;
}

/* The dates do not depend on when the gateway was started: it is the same certificate each time. */
static X509 *make_ca(EVP_PKEY *key, const uint8_t *seed) {
        uint8_t serial[SERIAL_BYTES];
        X509 *c = X509_new();
        X509_NAME *n = c ? X509_get_subject_name(c) : NULL;
        if (n && derive(seed, "cspace ca serial", serial, sizeof serial) == 0 && X509_set_version(c, X509_VERSION_3) &&
            set_serial(c, serial) && add_name(n, "O", "cspace") && add_name(n, "CN", CA_COMMON_NAME) &&
            X509_set_issuer_name(c, n) == 1 && ASN1_TIME_set_string_X509(X509_getm_notBefore(c), "20200101000000Z") &&
            ASN1_TIME_set_string_X509(X509_getm_notAfter(c), "20491231235959Z") && X509_set_pubkey(c, key) == 1 &&
            add_ext(c, c, NID_basic_constraints, "critical,CA:TRUE,pathlen:0") &&
            add_ext(c, c, NID_key_usage, "critical,keyCertSign,cRLSign") &&
            add_ext(c, c, NID_subject_key_identifier, "hash") && X509_sign(c, key, EVP_sha256()) > 0)
                return c;
        X509_free(c);
        return NULL;
}

static bool add_san(X509 *c, const char *name) {
        struct in_addr a;
        GENERAL_NAMES *names = GENERAL_NAMES_new();
        GENERAL_NAME *g = GENERAL_NAME_new();
        ASN1_STRING *value = inet_pton(AF_INET, name, &a) == 1 ? ASN1_OCTET_STRING_new() : ASN1_IA5STRING_new();
        bool is_ip = value && ASN1_STRING_type(value) == V_ASN1_OCTET_STRING;
        bool ok = names && g && value &&
                  ASN1_STRING_set(value, is_ip ? (const void *) &a : name, is_ip ? (int) sizeof a : -1) == 1;
        if (ok) {
                GENERAL_NAME_set0_value(g, is_ip ? GEN_IPADD : GEN_DNS, value);
                value = NULL;
                ok = sk_GENERAL_NAME_push(names, g) > 0;
                if (ok)
                        g = NULL;
        }
        ok = ok && X509_add1_ext_i2d(c, NID_subject_alt_name, names, strlen(name) > COMMON_NAME_MAX, 0) == 1;
        ASN1_STRING_free(value);
        GENERAL_NAME_free(g);
        GENERAL_NAMES_free(names);
        return ok;
}

static X509 *make_leaf(struct ca *ca, const char *name, int64_t now_s) {
        uint8_t serial[SERIAL_BYTES];
        X509 *c = X509_new();
        X509_NAME *n = c ? X509_get_subject_name(c) : NULL;
        if (n && random_bytes(serial, sizeof serial) == 0 && X509_set_version(c, X509_VERSION_3) && set_serial(c, serial) &&
            (strlen(name) > COMMON_NAME_MAX || add_name(n, "CN", name)) &&
            X509_set_issuer_name(c, X509_get_subject_name(ca->cert)) == 1 &&
            ASN1_TIME_set(X509_getm_notBefore(c), (time_t) (now_s - BACKDATE_S)) &&
            ASN1_TIME_set(X509_getm_notAfter(c), (time_t) (now_s + (int64_t) CA_LEAF_DAYS * DAY_S)) &&
            X509_set_pubkey(c, ca->leaf_key) == 1 && add_san(c, name) &&
            add_ext(c, ca->cert, NID_basic_constraints, "critical,CA:FALSE") &&
            add_ext(c, ca->cert, NID_key_usage, "critical,digitalSignature") &&
            add_ext(c, ca->cert, NID_ext_key_usage, "serverAuth") &&
            add_ext(c, ca->cert, NID_authority_key_identifier, "keyid:always") &&
            add_ext(c, ca->cert, NID_subject_key_identifier, "hash") && X509_sign(c, ca->key, EVP_sha256()) > 0)
                return c;
        X509_free(c);
        return NULL;
}

/* ---- the cache ----------------------------------------------------------------------------- */

static void drop(struct ca *ca, struct leaf *l) {
        TAILQ_REMOVE(&ca->leaves, l, entry);
        ca->n--;
        X509_free(l->cert);
        free(l);
}

static struct leaf *find(struct ca *ca, const char *name, int64_t now_s) {
        struct leaf *l;
        TAILQ_FOREACH(l, &ca->leaves, entry) {
                if (strcmp(l->name, name) != 0)
                        continue;
                if (l->until_s <= now_s) {
                        drop(ca, l);
                        return NULL;
                }
                TAILQ_REMOVE(&ca->leaves, l, entry);
                TAILQ_INSERT_HEAD(&ca->leaves, l, entry);
                return l;
        }
        return NULL;
}

static struct leaf *add(struct ca *ca, const char *name, int64_t now_s) {
        struct leaf *l = calloc(1, sizeof *l);
        if (!l || str_copy(l->name, sizeof l->name, name) < 0 || !(l->cert = make_leaf(ca, name, now_s))) {
                free(l);
                return NULL;
        }
        if (ca->n >= CA_LEAVES_MAX)
                drop(ca, TAILQ_LAST(&ca->leaves, leaves));
        l->until_s = now_s + (int64_t) (CA_LEAF_DAYS - CA_LEAF_RENEW_DAYS) * DAY_S;
        TAILQ_INSERT_HEAD(&ca->leaves, l, entry);
        ca->n++;
        return l;
}

size_t ca_leaves(const struct ca *ca) {
        return ca->n;
}

static char *to_pem(X509 *c) {
        BIO *b = BIO_new(BIO_s_mem());
        char *at, *pem = NULL;
        if (b && PEM_write_bio_X509(b, c) == 1) {
                long n = BIO_get_mem_data(b, &at);
                pem = n > 0 ? strndup(at, (size_t) n) : NULL;
        }
        BIO_free(b);
        return pem;
}

static int make(struct ca *ca) {
        if (ca->pem)
                return 0;
        if (!(ca->key = ca_key(ca->seed)) || !(ca->leaf_key = EVP_EC_gen("P-256")) ||
            !(ca->cert = make_ca(ca->key, ca->seed)) || !(ca->pem = to_pem(ca->cert))) {
                EVP_PKEY_free(STEAL(ca->key));
                EVP_PKEY_free(STEAL(ca->leaf_key));
                X509_free(STEAL(ca->cert));
                return -EIO;
        }
        return 0;
}

const char *ca_pem(struct ca *ca, struct error *err) {
        ERR_clear_error();
        if (make(ca) < 0) {
                (void) fail(err);
                return NULL;
        }
        return ca->pem;
}

int ca_use_leaf(struct ca *ca, const char *name, SSL *ssl, struct error *err) {
        int64_t now_s = clock_real_ms() / 1000;
        ERR_clear_error();
        struct leaf *l = make(ca) < 0 ? NULL : find(ca, name, now_s);
        if (!l && ca->pem)
                l = add(ca, name, now_s);
        if (!l || SSL_use_certificate(ssl, l->cert) != 1 || SSL_use_PrivateKey(ssl, ca->leaf_key) != 1)
                return fail(err);
        return 0;
}

int ca_new(const uint8_t *seed, struct ca **ret, struct error *err) {
        struct ca *ca = calloc(1, sizeof *ca);
        if (!ca)
                return error_set(err, -ENOMEM, "out of memory");
        TAILQ_INIT(&ca->leaves);
        memcpy(ca->seed, seed, sizeof ca->seed);
        *ret = ca;
        return 0;
}

void ca_free(struct ca *ca) {
        if (!ca)
                return;
        while (!TAILQ_EMPTY(&ca->leaves))
                drop(ca, TAILQ_FIRST(&ca->leaves));
        EVP_PKEY_free(ca->key);
        EVP_PKEY_free(ca->leaf_key);
        X509_free(ca->cert);
        free(ca->pem);
        OPENSSL_cleanse(ca->seed, sizeof ca->seed);
        free(ca);
}
