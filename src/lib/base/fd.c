/* SPDX-License-Identifier: Apache-2.0 */
#include "base/fd.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/fs.h>
#include <linux/openat2.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/id.h"
#include "base/limits.h"

#define TREE_DEPTH_MAX 128 /* levels fd_remove_tree_at() descends at one time; two descriptors each */

int fd_close(int fd) {
        if (fd >= 0) {
                int saved = errno;
                (void) close(fd);
                errno = saved;
        }
        return -EBADF;
}

void fd_closep(int *fd) {
        *fd = fd_close(*fd);
}

int fd_steal(int *fd) {
        int v = *fd;
        *fd = -EBADF;
        return v;
}

int fd_nonblock(int fd, struct error *err) {
        int flags = fcntl(fd, F_GETFL);
        if (flags < 0 || fcntl(fd, F_SETFL, flags | O_NONBLOCK) < 0)
                return error_errno(err, errno, "cannot make descriptor %d non-blocking", fd);
        return 0;
}

int fd_cloexec(int fd, int on, struct error *err) {
        int flags = fcntl(fd, F_GETFD);
        if (flags < 0 || fcntl(fd, F_SETFD, on ? flags | FD_CLOEXEC : flags & ~FD_CLOEXEC) < 0)
                return error_errno(err, errno, "cannot set close-on-exec of descriptor %d", fd);
        return 0;
}

int fd_write_all(int fd, const void *data, size_t n, struct error *err) {
        const uint8_t *p = data;
        while (n > 0) {
                ssize_t w = write(fd, p, n);
                if (w < 0) {
                        if (errno == EINTR)
                                continue;
                        return error_errno(err, errno, "write failed");
                }
                p += w;
                n -= (size_t) w;
        }
        return 0;
}

int fd_pread_all(int fd, void *data, size_t n, uint64_t at) {
        for (size_t got = 0; got < n;) {
                ssize_t r = pread(fd, (char *) data + got, n - got, (off_t) (at + got));
                if (r < 0 && errno == EINTR)
                        continue;
                if (r <= 0)
                        return r < 0 ? -errno : -EIO;
                got += (size_t) r;
        }
        return 0;
}

int fd_pwrite_all(int fd, const void *data, size_t n, uint64_t at) {
        for (size_t put = 0; put < n;) {
                ssize_t r = pwrite(fd, (const char *) data + put, n - put, (off_t) (at + put));
                if (r < 0 && errno == EINTR)
                        continue;
                if (r <= 0)
                        return r < 0 ? -errno : -EIO;
                put += (size_t) r;
        }
        return 0;
}

int fd_open_beneath(int dirfd, const char *path, int flags, mode_t mode, struct error *err) {
        struct open_how how = {
                .flags = (uint64_t) (unsigned) (flags | O_CLOEXEC),
                .mode = flags & (O_CREAT | O_TMPFILE) ? mode : 0,
                .resolve = RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS | RESOLVE_NO_MAGICLINKS,
        };
        for (int tries = 0; tries < 16; tries++) {
                long fd = syscall(SYS_openat2, dirfd, path, &how, sizeof how);
                if (fd >= 0)
                        return (int) fd;
                if (errno != EAGAIN && errno != EINTR) /* EAGAIN: a rename raced with the walk */
                        break;
        }
        return error_errno(err, errno, "cannot open \"%s\"", path);
}

static int read_whole(int fd, const char *path, size_t max, char **ret, size_t *ret_n, struct error *err) {
        size_t cap = 4096, n = 0;
        _cleanup_free_ char *data = malloc(cap);
        if (!data)
                return error_set(err, -ENOMEM, "out of memory reading \"%s\"", path);
        for (;;) {
                if (n + 1 == cap) {
                        char *more = realloc(data, cap * 2);
                        if (!more)
                                return error_set(err, -ENOMEM, "out of memory reading \"%s\"", path);
                        data = more;
                        cap *= 2;
                }
                ssize_t r = read(fd, data + n, cap - n - 1);
                if (r < 0 && errno == EINTR)
                        continue;
                if (r < 0)
                        return error_errno(err, errno, "cannot read \"%s\"", path);
                if (r == 0)
                        break;
                n += (size_t) r;
                if (n > max)
                        return error_set(err, -EFBIG, "\"%s\" is larger than the limit of %zu bytes", path,
                                         max);
        }
        data[n] = '\0';
        *ret = STEAL(data);
        if (ret_n)
                *ret_n = n;
        return 0;
}

int fd_read_file_at(int dirfd, const char *path, size_t max, char **ret, size_t *ret_n, struct error *err) {
        _cleanup_fd_ int fd = openat(dirfd, path, O_RDONLY | O_CLOEXEC | O_NOCTTY);
        return fd < 0 ? error_errno(err, errno, "cannot open \"%s\"", path) : read_whole(fd, path, max, ret, ret_n, err);
}

int fd_read_regular_at(int dirfd, const char *path, size_t max, char **ret, size_t *ret_n, struct error *err) {
        struct stat st;
        _cleanup_fd_ int fd = openat(dirfd, path, O_RDONLY | O_NONBLOCK | O_CLOEXEC | O_NOCTTY);
        if (fd < 0 || fstat(fd, &st) < 0)
                return error_errno(err, errno, "cannot open \"%s\"", path);
        if (!S_ISREG(st.st_mode))
                return error_set(err, -EINVAL, "\"%s\" is not a regular file", path);
        return read_whole(fd, path, max, ret, ret_n, err);
}

/* fsync of the directory that holds path, which makes a rename in it durable. */
static int sync_parent(int dirfd, const char *path, struct error *err) {
        char dir[LIMIT_PATH];
        const char *slash = strrchr(path, '/');
        size_t n = slash ? (size_t) (slash - path) : 0;
        if (n >= sizeof dir)
                return error_set(err, -ENAMETOOLONG, "path too long: \"%s\"", path);
        memcpy(dir, path, n);
        dir[n] = '\0';
        const char *name = n > 0 ? dir : slash ? "/" : ".";
        _cleanup_fd_ int fd = openat(dirfd, name, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        if (fd < 0 || fsync(fd) < 0)
                return error_errno(err, errno, "cannot sync directory \"%s\"", name);
        return 0;
}

static int write_temporary(int dirfd, const char *tmp, const void *data, size_t n, mode_t mode,
                           struct error *err) {
        _cleanup_fd_ int fd = openat(dirfd, tmp, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, mode);
        if (fd < 0)
                return error_errno(err, errno, "cannot create \"%s\"", tmp);
        int r = fd_write_all(fd, data, n, err);
        if (r < 0)
                return error_wrap(err, "\"%s\"", tmp);
        if (fchmod(fd, mode) < 0 || fsync(fd) < 0)
                return error_errno(err, errno, "cannot sync \"%s\"", tmp);
        return 0;
}

int fd_replace_file_at(int dirfd, const char *path, const void *data, size_t n, mode_t mode,
                       struct error *err) {
        char tmp[LIMIT_PATH], id[ID_SIZE];
        int r = id_new(id);
        if (r < 0)
                return error_errno(err, r, "no random bytes");
        if (snprintf(tmp, sizeof tmp, "%s.%.8s.tmp", path, id) >= (int) sizeof tmp)
                return error_set(err, -ENAMETOOLONG, "path too long: \"%s\"", path);
        r = write_temporary(dirfd, tmp, data, n, mode, err);
        if (r == 0 && renameat(dirfd, tmp, dirfd, path) < 0)
                r = error_errno(err, errno, "cannot rename to \"%s\"", path);
        if (r < 0) {
                (void) unlinkat(dirfd, tmp, 0);
                return r;
        }
        return sync_parent(dirfd, path, err);
}

int fd_mkdir_p_at(int dirfd, const char *path, mode_t mode, struct error *err) {
        char copy[LIMIT_PATH];
        size_t n = strlen(path);
        if (n >= sizeof copy)
                return error_set(err, -ENAMETOOLONG, "path too long: \"%s\"", path);
        memcpy(copy, path, n + 1);
        int at = dirfd;
        _cleanup_fd_ int held = -EBADF;
        char *save = NULL;
        if (copy[0] == '/') {
                held = open("/", O_PATH | O_DIRECTORY | O_CLOEXEC);
                if (held < 0)
                        return error_errno(err, errno, "cannot open /");
                at = held;
        }
        for (char *part = strtok_r(copy, "/", &save); part; part = strtok_r(NULL, "/", &save)) {
                if (strcmp(part, "..") == 0)
                        return error_set(err, -EINVAL, "\"..\" in path \"%s\"", path);
                if (mkdirat(at, part, mode) < 0 && errno != EEXIST)
                        return error_errno(err, errno, "cannot create directory \"%s\" of \"%s\"", part, path);
                int next = openat(at, part, O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
                if (next < 0)
                        return error_errno(err, errno, "cannot open directory \"%s\" of \"%s\"", part, path);
                fd_closep(&held);
                held = at = next;
        }
        return 0;
}

struct removal {
        dev_t dev;      /* never left */
        int top;        /* directory at the root of what is removed */
        unsigned moved; /* directories that were too deep and now hang there */
};

static int remove_children(struct removal *x, int fd, unsigned depth, struct error *err);

/* Whoever fills a tree chooses its depth; what lies deeper than we descend is brought up to be
 * found in the next pass. */
static int move_to_top(struct removal *x, int fd, const char *name, struct error *err) {
        char to[32];
        do
                (void) snprintf(to, sizeof to, ".deep.%u", x->moved++);
        while (renameat(fd, name, x->top, to) < 0 && (errno == ENOTEMPTY || errno == EEXIST || errno == ENOTDIR) &&
               x->moved < UINT32_MAX);
        struct stat st;
        if (fstatat(fd, name, &st, AT_SYMLINK_NOFOLLOW) == 0)
                return error_set(err, -ELOOP, "cannot move \"%s\", more than %d levels deep", name, TREE_DEPTH_MAX);
        return 0;
}

/* Removes one entry of the directory fd. */
static int remove_entry(struct removal *x, int fd, const char *name, unsigned depth, struct error *err) {
        if (unlinkat(fd, name, 0) == 0 || errno == ENOENT)
                return 0;
        if (errno != EISDIR && errno != EPERM)
                return error_errno(err, errno, "cannot remove \"%s\"", name);
        _cleanup_fd_ int child = openat(fd, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
        if (child < 0)
                return errno == ENOENT ? 0 : error_errno(err, errno, "cannot open \"%s\"", name);
        struct stat st;
        if (fstat(child, &st) < 0)
                return error_errno(err, errno, "cannot stat \"%s\"", name);
        if (st.st_dev != x->dev)
                return error_set(err, -EXDEV, "\"%s\" is a mount point; not removed", name);
        if (depth >= TREE_DEPTH_MAX)
                return move_to_top(x, fd, name, err);
        int r = remove_children(x, child, depth + 1, err);
        if (r < 0)
                return error_wrap(err, "%s", name);
        if (unlinkat(fd, name, AT_REMOVEDIR) < 0 && errno != ENOENT)
                return error_errno(err, errno, "cannot remove directory \"%s\"", name);
        return 0;
}

static void closedirp(DIR **d) {
        if (*d)
                (void) closedir(*d);
}

static int remove_children(struct removal *x, int fd, unsigned depth, struct error *err) {
        int copy = openat(fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        _cleanup_(closedirp) DIR *d = copy >= 0 ? fdopendir(copy) : NULL;
        if (!d) {
                int saved = errno;
                (void) fd_close(copy);
                return error_errno(err, saved, "cannot read directory");
        }
        for (;;) {
                errno = 0;
                struct dirent *e = readdir(d);
                if (!e)
                        return errno ? error_errno(err, errno, "cannot read directory") : 0;
                if (strcmp(e->d_name, ".") == 0 || strcmp(e->d_name, "..") == 0)
                        continue;
                int r = remove_entry(x, fd, e->d_name, depth, err);
                if (r < 0)
                        return r;
        }
}

int fd_remove_tree_at(int dirfd, const char *path, struct error *err) {
        struct stat st;
        if (unlinkat(dirfd, path, 0) == 0 || errno == ENOENT)
                return 0;
        if (errno != EISDIR && errno != EPERM)
                return error_errno(err, errno, "cannot remove \"%s\"", path);
        _cleanup_fd_ int top = openat(dirfd, path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
        if (top < 0)
                return errno == ENOENT ? 0 : error_errno(err, errno, "cannot open \"%s\"", path);
        if (fstat(top, &st) < 0)
                return error_errno(err, errno, "cannot stat \"%s\"", path);
        struct removal x = { .dev = st.st_dev, .top = top };
        for (;;) {
                unsigned moved = x.moved;
                int r = remove_children(&x, top, 0, err);
                if (r < 0)
                        return error_wrap(err, "%s", path);
                if (unlinkat(dirfd, path, AT_REMOVEDIR) == 0 || errno == ENOENT)
                        return 0;
                if (errno != ENOTEMPTY || x.moved == moved)
                        return error_errno(err, errno, "cannot remove directory \"%s\"", path);
        }
}

int fd_reflink(int src, int dst, struct error *err) {
        if (ioctl(dst, FICLONE, src) == 0)
                return 0;
        if (errno == ENOTTY || errno == EINVAL || errno == ENOSYS)
                errno = EOPNOTSUPP;
        return error_errno(err, errno, "cannot reflink");
}
