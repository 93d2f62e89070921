/* SPDX-License-Identifier: Apache-2.0 */
#include "cache.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/fs.h>
#include <openssl/evp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/fd.h"
#include "base/str.h"

#define CACHE_MAX (2ULL << 30)
#define CACHE_FILES_MAX 8192

static void closedirp(DIR **d) {
        if (*d)
                closedir(*d);
}

static DIR *open_dir(int dirfd) {
        int fd = dirfd < 0 ? -1 : openat(dirfd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        DIR *d = fd < 0 ? NULL : fdopendir(fd);

        if (!d)
                (void) fd_close(fd);
        return d;
}

static bool copy_data(int in, int out, off_t size) {
        off_t off = 0;

        if (ioctl(out, FICLONE, in) == 0)
                return true;
        while (off < size)
                if (sendfile(out, in, &off, (size_t) (size - off)) <= 0)
                        return false;
        return true;
}

/* Complete under its name, or not there. */
static bool copy_file(int in, int to, const char *name) {
        char temp[300];
        struct stat st;

        int n = snprintf(temp, sizeof temp, ".%s.new", name);
        if (n < 0 || (size_t) n >= sizeof temp || fstat(in, &st) < 0 || !S_ISREG(st.st_mode))
                return false;
        _cleanup_fd_ int out = openat(to, temp, O_CREAT | O_TRUNC | O_RDWR | O_CLOEXEC | O_NOFOLLOW, 0644);
        if (out < 0)
                return false;
        if (copy_data(in, out, st.st_size) && renameat(to, temp, to, name) == 0)
                return true;
        (void) unlinkat(to, temp, 0);
        return false;
}

static bool has_hash(int fd, const char *sha256) {
        uint8_t chunk[65536], md[EVP_MAX_MD_SIZE];
        char hex[2 * EVP_MAX_MD_SIZE + 1];
        unsigned md_n = 0;
        ssize_t n;
        off_t off = 0;
        bool ok = false;

        EVP_MD_CTX *c = EVP_MD_CTX_new();
        if (c && EVP_DigestInit_ex(c, EVP_sha256(), NULL) == 1) {
                while ((n = pread(fd, chunk, sizeof chunk, off)) > 0) {
                        (void) EVP_DigestUpdate(c, chunk, (size_t) n);
                        off += n;
                }
                ok = n == 0 && EVP_DigestFinal_ex(c, md, &md_n) == 1;
        }
        EVP_MD_CTX_free(c);
        if (!ok)
                return false;
        str_hex(md, md_n, hex);
        return str_eq(hex, sha256);
}

bool cache_get(int cachefd, int to, const char *name, const char *sha256) {
        if (cachefd < 0 || strchr(name, '/'))
                return false;
        _cleanup_fd_ int in = openat(cachefd, name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
        if (in < 0)
                return false;
        if (!has_hash(in, sha256)) {
                (void) unlinkat(cachefd, name, 0);
                return false;
        }
        (void) futimens(in, NULL); /* used now: see cache_trim() */
        return copy_file(in, to, name);
}

void cache_put_all(int cachefd, int from) {
        _cleanup_(closedirp) DIR *d = cachefd < 0 ? NULL : open_dir(from);

        if (!d)
                return;
        for (struct dirent *e; (e = readdir(d));) {
                if (!str_has_suffix(e->d_name, ".deb") || faccessat(cachefd, e->d_name, F_OK, AT_SYMLINK_NOFOLLOW) == 0)
                        continue;
                _cleanup_fd_ int in = openat(from, e->d_name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
                if (in >= 0)
                        (void) copy_file(in, cachefd, e->d_name);
        }
}

struct cached {
        char name[256];
        uint64_t size;
        int64_t used;
};

static int by_use(const void *a, const void *b) {
        const struct cached *x = a, *y = b;

        return x->used < y->used ? 1 : x->used > y->used ? -1 : 0;
}

void cache_trim(int cachefd) {
        _cleanup_(closedirp) DIR *d = open_dir(cachefd);
        _cleanup_free_ struct cached *list = calloc(CACHE_FILES_MAX, sizeof *list);
        size_t n = 0;
        uint64_t sum = 0;
        struct stat st;

        if (!list || !d)
                return;
        for (struct dirent *e; n < CACHE_FILES_MAX && (e = readdir(d));) {
                if (fstatat(cachefd, e->d_name, &st, AT_SYMLINK_NOFOLLOW) < 0 || !S_ISREG(st.st_mode))
                        continue;
                (void) snprintf(list[n].name, sizeof list[n].name, "%s", e->d_name);
                list[n].size = (uint64_t) st.st_size;
                list[n++].used = st.st_mtim.tv_sec;
        }
        qsort(list, n, sizeof *list, by_use);
        for (size_t i = 0; i < n; i++) {
                sum += list[i].size;
                if (sum > CACHE_MAX)
                        (void) unlinkat(cachefd, list[i].name, 0);
        }
}
