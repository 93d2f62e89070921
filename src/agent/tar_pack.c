/* SPDX-License-Identifier: Apache-2.0 */
#include "tar_pack.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/fd.h"
#include "base/str.h"
#include "fsop.h"
#include "path.h"
#include "wire/tar.h"

#define DEPTH_MAX 512
#define LINKS_MAX (1u << 20) /* files with several names that are remembered; beyond, contents repeat */

struct level {
        int fd;
        char **names;
        size_t n, next;
        size_t name_len; /* of the folder's name in p->name */
};

struct seen {
        dev_t dev;
        ino_t ino;
        char *name;
};

struct tar_pack {
        struct level *levels;
        size_t depth;
        char name[PATH_MAX]; /* of the member under way */
        dev_t dev;
        struct buf head; /* headers and padding not handed out yet */
        int file;
        uint64_t left; /* of the file */
        uint64_t size;
        bool ended;
        struct seen *seen; /* open addressing, power of two */
        size_t seen_cap, n_seen;
};

static void pop(struct tar_pack *p) {
        struct level *l = &p->levels[--p->depth];
        fd_close(l->fd);
        fsop_names_free(l->names);
}

void tar_pack_free(struct tar_pack *p) {
        if (!p)
                return;
        while (p->depth > 0)
                pop(p);
        free(p->levels);
        for (size_t i = 0; i < p->seen_cap; i++)
                free(p->seen[i].name);
        free(p->seen);
        fd_close(p->file);
        buf_done(&p->head);
        free(p);
}

/* --- hard links ----------------------------------------------------------------------------- */

static struct seen *slot_of(struct seen *v, size_t cap, dev_t dev, ino_t ino) {
        size_t i = (size_t) (ino * 0x9e3779b97f4a7c15ULL >> 20) & (cap - 1);
        while (v[i].name && (v[i].ino != ino || v[i].dev != dev))
                i = (i + 1) & (cap - 1);
        return &v[i];
}

static int grow_seen(struct tar_pack *p) {
        size_t cap = p->seen_cap ? 2 * p->seen_cap : 64;
        struct seen *v = calloc(cap, sizeof *v);
        if (!v)
                return -ENOMEM;
        for (size_t i = 0; i < p->seen_cap; i++)
                if (p->seen[i].name)
                        *slot_of(v, cap, p->seen[i].dev, p->seen[i].ino) = p->seen[i];
        free(p->seen);
        p->seen = v;
        p->seen_cap = cap;
        return 0;
}

/* The name under which this file is in the stream already, or NULL; then it is remembered. */
static const char *earlier_name(struct tar_pack *p, const struct stat *st) {
        if (st->st_nlink < 2 || p->n_seen >= LINKS_MAX)
                return NULL;
        if (2 * (p->n_seen + 1) > p->seen_cap && grow_seen(p) < 0)
                return NULL;
        struct seen *s = slot_of(p->seen, p->seen_cap, st->st_dev, st->st_ino);
        if (s->name)
                return s->name;
        *s = (struct seen){ .dev = st->st_dev, .ino = st->st_ino, .name = strdup(p->name) };
        p->n_seen += s->name != NULL;
        return NULL;
}

/* --- members -------------------------------------------------------------------------------- */

static int put(struct tar_pack *p, enum tar_type type, const char *name, const char *link, const struct stat *st,
               struct error *err) {
        struct tar_entry e = {
                .type = type, .name = name, .link = link, .mode = st->st_mode & 07777, .uid = st->st_uid,
                .gid = st->st_gid, .size = type == TAR_FILE ? (uint64_t) st->st_size : 0, .mtime_s = st->st_mtim.tv_sec,
                .mtime_ns = (uint32_t) st->st_mtim.tv_nsec,
        };
        int r = tar_write_entry(&p->head, &e);
        return r < 0 ? error_set(err, r, "'%s' does not fit a tar archive", name) : 0;
}

/* Takes fd, an opened folder whose name is in p->name ("" for the top). */
static int push(struct tar_pack *p, int fd, struct error *err) {
        struct stat st;
        if (p->depth >= DEPTH_MAX || fstat(fd, &st) < 0) {
                fd_close(fd);
                return error_set(err, -ELOOP, "the tree is deeper than %d folders", DEPTH_MAX);
        }
        char name[PATH_MAX + 1];
        size_t n = strlen(p->name);
        memcpy(name, p->name, n + 1);
        (void) str_copy(name + n, sizeof name - n, n ? "/" : "./");
        int r = put(p, TAR_DIR, name, "", &st, err);
        if (r < 0 || (p->depth > 0 && st.st_dev != p->dev)) {
                fd_close(fd);
                return r;
        }
        struct level *l = &p->levels[p->depth];
        *l = (struct level){ .fd = fd, .name_len = n };
        p->dev = st.st_dev;
        p->depth++;
        return fsop_names(fd, &l->names, &l->n, err);
}

static int put_link(struct tar_pack *p, int dirfd, const char *base, const struct stat *st, struct error *err) {
        char target[PATH_MAX];
        ssize_t n = readlinkat(dirfd, base, target, sizeof target - 1);
        if (n < 0)
                return errno == ENOENT ? 0 : error_errno(err, errno, "cannot read link '%s'", p->name);
        target[n] = '\0';
        return put(p, TAR_SYMLINK, p->name, target, st, err);
}

static int begin_file(struct tar_pack *p, int dirfd, const char *base, int extra, struct error *err) {
        struct stat st;
        _cleanup_fd_ int fd = openat(dirfd, base, O_RDONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC | extra);
        if (fd < 0 && errno == ENOENT)
                return 0;
        if (fd < 0 || fstat(fd, &st) < 0)
                return error_errno(err, errno, "cannot read '%s'", p->name);
        if (!S_ISREG(st.st_mode))
                return 0;
        const char *earlier = earlier_name(p, &st);
        if (earlier)
                return put(p, TAR_HARDLINK, p->name, earlier, &st, err);
        int r = put(p, TAR_FILE, p->name, "", &st, err);
        if (r < 0 || st.st_size == 0)
                return r;
        p->left = p->size = (uint64_t) st.st_size;
        p->file = fd_steal(&fd);
        return 0;
}

static int one(struct tar_pack *p, struct level *l, const char *base, struct error *err) {
        struct stat st;
        size_t n = l->name_len;
        if (n + strlen(base) + 2 > sizeof p->name)
                return error_set(err, -ENAMETOOLONG, "a path in the tree is longer than %d bytes", PATH_MAX);
        if (n > 0)
                p->name[n++] = '/';
        (void) str_copy(p->name + n, sizeof p->name - n, base);
        if (fstatat(l->fd, base, &st, AT_SYMLINK_NOFOLLOW) < 0)
                return errno == ENOENT ? 0 : error_errno(err, errno, "cannot read '%s'", p->name);
        if (S_ISLNK(st.st_mode))
                return put_link(p, l->fd, base, &st, err);
        if (S_ISREG(st.st_mode))
                return begin_file(p, l->fd, base, O_NOFOLLOW, err);
        if (!S_ISDIR(st.st_mode))
                return 0;
        int fd = openat(l->fd, base, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
        if (fd < 0)
                return errno == ENOENT ? 0 : error_errno(err, errno, "cannot read folder '%s'", p->name);
        return push(p, fd, err);
}

static int advance(struct tar_pack *p, struct error *err) {
        while (p->depth > 0) {
                struct level *l = &p->levels[p->depth - 1];
                if (l->next < l->n)
                        return one(p, l, l->names[l->next++], err);
                pop(p);
        }
        p->ended = true;
        return tar_write_end(&p->head) < 0 ? error_set(err, -ENOMEM, "out of memory") : 0;
}

static ssize_t read_file(struct tar_pack *p, uint8_t *out, size_t cap, struct error *err) {
        ssize_t n = read(p->file, out, p->left < cap ? (size_t) p->left : cap);
        if (n < 0)
                return error_errno(err, errno, "cannot read '%s'", p->name);
        if (n == 0)
                return error_set(err, -EIO, "'%s' became shorter while it was read", p->name);
        p->left -= (uint64_t) n;
        if (p->left == 0) {
                p->file = fd_close(p->file);
                if (tar_write_padding(&p->head, p->size) < 0)
                        return error_set(err, -ENOMEM, "out of memory");
        }
        return n;
}

ssize_t tar_pack_read(struct tar_pack *p, uint8_t *out, size_t cap, struct error *err) {
        size_t done = 0;
        while (done < cap) {
                if (p->head.len > 0) {
                        size_t n = p->head.len < cap - done ? p->head.len : cap - done;
                        memcpy(out + done, buf_data(&p->head), n);
                        buf_consume(&p->head, n);
                        done += n;
                } else if (p->file >= 0) {
                        ssize_t n = read_file(p, out + done, cap - done, err);
                        if (n < 0)
                                return n;
                        done += (size_t) n;
                } else if (p->ended)
                        break;
                else {
                        int r = advance(p, err);
                        if (r < 0)
                                return r;
                }
        }
        return (ssize_t) done;
}

int tar_pack_open(const char *path, struct tar_pack **ret, struct error *err) {
        struct stat st;
        if (stat(path, &st) < 0)
                return error_errno(err, errno, "path '%s'", path);
        struct tar_pack *p = calloc(1, sizeof *p);
        if (!p || !(p->levels = calloc(DEPTH_MAX, sizeof *p->levels))) {
                free(p);
                return error_set(err, -ENOMEM, "out of memory");
        }
        p->file = -EBADF;
        p->head = BUF_INIT(0);
        int r;
        if (S_ISDIR(st.st_mode)) {
                int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
                r = fd < 0 ? error_errno(err, errno, "cannot read folder '%s'", path) : push(p, fd, err);
        } else if (S_ISREG(st.st_mode)) {
                (void) str_copy(p->name, sizeof p->name, path_base(path));
                r = begin_file(p, AT_FDCWD, path, 0, err);
        } else
                r = error_set(err, -EINVAL, "'%s' is neither a file nor a folder", path);
        if (r < 0) {
                tar_pack_free(p);
                return r;
        }
        *ret = p;
        return 0;
}
