/* SPDX-License-Identifier: Apache-2.0 */
#include "tar_unpack.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/fd.h"
#include "base/str.h"
#include "wire/tar.h"

struct made_link {
        dev_t dev;
        ino_t ino;
        bool used;
};

/* A folder that was made here: its mode and time are set last, or they would be in the way. */
struct made_dir {
        char *path;
        mode_t mode;
        uid_t uid;
        gid_t gid;
        struct timespec mtime;
        void *list; /* the access list that what is made in it inherits: set last too; NULL none */
        size_t list_n;
};

/* An extended attribute of the file under way, which are set when it is complete: a change of owner takes some away. */
struct attribute {
        char *name;
        void *value;
        size_t n;
};

struct tar_unpack {
        struct tar_reader *reader;
        int root;
        struct tar_unpack_how how;
        struct tar_unpack_result result;
        /* the folder of the last member */
        int parent;
        char parent_path[PATH_MAX];
        /* the file under way */
        int file;
        char base[NAME_MAX + 1];
        struct timespec mtime;
        mode_t mode;
        uid_t uid;
        gid_t gid;
        struct made_link *links; /* open addressing, power of two */
        size_t n_links, links_cap;
        struct made_dir *dirs;
        size_t n_dirs, dirs_cap;
        struct attribute *attributes;
        size_t n_attributes, lists_bytes;
        char *kept[TAR_UNPACK_KEPT_MAX];
        size_t n_kept;
};

/* --- links of this archive ------------------------------------------------------------------ */

static struct made_link *link_slot(struct made_link *v, size_t cap, dev_t dev, ino_t ino) {
        size_t i = (size_t) (ino * 0x9e3779b97f4a7c15ULL >> 20) & (cap - 1);
        while (v[i].used && (v[i].ino != ino || v[i].dev != dev))
                i = (i + 1) & (cap - 1);
        return &v[i];
}

static bool is_made_link(const struct tar_unpack *u, const struct stat *st) {
        return u->links_cap > 0 && link_slot(u->links, u->links_cap, st->st_dev, st->st_ino)->used;
}

static int remember_link(struct tar_unpack *u, int dirfd, const char *base, struct error *err) {
        struct stat st;
        if (u->n_links >= TAR_UNPACK_REMEMBER_MAX)
                return error_set(err, -ENOBUFS, "the archive has more than %u links", TAR_UNPACK_REMEMBER_MAX);
        if (2 * (u->n_links + 1) > u->links_cap) {
                size_t cap = u->links_cap ? 2 * u->links_cap : 64;
                struct made_link *v = calloc(cap, sizeof *v);
                if (!v)
                        return error_set(err, -ENOMEM, "out of memory");
                for (size_t i = 0; i < u->links_cap; i++)
                        if (u->links[i].used)
                                *link_slot(v, cap, u->links[i].dev, u->links[i].ino) = u->links[i];
                free(u->links);
                u->links = v;
                u->links_cap = cap;
        }
        if (fstatat(dirfd, base, &st, AT_SYMLINK_NOFOLLOW) < 0)
                return error_errno(err, errno, "cannot look at '%s'", base);
        struct made_link *l = link_slot(u->links, u->links_cap, st.st_dev, st.st_ino);
        u->n_links += !l->used;
        *l = (struct made_link){ .dev = st.st_dev, .ino = st.st_ino, .used = true };
        return 0;
}

/* --- extended attributes ---------------------------------------------------------------------- */

#define DEFAULT_LIST "system.posix_acl_default"

static bool is_settable(const char *name) {
        return str_has_prefix(name, "user.") || str_eq(name, "security.capability") || str_eq(name, "system.posix_acl_access");
}

static void drop_attributes(struct tar_unpack *u) {
        while (u->n_attributes > 0) {
                struct attribute *a = &u->attributes[--u->n_attributes];
                free(a->name);
                free(a->value);
        }
        free(u->attributes);
        u->attributes = NULL;
}

static int keep_attributes(struct tar_unpack *u, const struct tar_entry *e, struct error *err) {
        if (!u->how.owner || e->n_xattrs == 0)
                return 0;
        u->attributes = calloc(e->n_xattrs, sizeof *u->attributes);
        if (!u->attributes)
                return error_set(err, -ENOMEM, "out of memory");
        for (size_t i = 0; i < e->n_xattrs; i++) {
                const struct tar_xattr *x = &e->xattrs[i];
                struct attribute *a = &u->attributes[u->n_attributes++];
                *a = (struct attribute){ .name = strdup(x->name), .value = malloc(x->n ? x->n : 1), .n = x->n };
                if (!a->name || !a->value)
                        return error_set(err, -ENOMEM, "out of memory");
                if (x->n)
                        memcpy(a->value, x->value, x->n);
        }
        return 0;
}

/* Of a file or folder that is open, by its name in /proc: a folder is open with O_PATH alone. */
static void set_attributes(struct tar_unpack *u, int fd) {
        char self[32];
        (void) snprintf(self, sizeof self, "/proc/self/fd/%d", fd);
        for (size_t i = 0; i < u->n_attributes; i++) {
                const struct attribute *a = &u->attributes[i];
                if (str_eq(a->name, DEFAULT_LIST))
                        continue; /* with the folder's mode */
                u->result.xattrs_lost += !is_settable(a->name) || setxattr(self, a->name, a->value, a->n, 0) < 0;
        }
        drop_attributes(u);
}

/* To the folder that was remembered last. */
static void take_default_list(struct tar_unpack *u) {
        struct made_dir *d = &u->dirs[u->n_dirs - 1];
        for (size_t i = 0; i < u->n_attributes; i++) {
                struct attribute *a = &u->attributes[i];
                if (!str_eq(a->name, DEFAULT_LIST) || d->list)
                        continue;
                if (u->lists_bytes + a->n > TAR_UNPACK_LISTS_MAX) {
                        u->result.xattrs_lost++;
                        continue;
                }
                u->lists_bytes += a->n;
                d->list = STEAL(a->value);
                d->list_n = a->n;
        }
}

/* --- names ---------------------------------------------------------------------------------- */

/* Into folder ("" for the top) and base ("" for the top itself). */
static int split_name(const char *name, char dir[PATH_MAX], char base[NAME_MAX + 1], struct error *err) {
        char clean[PATH_MAX];
        size_t n = 0;
        if (*name == '/')
                return error_set(err, -EINVAL, "member '%.200s' has an absolute name", name);
        for (const char *p = name; *p;) {
                size_t part = strcspn(p, "/");
                if (part == 2 && p[0] == '.' && p[1] == '.')
                        return error_set(err, -EINVAL, "member '%.200s' has \"..\" in its name", name);
                if (part > NAME_MAX || n + part + 2 > sizeof clean)
                        return error_set(err, -ENAMETOOLONG, "member '%.200s' has a name that is too long", name);
                if (part > 0 && !(part == 1 && p[0] == '.')) {
                        if (n > 0)
                                clean[n++] = '/';
                        memcpy(clean + n, p, part);
                        n += part;
                }
                p += part + (p[part] == '/');
        }
        clean[n] = '\0';
        char *slash = strrchr(clean, '/');
        if (slash)
                *slash = '\0';
        (void) str_copy(base, NAME_MAX + 1, slash ? slash + 1 : clean);
        (void) str_copy(dir, PATH_MAX, slash ? clean : "");
        return 0;
}

static int remember_dir(struct tar_unpack *u, const char *path, struct error *err) {
        if (u->n_dirs >= TAR_UNPACK_REMEMBER_MAX)
                return error_set(err, -ENOBUFS, "the archive has more than %u folders", TAR_UNPACK_REMEMBER_MAX);
        if (u->n_dirs == u->dirs_cap) {
                size_t cap = u->dirs_cap ? 2 * u->dirs_cap : 32;
                struct made_dir *v = realloc(u->dirs, cap * sizeof *v);
                if (!v)
                        return error_set(err, -ENOMEM, "out of memory");
                u->dirs = v;
                u->dirs_cap = cap;
        }
        char *copy = strdup(path);
        if (!copy)
                return error_set(err, -ENOMEM, "out of memory");
        u->dirs[u->n_dirs++] = (struct made_dir){ .path = copy, .mode = u->mode, .uid = u->uid, .gid = u->gid, .mtime = u->mtime };
        take_default_list(u);
        return 0;
}

/* Those of a folder but for the list that others would inherit; `base` below the parent, "" for the top. */
static void set_dir_attributes(struct tar_unpack *u, const char *base) {
        if (u->n_attributes == 0)
                return;
        _cleanup_fd_ int fd = openat(*base ? u->parent : u->root, *base ? base : ".", O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
        if (fd >= 0)
                set_attributes(u, fd);
}

/* One step down. A missing folder is made when `make`. Returns the descriptor. */
static int step(struct tar_unpack *u, int dirfd, const char *part, bool make, struct error *err) {
        const int flags = O_PATH | O_DIRECTORY | O_CLOEXEC;
        int fd = openat(dirfd, part, flags | O_NOFOLLOW);
        if (fd < 0 && errno == ENOENT && make) {
                if (mkdirat(dirfd, part, 0755) < 0 && errno != EEXIST)
                        return error_errno(err, errno, "cannot make folder '%s'", part);
                fd = openat(dirfd, part, flags | O_NOFOLLOW);
        }
        if (fd >= 0)
                return fd;
        int e = errno;
        struct stat st;
        if (fstatat(dirfd, part, &st, AT_SYMLINK_NOFOLLOW) < 0 || !S_ISLNK(st.st_mode))
                return error_errno(err, e, "cannot enter folder '%s'", part);
        if (is_made_link(u, &st))
                return error_set(err, -ELOOP, "a member's name leads through '%s', a link of the same archive", part);
        if (u->how.owner) /* what is given away there might be anybody's */
                return error_set(err, -ELOOP, "a member's name leads through '%s', a link", part);
        fd = openat(dirfd, part, flags);
        return fd < 0 ? error_errno(err, errno, "cannot enter folder '%s'", part) : fd;
}

/* Opens folder `path` below the root. */
static int walk(struct tar_unpack *u, const char *path, bool make, struct error *err) {
        int fd = fcntl(u->root, F_DUPFD_CLOEXEC, 3);
        char part[NAME_MAX + 1];
        if (fd < 0)
                return error_errno(err, errno, "cannot open the folder");
        for (const char *p = path; *p;) {
                size_t n = strcspn(p, "/");
                memcpy(part, p, n);
                part[n] = '\0';
                int next = step(u, fd, part, make, err);
                fd_close(fd);
                if (next < 0)
                        return next;
                fd = next;
                p += n + (p[n] == '/');
        }
        return fd;
}

/* Makes u->parent the folder `dir`. */
static int enter(struct tar_unpack *u, const char *dir, struct error *err) {
        if (u->parent >= 0 && str_eq(u->parent_path, dir))
                return 0;
        int fd = walk(u, dir, true, err);
        if (fd < 0)
                return fd;
        fd_close(u->parent);
        u->parent = fd;
        (void) str_copy(u->parent_path, sizeof u->parent_path, dir);
        return 0;
}

/* --- members -------------------------------------------------------------------------------- */

/* What is in the place of the member stays. Returns KEPT. */
#define KEPT 1
static int keep(struct tar_unpack *u, struct error *err) {
        u->result.kept++;
        if (u->n_kept == TAR_UNPACK_KEPT_MAX)
                return KEPT;
        char *path = NULL;
        if (asprintf(&path, "%s%s%s", u->parent_path, *u->parent_path ? "/" : "", u->base) < 0)
                return error_set(err, -ENOMEM, "out of memory");
        u->kept[u->n_kept++] = path;
        return KEPT;
}

/* 0, or KEPT. */
static int clear_way(struct tar_unpack *u, const char *name, struct error *err) {
        struct stat st;
        if (unlinkat(u->parent, u->base, 0) == 0 || errno == ENOENT)
                return 0;
        int e = errno;
        bool folder = fstatat(u->parent, u->base, &st, AT_SYMLINK_NOFOLLOW) == 0 && S_ISDIR(st.st_mode);
        if (folder && u->how.owner) {
                if (unlinkat(u->parent, u->base, AT_REMOVEDIR) == 0)
                        return 0;
                e = errno == ENOTEMPTY || errno == EEXIST ? EBUSY : errno;
        }
        if (e == EBUSY && u->how.owner)
                return keep(u, err);
        if (folder)
                return error_set(err, -EISDIR, "a folder is in the way of '%.200s': move it or remove it first", name);
        return error_errno(err, e, "cannot replace '%.200s'", name);
}

/* What is in a folder's way and is none. */
static int replace_other(struct tar_unpack *u, const char *name, struct error *err) {
        struct stat st;
        if (fstatat(u->parent, u->base, &st, AT_SYMLINK_NOFOLLOW) < 0 || S_ISDIR(st.st_mode))
                return 0;
        if (unlinkat(u->parent, u->base, 0) < 0)
                return error_errno(err, errno, "cannot replace '%.200s' by a folder", name);
        return 0;
}

static int make_dir(struct tar_unpack *u, const struct tar_entry *e, const char *dir, struct error *err) {
        int cleared = u->how.owner ? replace_other(u, e->name, err) : 0;
        if (cleared < 0)
                return cleared;
        if (mkdirat(u->parent, u->base, 0700) < 0) {
                int r = errno;
                struct stat st;
                if (r != EEXIST)
                        return error_errno(err, r, "cannot make folder '%.200s'", e->name);
                if (fstatat(u->parent, u->base, &st, AT_SYMLINK_NOFOLLOW) == 0 && S_ISLNK(st.st_mode) && is_made_link(u, &st))
                        return error_set(err, -ELOOP, "folder '%.200s' is a link of the same archive", e->name);
                if (fstatat(u->parent, u->base, &st, u->how.owner ? AT_SYMLINK_NOFOLLOW : 0) < 0 || !S_ISDIR(st.st_mode))
                        return error_set(err, -ENOTDIR, "'%.200s' is there already and is no folder", e->name);
                if (!u->how.owner)
                        return 0; /* it was there: it stays as it is */
        }
        char path[2 * PATH_MAX];
        (void) str_copy(path, sizeof path, dir);
        size_t n = strlen(path);
        if (n > 0)
                path[n++] = '/';
        (void) str_copy(path + n, sizeof path - n, u->base);
        int r = remember_dir(u, path, err);
        if (r == 0)
                set_dir_attributes(u, u->base);
        return r;
}

/* What was just made as u->base, to its owner. */
static int give_away(const struct tar_unpack *u, const char *name, struct error *err) {
        if (u->how.owner && fchownat(u->parent, u->base, u->uid, u->gid, AT_SYMLINK_NOFOLLOW) < 0)
                return error_errno(err, errno, "cannot set the owner of '%.200s'", name);
        return 0;
}

static int make_symlink(struct tar_unpack *u, const struct tar_entry *e, struct error *err) {
        int r = clear_way(u, e->name, err);
        if (r != 0)
                return r;
        if (symlinkat(e->link, u->parent, u->base) < 0)
                return error_errno(err, errno, "cannot make link '%.200s'", e->name);
        r = give_away(u, e->name, err);
        if (r < 0)
                return r;
        struct timespec times[2] = { { .tv_nsec = UTIME_OMIT }, u->mtime };
        (void) utimensat(u->parent, u->base, times, AT_SYMLINK_NOFOLLOW);
        return remember_link(u, u->parent, u->base, err);
}

static int make_hardlink(struct tar_unpack *u, const struct tar_entry *e, struct error *err) {
        char dir[PATH_MAX], base[NAME_MAX + 1];
        struct stat st;
        int r = split_name(e->link, dir, base, err);
        if (r < 0)
                return r;
        _cleanup_fd_ int from = walk(u, dir, false, err);
        if (from < 0)
                return from;
        if (fstatat(from, base, &st, AT_SYMLINK_NOFOLLOW) < 0)
                return error_errno(err, errno, "cannot link '%.200s' to '%.200s'", e->name, e->link);
        if (S_ISDIR(st.st_mode) && u->how.owner)
                return keep(u, err); /* as the first name of the file was */
        struct stat own;
        if (fstatat(u->parent, u->base, &own, AT_SYMLINK_NOFOLLOW) == 0 && own.st_ino == st.st_ino &&
            own.st_dev == st.st_dev)
                return 0; /* the same file already */
        r = clear_way(u, e->name, err);
        if (r == 0 && linkat(from, base, u->parent, u->base, 0) < 0)
                r = error_errno(err, errno, "cannot link '%.200s' to '%.200s'", e->name, e->link);
        return r;
}

static int begin_file(struct tar_unpack *u, const struct tar_entry *e, struct error *err) {
        int r = clear_way(u, e->name, err);
        if (r != 0)
                return r;
        u->file = openat(u->parent, u->base, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
        if (u->file < 0) {
                u->file = -EBADF;
                return error_errno(err, errno, "cannot write '%.200s'", e->name);
        }
        return 0;
}

static int begin(struct tar_unpack *u, const struct tar_entry *e, struct error *err) {
        char dir[PATH_MAX];
        if (++u->result.entries > TAR_UNPACK_ENTRIES_MAX)
                return error_set(err, -ENOBUFS, "the archive has more than %u members", TAR_UNPACK_ENTRIES_MAX);
        int r = split_name(e->name, dir, u->base, err);
        if (r < 0)
                return r;
        u->mode = e->mode & (u->how.set_id ? 07777 : 01777);
        if (u->how.owner && (e->uid >= UINT32_MAX || e->gid >= UINT32_MAX))
                return error_set(err, -EINVAL, "member '%.200s' has an owner that nobody can be", e->name);
        u->uid = (uid_t) e->uid;
        u->gid = (gid_t) e->gid;
        u->mtime = (struct timespec){ .tv_sec = e->mtime_s, .tv_nsec = e->mtime_ns };
        drop_attributes(u);
        r = keep_attributes(u, e, err);
        if (r < 0)
                return r;
        if (!u->base[0]) { /* "./": the folder itself */
                r = u->how.owner && e->type == TAR_DIR ? remember_dir(u, "", err) : 0;
                if (r == 0)
                        set_dir_attributes(u, "");
                return r;
        }
        if (u->how.as && !dir[0])
                (void) str_copy(u->base, sizeof u->base, u->how.as);
        r = enter(u, dir, err);
        if (r < 0)
                return r;
        switch (e->type) {
        case TAR_FILE:
                return begin_file(u, e, err);
        case TAR_DIR:
                return make_dir(u, e, dir, err);
        case TAR_SYMLINK:
                return make_symlink(u, e, err);
        case TAR_HARDLINK:
                return make_hardlink(u, e, err);
        case TAR_FIFO:
                r = clear_way(u, e->name, err);
                if (r == 0 && mkfifoat(u->parent, u->base, u->mode & 0777) < 0)
                        r = error_errno(err, errno, "cannot make pipe '%.200s'", e->name);
                return r != 0 ? r : give_away(u, e->name, err);
        case TAR_CHARDEV:
        case TAR_BLOCKDEV:
        case TAR_OTHER:
        default:
                u->result.skipped++;
                return 0;
        }
}

static int data(struct tar_unpack *u, const uint8_t *p, size_t n, struct error *err) {
        if (u->file < 0)
                return 0;
        u->result.bytes += n;
        return fd_write_all(u->file, p, n, err) < 0 ? error_wrap(err, "cannot write '%s'", u->base) : 0;
}

static int end_file(struct tar_unpack *u, struct error *err) {
        if (u->file < 0)
                return 0;
        struct timespec times[2] = { { .tv_nsec = UTIME_OMIT }, u->mtime };
        int r = give_away(u, u->base, err);
        if (r == 0 && fchmod(u->file, u->mode) < 0) /* after the owner, which takes set-id bits away */
                r = error_errno(err, errno, "cannot set the mode of '%s'", u->base);
        if (r == 0)
                set_attributes(u, u->file);
        (void) futimens(u->file, times);
        if (close(fd_steal(&u->file)) < 0 && r == 0)
                r = error_errno(err, errno, "cannot write '%s'", u->base);
        return r;
}

/* --- the stream ----------------------------------------------------------------------------- */

/* Where it was that it broke off the message says; this is what there is. */
static int tell_rest(const struct tar_unpack *u, struct error *err) {
        if (!u->how.owner || u->result.entries < 2)
                return err->code;
        struct error e = *err;
        return error_set(err, e.code, "%.*s; what comes before it in the archive is there: %llu entries", ERROR_MSG_MAX - 100, e.msg,
                         (unsigned long long) u->result.entries - 1);
}

int tar_unpack_write(struct tar_unpack *u, const uint8_t *p, size_t n, struct error *err) {
        struct tar_event ev;
        int r = 0;
        do {
                size_t used = 0;
                tar_read(u->reader, p, n, &used, &ev);
                p += used;
                n -= used;
                switch (ev.type) {
                case TAR_ENTRY:
                        r = begin(u, ev.entry, err);
                        r = r == KEPT ? 0 : r;
                        break;
                case TAR_DATA:
                        r = data(u, ev.data, ev.n, err);
                        break;
                case TAR_ENTRY_END:
                        r = end_file(u, err);
                        break;
                case TAR_ERROR:
                        return error_set(err, -EPROTO, "the archive is not valid: %s", ev.reason);
                case TAR_NEED_DATA:
                case TAR_END:
                default:
                        break;
                }
        } while (r == 0 && ev.type != TAR_NEED_DATA && !(ev.type == TAR_END && n == 0));
        return r < 0 ? tell_rest(u, err) : r;
}

int tar_unpack_finish(struct tar_unpack *u, struct tar_unpack_result *ret, struct error *err) {
        if (!tar_reader_complete(u->reader))
                return error_set(err, -EPROTO, "the archive was cut short");
        while (u->n_dirs > 0) {
                struct made_dir *d = &u->dirs[--u->n_dirs];
                struct error ignored;
                int fd = walk(u, d->path, false, &ignored);
                char self[32];
                if (fd >= 0) {
                        struct timespec times[2] = { { .tv_nsec = UTIME_OMIT }, d->mtime };
                        (void) snprintf(self, sizeof self, "/proc/self/fd/%d", fd);
                        if (!u->how.owner || chown(self, d->uid, d->gid) == 0)
                                (void) chmod(self, d->mode);
                        if (d->list)
                                u->result.xattrs_lost += setxattr(self, DEFAULT_LIST, d->list, d->list_n, 0) < 0;
                        (void) utimensat(AT_FDCWD, self, times, 0);
                        fd_close(fd);
                }
                free(d->path);
                free(d->list);
        }
        *ret = u->result;
        return 0;
}

int tar_unpack_open(const char *dir, const struct tar_unpack_how *how, struct tar_unpack **ret, struct error *err) {
        struct tar_unpack *u = calloc(1, sizeof *u);
        if (!u || !(u->reader = tar_reader_new())) {
                free(u);
                return error_set(err, -ENOMEM, "out of memory");
        }
        u->how = *how;
        u->parent = u->file = -EBADF;
        u->root = open(dir, O_PATH | O_DIRECTORY | O_CLOEXEC);
        if (u->root < 0) {
                int r = error_errno(err, errno, "cannot open folder '%s'", dir);
                u->root = -EBADF;
                tar_unpack_free(u);
                return r;
        }
        *ret = u;
        return 0;
}

const char *const *tar_unpack_kept(const struct tar_unpack *u, size_t *ret_n) {
        *ret_n = u->n_kept;
        return (const char *const *) u->kept;
}

void tar_unpack_free(struct tar_unpack *u) {
        if (!u)
                return;
        if (u->file >= 0)
                (void) unlinkat(u->parent, u->base, 0);
        fd_close(u->file);
        fd_close(u->parent);
        fd_close(u->root);
        while (u->n_dirs > 0) {
                free(u->dirs[--u->n_dirs].path);
                free(u->dirs[u->n_dirs].list);
        }
        drop_attributes(u);
        while (u->n_kept > 0)
                free(u->kept[--u->n_kept]);
        free(u->dirs);
        free(u->links);
        tar_reader_free(u->reader);
        free(u);
}
