/* SPDX-License-Identifier: Apache-2.0 */
#include "fsop.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "base/fd.h"
#include "base/str.h"
#include "entry.h"
#include "path.h"

/* --- folders -------------------------------------------------------------------------------- */

static int make_dir(const char *path, const struct user *owner, struct error *err) {
        if (mkdir(path, 0755) == 0) {
                if (owner && lchown(path, owner->uid, owner->gid) < 0)
                        return error_errno(err, errno, "cannot give folder '%s' to %s", path, owner->name);
                return 0;
        }
        int e = errno;
        struct stat st;
        if (e == EEXIST && stat(path, &st) == 0 && S_ISDIR(st.st_mode))
                return 0;
        return error_errno(err, e == EEXIST ? ENOTDIR : e, "cannot make folder '%s'", path);
}

int fsop_mkdirs(const char *path, const struct user *owner, struct error *err) {
        char part[PATH_MAX];
        struct stat st;
        if (stat(path, &st) == 0 && S_ISDIR(st.st_mode))
                return 0;
        if (str_copy(part, sizeof part, path) < 0)
                return error_set(err, -ENAMETOOLONG, "the path is longer than %d bytes", PATH_MAX - 1);
        for (char *p = part + 1; *p; p++) {
                if (*p != '/')
                        continue;
                *p = '\0';
                int r = stat(part, &st) == 0 && S_ISDIR(st.st_mode) ? 0 : make_dir(part, owner, err);
                if (r < 0)
                        return r;
                *p = '/';
        }
        return make_dir(part, owner, err);
}

int fsop_make_parents(const char *path, const struct user *owner, struct error *err) {
        char dir[PATH_MAX];
        if (path_dir(path, dir) < 0)
                return error_set(err, -ENAMETOOLONG, "the path is longer than %d bytes", PATH_MAX - 1);
        return fsop_mkdirs(dir, owner, err);
}

/* --- removal -------------------------------------------------------------------------------- */

#define DEPTH_MAX 200 /* open folders; what lies deeper is moved up to the top and comes later */

struct removal {
        int top;
        unsigned long moved;
        struct error *err;
};

static int remove_contents(struct removal *rm, int dirfd, unsigned depth);

static int remove_dir(struct removal *rm, int parent, const char *name, unsigned depth) {
        if (depth > DEPTH_MAX) {
                char up[48];
                (void) snprintf(up, sizeof up, ".cspace-rm-%d-%lu", (int) getpid(), rm->moved++);
                if (renameat(parent, name, rm->top, up) < 0)
                        return error_errno(rm->err, errno, "cannot remove '%s'", name);
                return 0;
        }
        int fd = openat(parent, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
        if (fd < 0)
                return errno == ENOENT ? 0 : error_errno(rm->err, errno, "cannot open folder '%s'", name);
        int r = remove_contents(rm, fd, depth + 1);
        if (r == 0 && unlinkat(parent, name, AT_REMOVEDIR) < 0 && errno != ENOENT)
                return error_errno(rm->err, errno, "cannot remove folder '%s'", name);
        return r;
}

/* Takes dirfd. */
static int remove_contents(struct removal *rm, int dirfd, unsigned depth) {
        DIR *d = fdopendir(dirfd);
        if (!d) {
                fd_close(dirfd);
                return error_errno(rm->err, errno, "cannot read a folder");
        }
        int r = 0;
        bool again = true;
        while (r == 0 && again) { /* entries that were moved up appear in the top folder */
                unsigned long moved = rm->moved;
                rewinddir(d);
                for (struct dirent *de; r == 0 && (de = readdir(d));) {
                        if (str_eq(de->d_name, ".") || str_eq(de->d_name, ".."))
                                continue;
                        if (de->d_type != DT_DIR && unlinkat(dirfd, de->d_name, 0) == 0)
                                continue;
                        if (de->d_type != DT_DIR && errno != EISDIR && errno != ENOENT)
                                r = error_errno(rm->err, errno, "cannot remove '%s'", de->d_name);
                        else
                                r = remove_dir(rm, dirfd, de->d_name, depth);
                }
                again = depth == 1 && rm->moved != moved;
        }
        closedir(d);
        return r;
}

int fsop_remove(const char *path, struct error *err) {
        if (str_eq(path, "/"))
                return error_set(err, -EBUSY, "the root folder cannot be removed");
        struct stat st;
        if (lstat(path, &st) < 0)
                return errno == ENOENT || errno == ENOTDIR ? 0 : error_errno(err, errno, "path '%s'", path);
        if (!S_ISDIR(st.st_mode))
                return unlink(path) < 0 && errno != ENOENT ? error_errno(err, errno, "cannot remove '%s'", path) : 0;
        struct error e = ERROR_INIT;
        struct removal rm = { .err = &e };
        rm.top = open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
        if (rm.top < 0)
                return error_errno(err, errno, "cannot open folder '%s'", path);
        int mine = fcntl(rm.top, F_DUPFD_CLOEXEC, 3);
        int r = mine < 0 ? error_errno(&e, errno, "cannot open folder '%s'", path) : remove_contents(&rm, mine, 1);
        fd_close(rm.top);
        if (r == 0 && rmdir(path) < 0 && errno != ENOENT)
                r = error_errno(&e, errno, "cannot remove folder '%s'", path);
        if (r < 0 && err)
                *err = e;
        return r;
}

/* --- listing -------------------------------------------------------------------------------- */

void fsop_names_free(char **names) {
        for (char **p = names; p && *p; p++)
                free(*p);
        free(names);
}

static int by_name(const void *a, const void *b) {
        return strcmp(*(char *const *) a, *(char *const *) b);
}

int fsop_names(int dirfd, char ***ret, size_t *ret_n, struct error *err) {
        int fd = openat(dirfd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        DIR *d = fd < 0 ? NULL : fdopendir(fd);
        if (!d) {
                fd_close(fd);
                return error_errno(err, errno, "cannot read a folder");
        }
        char **names = calloc(1, sizeof *names);
        size_t n = 0, cap = 1;
        int r = names ? 0 : -ENOMEM;
        for (struct dirent *de; r == 0 && (errno = 0, de = readdir(d));) {
                if (str_eq(de->d_name, ".") || str_eq(de->d_name, ".."))
                        continue;
                if (n >= FSOP_DIR_MAX) {
                        r = error_set(err, -ENOBUFS, "a folder has more than %u entries", FSOP_DIR_MAX);
                        break;
                }
                if (n + 1 >= cap) {
                        char **more = realloc(names, (cap = 2 * cap + 32) * sizeof *names);
                        if (!more) {
                                r = error_set(err, -ENOMEM, "out of memory");
                                break;
                        }
                        names = more;
                }
                names[n] = strdup(de->d_name);
                if (!names[n])
                        r = error_set(err, -ENOMEM, "out of memory");
                else
                        names[++n] = NULL;
        }
        closedir(d);
        if (r < 0) {
                fsop_names_free(names);
                return r;
        }
        qsort(names, n, sizeof *names, by_name);
        *ret = names;
        *ret_n = n;
        return 0;
}

struct listing {
        struct user_names *names;
        struct buf *out;
        bool e2b;
        size_t n;
        struct entry e; /* large, so not on the stack of each level */
        struct error *err;
};

static int list_dir(struct listing *l, const char *real, const char *shown, unsigned depth);

static int list_entry(struct listing *l, const char *real, const char *shown, unsigned depth) {
        if (entry_read(real, &l->e, l->err) < 0)
                return 0; /* gone since the folder was read */
        bool descend = S_ISDIR(l->e.st.st_mode) && depth > 1;
        if (l->n++ >= FSOP_LIST_MAX)
                return error_set(l->err, -ENOBUFS, "the listing has more than %u entries", FSOP_LIST_MAX);
        (void) str_copy(l->e.path, sizeof l->e.path, shown);
        int r = l->n > 1 ? buf_puts(l->out, ",") : 0;
        if (r == 0)
                r = l->e2b ? entry_json_e2b(&l->e, l->names, l->out) : entry_json(&l->e, false, l->names, l->out);
        if (r < 0)
                return error_set(l->err, r, "the listing is too large");
        return descend ? list_dir(l, real, shown, depth - 1) : 0;
}

static int list_dir(struct listing *l, const char *real, const char *shown, unsigned depth) {
        _cleanup_fd_ int fd = open(real, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        if (fd < 0)
                return l->n == 0 ? error_errno(l->err, errno, "cannot read folder '%s'", shown) : 0;
        char **names = NULL;
        size_t n = 0;
        int r = fsop_names(fd, &names, &n, l->err);
        for (size_t i = 0; r == 0 && i < n; i++) {
                char *paths = malloc(2 * PATH_MAX);
                if (!paths)
                        r = error_set(l->err, -ENOMEM, "out of memory");
                else if (path_join(real, names[i], paths) == 0 && path_join(shown, names[i], paths + PATH_MAX) == 0)
                        r = list_entry(l, paths, paths + PATH_MAX, depth);
                free(paths);
        }
        fsop_names_free(names);
        return r;
}

int fsop_list(const char *path, unsigned depth, bool e2b, struct buf *out, struct error *err) {
        struct stat st;
        char real[PATH_MAX];
        if (!realpath(path, real) || stat(real, &st) < 0)
                return error_errno(err, errno, "path '%s'", path);
        if (!S_ISDIR(st.st_mode))
                return error_set(err, -ENOTDIR, "path is not a directory: %s", path);
        struct listing *l = calloc(1, sizeof *l);
        struct user_names *names = user_names_load();
        int r = l && names ? buf_puts(out, "[") : -ENOMEM;
        if (r == 0) {
                *l = (struct listing){ .names = names, .out = out, .e2b = e2b, .err = err };
                r = list_dir(l, real, path, depth);
                if (r == 0)
                        r = buf_puts(out, "]");
        } else
                (void) error_set(err, -ENOMEM, "out of memory");
        user_names_free(names);
        free(l);
        return r;
}

bool fsop_is_network(const char *path) {
        struct statfs fs;
        if (statfs(path, &fs) < 0)
                return false;
        switch ((unsigned long) fs.f_type & 0xffffffffUL) {
        case 0x6969:     /* NFS */
        case 0xff534d42: /* CIFS */
        case 0xfe534d42: /* SMB2 */
        case 0x517b:     /* SMB */
        case 0x65735546: /* FUSE */
                return true;
        default:
                return false;
        }
}

/* --- opening -------------------------------------------------------------------------------- */

int fsop_open_write(const char *path, mode_t mode, const struct user *owner, int *ret_fd, bool *ret_created,
                    struct error *err) {
        /* O_NONBLOCK: a fifo without a reader must not hold the thread. */
        const int flags = O_WRONLY | O_NOCTTY | O_NONBLOCK | O_CLOEXEC;
        bool created = false;
        /* First without O_CREAT: with it the kernel refuses others' files in /tmp, also to root
         * (fs.protected_regular). */
        _cleanup_fd_ int fd = open(path, flags);
        if (fd < 0 && errno == ENOENT) {
                created = true;
                fd = open(path, flags | O_CREAT | O_EXCL, mode);
        }
        if (fd < 0 && errno == EEXIST)
                fd = open(path, flags | O_CREAT, mode); /* a link to a file that is not there yet */
        if (fd < 0)
                return errno == ENXIO ? error_set(err, -EINVAL, "'%s' is not a regular file", path)
                                      : error_errno(err, errno, "cannot write '%s'", path);
        struct stat st;
        if (fstat(fd, &st) < 0)
                return error_errno(err, errno, "cannot write '%s'", path);
        if (!S_ISREG(st.st_mode))
                return error_set(err, -EINVAL, "'%s' is not a regular file", path);
        if (owner && (st.st_uid != owner->uid || st.st_gid != owner->gid) && fchown(fd, owner->uid, owner->gid) < 0)
                return error_errno(err, errno, "cannot give '%s' to %s", path, owner->name);
        if (!created && ftruncate(fd, 0) < 0)
                return error_errno(err, errno, "cannot truncate '%s'", path);
        *ret_created = created;
        *ret_fd = fd_steal(&fd);
        return 0;
}

int fsop_open_read(const char *path, int *ret_fd, struct stat *ret_st, struct error *err) {
        _cleanup_fd_ int fd = open(path, O_RDONLY | O_NOCTTY | O_NONBLOCK | O_CLOEXEC);
        struct stat st;
        if (fd < 0 && errno == ENXIO)
                return error_set(err, -EINVAL, "'%s' is not a regular file", path);
        if (fd < 0 || fstat(fd, &st) < 0)
                return error_errno(err, errno, "cannot read '%s'", path);
        if (S_ISDIR(st.st_mode))
                return error_set(err, -EISDIR, "path '%s' is a directory", path);
        if (!S_ISREG(st.st_mode))
                return error_set(err, -EINVAL, "'%s' is not a regular file", path);
        *ret_st = st;
        *ret_fd = fd_steal(&fd);
        return 0;
}
