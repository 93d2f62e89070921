/* SPDX-License-Identifier: Apache-2.0 */
#include "trust.h"

#include <errno.h>
#include <fcntl.h>
#include <openssl/err.h>
#include <openssl/pem.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include "base/cleanup.h"
#include "base/fd.h"
#include "io/stream_tls.h"

static const char begin_mark[] = "-----BEGIN CERTIFICATE-----";
static const char end_mark[] = "-----END CERTIFICATE-----";

struct entry {
        unsigned long hash; /* of the subject */
        uint32_t at, n;     /* in the file */
};

struct trust {
        char *text;
        size_t text_n;
        struct entry *entries;
        size_t n;
        size_t indexed; /* bytes of the text */
        X509_LOOKUP_METHOD *method;
};

static X509 *read_cert(const struct trust *t, const struct entry *e) {
        BIO *b = BIO_new_mem_buf(t->text + e->at, (int) e->n);
        X509 *c = b ? PEM_read_bio_X509(b, NULL, NULL, NULL) : NULL;
        BIO_free(b);
        return c;
}

/* The next element at *p, which must be of this kind: its contents, with *p behind it; NULL: it is not. */
static const uint8_t *element(const uint8_t **p, const uint8_t *end, int want_tag, int want_class, long *ret_n) {
        const uint8_t *at = *p;
        int tag, class;
        if (*p >= end || ASN1_get_object(&at, ret_n, &tag, &class, end - *p) & 0x80 || tag != want_tag || class != want_class)
                return NULL;
        *p = at + *ret_n;
        return at;
}

/* RFC 5280, 4.1: SEQUENCE { SEQUENCE { [0] version, serial, algorithm, issuer, validity, subject, ... */
static X509_NAME *subject_of(const uint8_t *der, long n) {
        const uint8_t *p = der, *end = der + n, *name;
        long len;
        for (int depth = 0; depth < 2; depth++) {
                p = element(&p, end, V_ASN1_SEQUENCE, V_ASN1_UNIVERSAL, &len);
                if (!p)
                        return NULL;
                end = p + len;
        }
        (void) element(&p, end, 0, V_ASN1_CONTEXT_SPECIFIC, &len);
        if (!element(&p, end, V_ASN1_INTEGER, V_ASN1_UNIVERSAL, &len))
                return NULL;
        for (int skipped = 0; skipped < 3; skipped++)
                if (!element(&p, end, V_ASN1_SEQUENCE, V_ASN1_UNIVERSAL, &len))
                        return NULL;
        name = p;
        return element(&p, end, V_ASN1_SEQUENCE, V_ASN1_UNIVERSAL, &len) ? d2i_X509_NAME(NULL, &name, p - name) : NULL;
}

/* Parsing all of a certificate, its key before all, takes twenty times as long, and each gateway would do it for each root. */
static X509_NAME *read_subject(const struct trust *t, const struct entry *e) {
        BIO *b = BIO_new_mem_buf(t->text + e->at, (int) e->n);
        char *name = NULL, *header = NULL;
        unsigned char *der = NULL;
        X509_NAME *subject = NULL;
        long n;
        if (b && PEM_read_bio(b, &name, &header, &der, &n) == 1)
                subject = subject_of(der, n);
        BIO_free(b);
        OPENSSL_free(name);
        OPENSSL_free(header);
        OPENSSL_free(der);
        return subject;
}

/* One whose subject cannot be read is not trusted; the others are. */
static int index_one(struct trust *t, size_t at, size_t n) {
        struct entry e = { .at = (uint32_t) at, .n = (uint32_t) n };
        X509_NAME *subject = read_subject(t, &e);
        if (!subject) {
                ERR_clear_error();
                return 0;
        }
        if ((t->n & 63) == 0) {
                struct entry *more = reallocarray(t->entries, t->n + 64, sizeof *more);
                if (!more) {
                        X509_NAME_free(subject);
                        return -ENOMEM;
                }
                t->entries = more;
        }
        e.hash = X509_NAME_hash_ex(subject, NULL, NULL, NULL);
        X509_NAME_free(subject);
        t->entries[t->n++] = e;
        return 0;
}

/* Goes on behind what is indexed until there are want certificates, or no more. */
static int index_some(struct trust *t, size_t want) {
        while (t->n < want) {
                const char *from = memmem(t->text + t->indexed, t->text_n - t->indexed, begin_mark, sizeof begin_mark - 1);
                size_t start = from ? (size_t) (from - t->text) : t->text_n;
                const char *to = memmem(t->text + start, t->text_n - start, end_mark, sizeof end_mark - 1);
                if (!to) {
                        t->indexed = t->text_n;
                        return 0;
                }
                t->indexed = (size_t) (to - t->text) + sizeof end_mark - 1;
                int r = index_one(t, start, t->indexed - start);
                if (r < 0)
                        return r;
        }
        return 0;
}

/* Puts every certificate of this subject into the store, which finds among them by key and dates. */
static int by_subject(X509_LOOKUP *l, X509_LOOKUP_TYPE type, const X509_NAME *name, X509_OBJECT *ret) {
        struct trust *t = X509_LOOKUP_get_method_data(l);
        X509_STORE *store = X509_LOOKUP_get_store(l);
        unsigned long hash = X509_NAME_hash_ex(name, NULL, NULL, NULL);
        int found = 0;
        if (type != X509_LU_X509 || !t || index_some(t, TRUST_CERTIFICATES_MAX) < 0)
                return 0;
        for (size_t i = 0; i < t->n; i++) {
                if (t->entries[i].hash != hash)
                        continue;
                X509 *c = read_cert(t, &t->entries[i]);
                if (c && X509_NAME_cmp(X509_get_subject_name(c), name) == 0 && X509_STORE_add_cert(store, c) == 1 &&
                    !found && X509_OBJECT_set1_X509(ret, c) == 1) {
                        found = 1;
                        X509_free(c); /* the caller counts its own reference; the store's keeps c */
                }
                X509_free(c);
        }
        return found;
}

int trust_use(struct trust *t, SSL_CTX *ctx, struct error *err) {
        X509_LOOKUP *l = X509_STORE_add_lookup(SSL_CTX_get_cert_store(ctx), t->method);
        if (!l || X509_LOOKUP_set_method_data(l, t) != 1)
                return stream_tls_error(err, "trust store");
        return 0;
}

int trust_load(const char *path, struct trust **ret, struct error *err) {
        _cleanup_fd_ int fd = open(path, O_RDONLY | O_CLOEXEC);
        struct stat st;
        if (fd < 0 || fstat(fd, &st) < 0)
                return error_errno(err, errno, "trust store %s", path);
        if (!S_ISREG(st.st_mode) || st.st_size <= 0 || st.st_size > TRUST_FILE_MAX)
                return error_set(err, -EINVAL, "trust store %s is empty, too large, or no file", path);
        struct trust *t = calloc(1, sizeof *t);
        if (!t)
                return error_set(err, -ENOMEM, "out of memory");
        t->text_n = (size_t) st.st_size;
        t->text = mmap(NULL, t->text_n, PROT_READ, MAP_PRIVATE, fd, 0);
        int r = 0;
        if (t->text == MAP_FAILED) {
                r = -errno;
                t->text = NULL;
        }
        t->method = X509_LOOKUP_meth_new("mapped file");
        if (!t->method || !X509_LOOKUP_meth_set_get_by_subject(t->method, by_subject))
                r = -ENOMEM;
        if (r == 0)
                r = index_some(t, 1); /* the others when a chain is verified: most gateways never do */
        if (r == 0 && t->n == 0)
                r = -ENOENT;
        if (r < 0) {
                trust_free(t);
                return error_errno(err, r, "trust store %s", path);
        }
        *ret = t;
        return 0;
}

void trust_free(struct trust *t) {
        if (!t)
                return;
        if (t->text)
                (void) munmap(t->text, t->text_n);
        X509_LOOKUP_meth_free(t->method);
        free(t->entries);
        free(t);
}

size_t trust_count(struct trust *t) {
        (void) index_some(t, TRUST_CERTIFICATES_MAX);
        return t->n;
}
