/* SPDX-License-Identifier: Apache-2.0 */
#include "rootd/dirs.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/fd.h"

static int take_dir(int at, const char *name, mode_t mode, gid_t gid, int *ret, struct error *err) {
        struct stat st;
        _cleanup_fd_ int fd = openat(at, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
        if (fd < 0 || fstat(fd, &st) < 0)
                return error_errno(err, errno, "cannot open folder \"%s\"", name);
        if (at != AT_FDCWD && st.st_uid != 0)
                return error_set(err, -EPERM, "folder \"%s\" belongs to user %u, not to root", name,
                                 st.st_uid);
        if (fchown(fd, 0, gid) < 0 || fchmod(fd, mode) < 0)
                return error_errno(err, errno, "cannot set owner and mode of folder \"%s\"", name);
        *ret = fd_steal(&fd);
        return 0;
}

static int sub_dir(int at, const char *name, mode_t mode, gid_t gid, int *ret, struct error *err) {
        if (mkdirat(at, name, 0700) < 0 && errno != EEXIST)
                return error_errno(err, errno, "cannot create folder \"%s\"", name);
        return take_dir(at, name, mode, gid, ret, err);
}

static int top_dir(const char *path, gid_t gid, int *ret, struct error *err) {
        int r = fd_mkdir_p_at(AT_FDCWD, path, 0755, err);
        if (r < 0)
                return r;
        return take_dir(AT_FDCWD, path, 01775, gid, ret, err);
}

static int lock_run(struct dirs *d, const char *run, struct error *err) {
        d->lock = openat(d->run_own, "lock", O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
        if (d->lock < 0)
                return error_errno(err, errno, "cannot open \"%s/rootd/lock\"", run);
        struct flock l = { .l_type = F_WRLCK, .l_whence = SEEK_SET }; /* not inherited by children */
        if (fcntl(d->lock, F_SETLK, &l) < 0)
                return error_errno(err, errno == EAGAIN || errno == EACCES ? EADDRINUSE : errno,
                                   "another cspace-rootd works in \"%s\"", run);
        return 0;
}

int dirs_open(struct dirs *d, const struct options *o, struct error *err) {
        *d = (struct dirs){ -EBADF, -EBADF, -EBADF, -EBADF, -EBADF, -EBADF,
                            -EBADF, -EBADF, -EBADF, -EBADF, -EBADF };
        int r = top_dir(o->conf.run, o->gid, &d->run, err);
        if (r == 0)
                r = sub_dir(d->run, "rootd", 0700, 0, &d->run_own, err);
        if (r == 0)
                r = lock_run(d, o->conf.run, err);
        if (r == 0)
                r = sub_dir(d->run_own, "pool", 0700, 0, &d->run_pool, err);
        if (r == 0)
                r = sub_dir(d->run, "sandboxes", 0711, 0, &d->run_sandboxes, err);
        if (r == 0)
                r = top_dir(o->conf.data, o->gid, &d->data, err);
        if (r == 0)
                r = sub_dir(d->data, "templates", 0750, o->gid, &d->templates, err);
        if (r == 0)
                r = sub_dir(d->data, "sandboxes", 0700, 0, &d->sandboxes, err);
        if (r == 0)
                r = sub_dir(d->data, "checkpoints", 0700, 0, &d->checkpoints, err);
        if (r == 0)
                r = sub_dir(d->data, "builds", 0711, 0, &d->builds, err);
        if (r == 0)
                r = sub_dir(d->data, "cache", 0711, 0, &d->cache, err);
        if (r < 0)
                dirs_close(d);
        return r;
}

void dirs_close(struct dirs *d) {
        int *all[] = { &d->run,       &d->run_own,   &d->run_pool,    &d->run_sandboxes, &d->data, &d->templates,
                       &d->sandboxes, &d->checkpoints, &d->builds, &d->cache,         &d->lock };
        for (size_t i = 0; i < ARRAY_SIZE(all); i++)
                *all[i] = fd_close(*all[i]);
}
