/* SPDX-License-Identifier: Apache-2.0 */
#include "trust.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/fd.h"
#include "base/log.h"
#include "base/str.h"
#include "jks.h"

#define CERTS "/etc/ssl/certs"
#define LOCAL "/usr/local/share/ca-certificates"
#define BUNDLE_MAX (4 * 1024 * 1024)

#define JAVA CERTS "/java/cacerts"
#define JAVA_SYSTEM CERTS "/java/cspace-system-cacerts"

static struct jks java;  /* body 0: no Java, or not Debian's */
static off_t java_bytes; /* of the file as we left it: who changes it keeps it */
static off_t bundle_bytes; /* of the system's part; the authority comes behind it. In the snapshot, like the file. */

static void link_to(const char *target, const char *path) {
        char old[128];
        ssize_t n = readlink(path, old, sizeof old);
        if (n > 0 && (size_t) n == strlen(target) && memcmp(old, target, (size_t) n) == 0)
                return;
        if ((unlink(path) < 0 && errno != ENOENT) || symlink(target, path) < 0)
                log_warn("cannot make %s a link: %m", path);
}

static int put(const char *path, off_t at, const char *text, size_t n) {
        _cleanup_fd_ int fd = open(path, O_WRONLY | O_CREAT | O_NONBLOCK | O_CLOEXEC | O_NOFOLLOW, 0644);
        if (fd < 0 || (n > 0 && pwrite(fd, text, n, at) != (ssize_t) n) || ftruncate(fd, at + (off_t) n) < 0)
                return -errno;
        return 0;
}

/* ---- Java ---------------------------------------------------------------------------------- */

/* The bytes of the one certificate in a PEM text; 0: there is none. */
static size_t pem_decode(const char *pem, uint8_t *der, size_t cap) {
        static const char begin[] = "-----BEGIN CERTIFICATE-----", end[] = "-----END CERTIFICATE-----";
        char text[TRUST_PEM_MAX];
        const char *from = strstr(pem, begin), *to = from ? strstr(from, end) : NULL;
        size_t n = 0;
        for (const char *p = from ? from + sizeof begin - 1 : NULL; to && p < to && n < sizeof text; p++)
                if (*p != '\n' && *p != '\r')
                        text[n++] = *p;
        if (n == 0 || n == sizeof text || 3 * n / 4 + 1 > cap)
                return 0;
        ssize_t len = base64_decode(text, n, der);
        return len > 0 ? (size_t) len : 0;
}

static void java_prepare(void) {
        _cleanup_free_ char *store = NULL;
        struct stat st;
        size_t n = 0;
        java.body = 0;
        if (fd_read_regular_at(AT_FDCWD, JAVA, BUNDLE_MAX, &store, &n, NULL) < 0 &&
            fd_read_regular_at(AT_FDCWD, JAVA_SYSTEM, BUNDLE_MAX, &store, &n, NULL) < 0)
                return;
        if (jks_read((const uint8_t *) store, n, &java) < 0 || put(TRUST_JAVA_FILE, 0, store, n) < 0) {
                java.body = 0;
                return;
        }
        java_bytes = (off_t) n;
        if (lstat(JAVA, &st) == 0 && S_ISREG(st.st_mode))
                (void) rename(JAVA, JAVA_SYSTEM);
        link_to(TRUST_JAVA_FILE, JAVA);
}

static int java_set(const char *pem) {
        uint8_t der[TRUST_PEM_MAX], tail[JKS_ENTRY_MAX + JKS_DIGEST_BYTES], count[4];
        size_t n = pem_decode(pem, der, sizeof der);
        struct stat st;
        if (java.body == 0 || stat(TRUST_JAVA_FILE, &st) < 0 || st.st_size != java_bytes)
                return 0;
        long len = jks_tail(&java, der, n, tail);
        if (len < 0)
                return (int) len;
        for (size_t i = 0; i < sizeof count; i++)
                count[i] = (uint8_t) ((java.count + (n > 0)) >> (8 * (3 - i)));
        _cleanup_fd_ int fd = open(TRUST_JAVA_FILE, O_WRONLY | O_NONBLOCK | O_CLOEXEC | O_NOFOLLOW);
        if (fd < 0 || pwrite(fd, count, sizeof count, JKS_COUNT_AT) != (ssize_t) sizeof count ||
            pwrite(fd, tail, (size_t) len, (off_t) java.body) != len || ftruncate(fd, (off_t) java.body + len) < 0)
                return -errno;
        java_bytes = (off_t) java.body + len;
        return 0;
}

/* ---- all ----------------------------------------------------------------------------------- */

void trust_prepare(void) {
        _cleanup_free_ char *system = NULL;
        size_t n = 0;
        /* A disk that was prepared before has the link, and behind it nothing yet. */
        if (fd_read_regular_at(AT_FDCWD, CERTS "/ca-certificates.crt", BUNDLE_MAX, &system, &n, NULL) < 0 &&
            fd_read_regular_at(AT_FDCWD, CERTS "/cspace-system.crt", BUNDLE_MAX, &system, &n, NULL) < 0)
                n = 0;
        struct error e = ERROR_INIT;
        if (fd_mkdir_p_at(AT_FDCWD, CERTS, 0755, &e) < 0 || fd_mkdir_p_at(AT_FDCWD, LOCAL, 0755, &e) < 0)
                log_warn("trust: %s", e.msg);
        if (put(TRUST_BUNDLE_FILE, 0, system, n) < 0 || put(TRUST_CA_FILE, 0, "", 0) < 0) {
                log_warn("trust: cannot write below /run/cspace: %m");
                return;
        }
        bundle_bytes = (off_t) n;
        struct stat st;
        if (n > 0 && lstat(CERTS "/ca-certificates.crt", &st) == 0 && S_ISREG(st.st_mode))
                (void) rename(CERTS "/ca-certificates.crt", CERTS "/cspace-system.crt");
        link_to(TRUST_BUNDLE_FILE, CERTS "/ca-certificates.crt");
        link_to(TRUST_CA_FILE, CERTS "/" TRUST_CA_SUBJECT_HASH ".0");
        link_to(TRUST_CA_FILE, CERTS "/cspace.pem");
        link_to(TRUST_CA_FILE, LOCAL "/cspace.crt");
        java_prepare();
}

int trust_set(const char *pem, struct error *err) {
        size_t n = strlen(pem);
        int r = put(TRUST_CA_FILE, 0, pem, n);
        if (r == 0)
                r = put(TRUST_BUNDLE_FILE, bundle_bytes, pem, n);
        if (r == 0)
                r = java_set(pem);
        return r < 0 ? error_errno(err, r, "cannot write the certificate authority") : 0;
}

const struct trust_var *trust_env(size_t *ret_n) {
        static const struct trust_var vars[] = {
                { "SSL_CERT_FILE", TRUST_BUNDLE_FILE },      /* OpenSSL, Go, Rust's native-certs, httpx */
                { "REQUESTS_CA_BUNDLE", TRUST_BUNDLE_FILE }, /* Python's requests and pip, which bring certifi */
                { "NODE_EXTRA_CA_CERTS", TRUST_CA_FILE },    /* Node and npm */
        };
        *ret_n = ARRAY_SIZE(vars);
        return vars;
}
