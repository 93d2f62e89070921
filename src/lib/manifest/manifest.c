/* SPDX-License-Identifier: Apache-2.0 */
#include "manifest/manifest.h"

#include <errno.h>
#include <fcntl.h>
#include <openssl/evp.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/cleanup.h"
#include "base/fd.h"
#include "base/str.h"

/* The last two may be missing. */
static const char *const manifest_files[] = { "disk.img", "initrd", "kernel", "manifest.json", "mem", "state" };
#define MANIFEST_OPTIONAL 4 /* from here on */

#define MANIFEST_TEXT_MAX 4096

static void md_freep(EVP_MD_CTX **c) {
        EVP_MD_CTX_free(*c);
}
#define _cleanup_md_ _cleanup_(md_freep)

static EVP_MD_CTX *md_new(void) {
        EVP_MD_CTX *c = EVP_MD_CTX_new();

        if (c && EVP_DigestInit_ex(c, EVP_sha256(), NULL) != 1) {
                EVP_MD_CTX_free(c);
                return NULL;
        }
        return c;
}

static int md_hex(EVP_MD_CTX *c, char out[DIGEST_LEN + 1]) {
        uint8_t md[EVP_MAX_MD_SIZE];
        unsigned n = 0;

        if (EVP_DigestFinal_ex(c, md, &n) != 1 || n != DIGEST_LEN / 2)
                return -EIO;
        str_hex(md, n, out);
        return 0;
}

static int md_put(EVP_MD_CTX *c, const void *data, size_t n) {
        return EVP_DigestUpdate(c, data, n) == 1 ? 0 : -EIO;
}

int manifest_digest(const void *data, size_t n, char ret_digest[DIGEST_LEN + 1]) {
        _cleanup_md_ EVP_MD_CTX *c = md_new();

        return !c || md_put(c, data, n) < 0 ? -EIO : md_hex(c, ret_digest);
}

/* Fills up to n bytes from off; short only at the end of the file. */
static ssize_t read_full(int fd, uint8_t *out, size_t n, off_t off) {
        size_t got = 0;

        while (got < n) {
                ssize_t r = pread(fd, out + got, n - got, off + (off_t) got);
                if (r < 0 && errno == EINTR)
                        continue;
                if (r < 0)
                        return -errno;
                if (r == 0)
                        break;
                got += (size_t) r;
        }
        return (ssize_t) got;
}

static bool all_zero(const uint8_t *p, size_t n) {
        return n == 0 || (p[0] == 0 && memcmp(p, p + 1, n - 1) == 0);
}

static int put_record(EVP_MD_CTX *c, uint64_t off, const uint8_t *data, size_t n) {
        uint8_t head[12];

        for (unsigned i = 0; i < 8; i++)
                head[i] = (uint8_t) (off >> (56 - 8 * i));
        for (unsigned i = 0; i < 4; i++)
                head[8 + i] = (uint8_t) (n >> (24 - 8 * i));
        int r = md_put(c, head, sizeof head);
        return r < 0 ? r : md_put(c, data, n);
}

static int hash_plain(int fd, EVP_MD_CTX *c, uint8_t *block) {
        for (off_t off = 0;;) {
                ssize_t n = read_full(fd, block, MANIFEST_BLOCK, off);
                if (n <= 0)
                        return (int) n;
                int r = md_put(c, block, (size_t) n);
                if (r < 0)
                        return r;
                off += n;
        }
}

static int hash_sparse(int fd, off_t size, EVP_MD_CTX *c, uint8_t *block) {
        for (off_t off = 0; off < size;) {
                off_t data = lseek(fd, off, SEEK_DATA);
                if (data < 0 && errno == ENXIO)
                        break; /* only a hole is left */
                if (data < 0)
                        return -errno;
                if (data > off)
                        off = data - data % MANIFEST_BLOCK;
                ssize_t n = read_full(fd, block, MANIFEST_BLOCK, off);
                if (n < 0)
                        return (int) n;
                if (n == 0)
                        break;
                if (!all_zero(block, (size_t) n)) {
                        int r = put_record(c, (uint64_t) off, block, (size_t) n);
                        if (r < 0)
                                return r;
                }
                off += n;
        }
        return put_record(c, (uint64_t) size, NULL, 0);
}

static int hash_file(int dirfd, const char *name, char out[DIGEST_LEN + 1], struct error *err) {
        _cleanup_fd_ int fd = openat(dirfd, name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY);
        _cleanup_md_ EVP_MD_CTX *c = md_new();
        _cleanup_free_ uint8_t *block = malloc(MANIFEST_BLOCK);
        struct stat st;
        bool disk = str_eq(name, "disk.img") || str_eq(name, "mem");

        if (fd < 0)
                return error_errno(err, errno, "cannot open %s", name);
        if (!c || !block)
                return error_set(err, -ENOMEM, "out of memory");
        if (fstat(fd, &st) < 0)
                return error_errno(err, errno, "cannot stat %s", name);
        if (!S_ISREG(st.st_mode) || st.st_nlink != 1)
                return error_set(err, -EBADMSG, "%s is not a regular file with one name", name);
        if (st.st_size <= 0 || (uint64_t) st.st_size > (disk ? MANIFEST_DISK_MAX : MANIFEST_FILE_MAX))
                return error_set(err, -EFBIG, "%s is empty or too large (%lld bytes)", name, (long long) st.st_size);
        int r = disk ? hash_sparse(fd, st.st_size, c, block) : hash_plain(fd, c, block);
        if (r == 0)
                r = md_hex(c, out);
        return r < 0 ? error_errno(err, r, "cannot hash %s", name) : 0;
}

static int make_text(int dirfd, struct buf *text, char digest[DIGEST_LEN + 1], struct error *err) {
        _cleanup_md_ EVP_MD_CTX *c = md_new();
        char hex[DIGEST_LEN + 1];

        if (!c)
                return error_set(err, -ENOMEM, "out of memory");
        for (size_t i = 0; i < ARRAY_SIZE(manifest_files); i++) {
                if (i >= MANIFEST_OPTIONAL && faccessat(dirfd, manifest_files[i], F_OK, AT_SYMLINK_NOFOLLOW) < 0 && errno == ENOENT)
                        continue;
                int r = hash_file(dirfd, manifest_files[i], hex, err);
                if (r < 0)
                        return r;
                r = buf_printf(text, "%s  %s\n", hex, manifest_files[i]);
                if (r < 0)
                        return error_errno(err, r, "cannot make %s", MANIFEST_NAME);
        }
        int r = md_put(c, buf_data(text), text->len);
        if (r == 0)
                r = md_hex(c, digest);
        return r < 0 ? error_errno(err, r, "cannot hash %s", MANIFEST_NAME) : 0;
}

int manifest_write(int dirfd, char ret_digest[DIGEST_LEN + 1], struct error *err) {
        _cleanup_buf_ struct buf text = BUF_INIT(MANIFEST_TEXT_MAX);
        char digest[DIGEST_LEN + 1];

        int r = make_text(dirfd, &text, digest, err);
        if (r < 0)
                return r;
        r = fd_replace_file_at(dirfd, MANIFEST_NAME, buf_data(&text), text.len, 0644, err);
        if (r < 0)
                return r;
        memcpy(ret_digest, digest, sizeof digest);
        return 0;
}

int manifest_check(int dirfd, const char *digest, struct error *err) {
        _cleanup_buf_ struct buf text = BUF_INIT(MANIFEST_TEXT_MAX);
        _cleanup_free_ char *found = NULL;
        _cleanup_fd_ int fd = -EBADF;
        char computed[DIGEST_LEN + 1];
        struct stat st;

        int r = make_text(dirfd, &text, computed, err);
        if (r < 0)
                return r;
        if (!str_eq(computed, digest))
                return error_set(err, -EBADMSG, "the files have the digest %s, not %s", computed, digest);
        fd = openat(dirfd, MANIFEST_NAME, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY);
        if (fd < 0)
                return error_errno(err, errno, "cannot open %s", MANIFEST_NAME);
        found = malloc(MANIFEST_TEXT_MAX);
        if (!found)
                return error_set(err, -ENOMEM, "out of memory");
        if (fstat(fd, &st) < 0 || !S_ISREG(st.st_mode) || st.st_nlink != 1)
                return error_set(err, -EBADMSG, "%s is not a regular file with one name", MANIFEST_NAME);
        ssize_t n = read_full(fd, (uint8_t *) found, MANIFEST_TEXT_MAX, 0);
        if (n < 0)
                return error_errno(err, (int) n, "cannot read %s", MANIFEST_NAME);
        if ((size_t) n != text.len || memcmp(found, buf_data(&text), text.len) != 0)
                return error_set(err, -EBADMSG, "%s does not describe the files", MANIFEST_NAME);
        return 0;
}
