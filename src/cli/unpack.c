/* SPDX-License-Identifier: Apache-2.0 */
#include "unpack.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/fd.h"
#include "base/limits.h"
#include "base/str.h"
#include "cli.h"
#include "mem.h"
#include "wire/tar.h"

/* A folder's mode and time are set when all is in it: it may not be writable. */
struct late_dir {
        char *path;
        mode_t mode;
        struct timespec mtime;
};

struct unpacker {
        int dirfd;
        const char *strip, *as;
        unpack_source source;
        void *arg;
        mode_t umask;
        struct late_dir *dirs;
        size_t n_dirs;
        struct unpack_result r;
        /* the file whose data comes */
        int fd;
        char *path;
        uint64_t offset;
        int64_t mtime_s;
        uint32_t mtime_ns;
};

int unpack_clean_name(const char *name, char *out, struct error *err) {
        char *w = out;
        unsigned depth = 0;

        if (name[0] == '/')
                return error_set(err, -EINVAL, "refused: the archive has the absolute name \"%s\"", name);
        for (const char *p = name; *p;) {
                size_t n = strcspn(p, "/");

                if (n == 2 && p[0] == '.' && p[1] == '.')
                        return error_set(err, -EINVAL, "refused: the archive has \"..\" in the name \"%s\"",
                                         name);
                if (n > 0 && !(n == 1 && p[0] == '.')) {
                        if (++depth > UNPACK_DEPTH_MAX)
                                return error_set(err, -EINVAL,
                                                 "refused: a name in the archive has more than %u parts",
                                                 UNPACK_DEPTH_MAX);
                        if (w > out)
                                *w++ = '/';
                        memcpy(w, p, n);
                        w += n;
                }
                p += n + (p[n] == '/');
        }
        *w = '\0';
        return 0;
}

/* strip/a/b -> as/a/b. *ret is malloc'd. */
static int map_name(const struct unpacker *u, const char *name, char **ret, struct error *err) {
        if (strlen(name) >= LIMIT_PATH)
                return error_set(err, -ENAMETOOLONG, "refused: a name in the archive is longer than %d bytes",
                                 LIMIT_PATH);
        _cleanup_free_ char *clean = mem_new(strlen(name) + 1);
        const char *rest = clean;

        int r = unpack_clean_name(name, clean, err);
        if (r < 0)
                return r;
        size_t n = strlen(u->strip);
        if (n > 0) {
                if (strncmp(clean, u->strip, n) != 0 || (clean[n] != '/' && clean[n] != '\0'))
                        return error_set(err, -EINVAL, "refused: \"%s\" in the archive is not under \"%s\"",
                                         name, u->strip);
                rest = clean + n + (clean[n] == '/');
        }
        *ret = mem_printf("%s%s%s", u->as, *u->as && *rest ? "/" : "", rest);
        return 0;
}

static int through_link(struct error *err, int r, const char *path) {
        if (r == -ELOOP || r == -ENOTDIR || r == -EXDEV)
                return error_set(err, r, "refused: \"%s\" leads through a link or file", path);
        return error_wrap(err, "\"%s\"", path);
}

/* Opens the folder that holds path, making what is missing; *ret_base is its last component. */
static int open_parent(const struct unpacker *u, const char *path, const char **ret_base, int *ret,
                       struct error *err) {
        const char *slash = strrchr(path, '/');

        *ret_base = slash ? slash + 1 : path;
        if (!slash) {
                *ret = fcntl(u->dirfd, F_DUPFD_CLOEXEC, 3);
                return *ret < 0 ? error_errno(err, errno, "cannot open the folder") : 0;
        }
        _cleanup_free_ char *dir = mem_ndup(path, (size_t) (slash - path));
        int fd = fd_open_beneath(u->dirfd, dir, O_DIRECTORY | O_RDONLY, 0, err);
        if (fd == -ENOENT) {
                int r = fd_mkdir_p_at(u->dirfd, dir, 0777, err);
                if (r < 0)
                        return through_link(err, r, dir);
                fd = fd_open_beneath(u->dirfd, dir, O_DIRECTORY | O_RDONLY, 0, err);
        }
        if (fd < 0)
                return through_link(err, fd, dir);
        *ret = fd;
        return 0;
}

/* Whatever is in the way of a file or link goes, unless it is a folder. */
static int make_room(int parent, const char *base, const char *path, struct error *err) {
        if (unlinkat(parent, base, 0) == 0 || errno == ENOENT)
                return 0;
        if (errno == EISDIR)
                return error_set(err, -EISDIR, "\"%s\" is a folder here and none in the archive", path);
        return error_errno(err, errno, "cannot replace \"%s\"", path);
}

static int add_late(struct unpacker *u, const char *path, const struct tar_entry *e, struct error *err) {
        if (u->n_dirs >= UNPACK_DIRS_MAX)
                return error_set(err, -E2BIG, "refused: the archive has more than %u folders",
                                 UNPACK_DIRS_MAX);
        if ((u->n_dirs & (u->n_dirs - 1)) == 0)
                u->dirs = mem_grow(u->dirs, u->n_dirs ? 2 * u->n_dirs : 1, sizeof *u->dirs);
        u->dirs[u->n_dirs++] = (struct late_dir) {
                .path = mem_dup(path),
                .mode = e->mode & 0777 & ~u->umask,
                .mtime = { .tv_sec = e->mtime_s, .tv_nsec = e->mtime_ns },
        };
        return 0;
}

static int make_dir(struct unpacker *u, const char *path, const struct tar_entry *e, struct error *err) {
        _cleanup_fd_ int parent = -EBADF;
        const char *base;
        struct stat st;

        if (!*path)
                return 0; /* the destination itself, which was there before */
        int r = open_parent(u, path, &base, &parent, err);
        if (r < 0)
                return r;
        if (mkdirat(parent, base, 0700) < 0) {
                if (errno != EEXIST)
                        return error_errno(err, errno, "cannot make the folder \"%s\"", path);
                if (fstatat(parent, base, &st, AT_SYMLINK_NOFOLLOW) < 0 || !S_ISDIR(st.st_mode))
                        return error_set(err, -ENOTDIR, "\"%s\" is a folder in the archive and none here",
                                         path);
                return 0; /* one that was there keeps its mode, as with cp(1) */
        }
        return add_late(u, path, e, err);
}

static int make_file(struct unpacker *u, const char *path, const struct tar_entry *e, struct error *err) {
        _cleanup_fd_ int parent = -EBADF;
        const char *base;

        if (e->size > UNPACK_FILE_MAX)
                return error_set(err, -EFBIG, "refused: \"%s\" is larger than %llu TiB", path,
                                 UNPACK_FILE_MAX >> 40);
        int r = open_parent(u, path, &base, &parent, err);
        if (r == 0)
                r = make_room(parent, base, path, err);
        if (r < 0)
                return r;
        u->fd = openat(parent, base, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, e->mode & 0777);
        if (u->fd < 0)
                return error_errno(err, errno, "cannot make \"%s\"", path);
        u->path = mem_dup(path);
        u->offset = 0;
        u->mtime_s = e->mtime_s;
        u->mtime_ns = e->mtime_ns;
        return 0;
}

static int write_data(struct unpacker *u, const uint8_t *data, size_t n, struct error *err) {
        if (u->fd < 0)
                return 0; /* of something that was left out */
        if (fd_write_all(u->fd, data, n, err) < 0)
                return error_wrap(err, "cannot write \"%s\"", u->path);
        u->r.bytes += n;
        return 0;
}

static void finish_file(struct unpacker *u) {
        const struct timespec times[2] = { { .tv_nsec = UTIME_NOW },
                                           { .tv_sec = u->mtime_s, .tv_nsec = u->mtime_ns } };

        if (u->fd >= 0)
                (void) futimens(u->fd, times);
        u->fd = fd_close(u->fd);
        free(STEAL(u->path));
}

static int make_symlink(struct unpacker *u, const char *path, const struct tar_entry *e, struct error *err) {
        _cleanup_fd_ int parent = -EBADF;
        const char *base;

        int r = open_parent(u, path, &base, &parent, err);
        if (r == 0)
                r = make_room(parent, base, path, err);
        if (r < 0)
                return r;
        /* Where it points to does not matter: nothing is written through it. */
        if (symlinkat(e->link, parent, base) < 0)
                return error_errno(err, errno, "cannot make the link \"%s\"", path);
        return 0;
}

static int make_hardlink(struct unpacker *u, const char *path, const char *target, struct error *err) {
        _cleanup_fd_ int parent = -EBADF, other = -EBADF;
        _cleanup_free_ char *mapped = NULL;
        const char *base, *other_base;
        struct stat st;

        int r = map_name(u, target, &mapped, err);
        if (r == 0)
                r = open_parent(u, mapped, &other_base, &other, err);
        if (r < 0)
                return r;
        if (!*other_base || fstatat(other, other_base, &st, AT_SYMLINK_NOFOLLOW) < 0 || !S_ISREG(st.st_mode))
                return error_set(err, -EINVAL,
                                 "refused: \"%s\" is linked to \"%s\", which is no file of the archive", path,
                                 mapped);
        if (str_eq(path, mapped))
                return 0;
        r = open_parent(u, path, &base, &parent, err);
        if (r == 0)
                r = make_room(parent, base, path, err);
        if (r < 0)
                return r;
        if (linkat(other, other_base, parent, base, 0) < 0)
                return error_errno(err, errno, "cannot link \"%s\" to \"%s\"", path, mapped);
        return 0;
}

static int unpack_entry(struct unpacker *u, const struct tar_entry *e, struct error *err) {
        _cleanup_free_ char *path = NULL;

        if (++u->r.entries > UNPACK_ENTRIES_MAX)
                return error_set(err, -E2BIG, "refused: the archive has more than %u entries",
                                 UNPACK_ENTRIES_MAX);
        int r = map_name(u, e->name, &path, err);
        if (r < 0)
                return r;
        if (!*path && e->type != TAR_DIR)
                return error_set(err, -EINVAL, "refused: \"%s\" is no folder in the archive", e->name);
        switch (e->type) {
        case TAR_DIR:
                return make_dir(u, path, e, err);
        case TAR_FILE:
                return make_file(u, path, e, err);
        case TAR_SYMLINK:
                return make_symlink(u, path, e, err);
        case TAR_HARDLINK:
                return make_hardlink(u, path, e->link, err);
        case TAR_CHARDEV:
        case TAR_BLOCKDEV:
        case TAR_FIFO:
        case TAR_OTHER:
        default:
                cli_note("\"%s\" is left out: it is neither a file, a folder nor a link", path);
                u->r.skipped++;
                return 0;
        }
}

/* The last first: a folder before the one that holds it. */
static void finish_dirs(struct unpacker *u) {
        while (u->n_dirs > 0) {
                struct late_dir *d = &u->dirs[--u->n_dirs];
                _cleanup_fd_ int fd = fd_open_beneath(u->dirfd, d->path, O_DIRECTORY | O_RDONLY, 0, NULL);
                const struct timespec times[2] = { { .tv_nsec = UTIME_NOW }, d->mtime };

                if (fd >= 0) {
                        (void) fchmod(fd, d->mode);
                        (void) futimens(fd, times);
                }
                free(d->path);
        }
        free(u->dirs);
}

static int take_event(struct unpacker *u, const struct tar_event *ev, struct error *err) {
        switch (ev->type) {
        case TAR_ENTRY:
                return unpack_entry(u, ev->entry, err);
        case TAR_DATA:
                return write_data(u, ev->data, ev->n, err);
        case TAR_ENTRY_END:
                finish_file(u);
                return 0;
        case TAR_ERROR:
                return error_set(err, -EBADMSG, "the archive is damaged: %s", ev->reason);
        case TAR_NEED_DATA:
        case TAR_END:
        default:
                return 0;
        }
}

static int unpack_all(struct unpacker *u, struct tar_reader *reader, struct error *err) {
        const uint8_t *data = NULL;
        ssize_t n;

        /* Also what follows the end mark is read: only then the connection's proper end is known. */
        while ((n = u->source(u->arg, &data)) > 0) {
                struct tar_event ev = { .type = TAR_ENTRY };

                for (size_t at = 0, used = 0; ev.type != TAR_NEED_DATA; at += used) {
                        tar_read(reader, data + at, (size_t) n - at, &used, &ev);
                        int r = take_event(u, &ev, err);
                        if (r < 0)
                                return r;
                }
        }
        if (n < 0)
                return error_set(err, -ECANCELED, "the connection ended");
        return tar_reader_complete(reader) ? 0 : error_set(err, -EBADMSG, "the archive is cut short");
}

int unpack(int dirfd, const char *strip, const char *as, unpack_source source, void *arg,
           struct unpack_result *ret, struct error *err) {
        struct unpacker u = {
                .dirfd = dirfd, .strip = strip, .as = as, .source = source, .arg = arg, .fd = -EBADF
        };
        struct tar_reader *reader = tar_reader_new();

        u.umask = umask(0);
        umask(u.umask);
        int r = reader ? unpack_all(&u, reader, err) : error_set(err, -ENOMEM, "out of memory");
        finish_file(&u);
        finish_dirs(&u);
        tar_reader_free(reader);
        *ret = u.r;
        return r;
}
