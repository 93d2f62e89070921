/* SPDX-License-Identifier: Apache-2.0 */

/* Moving, across filesystems where it must be: a copy with everything that rename() would keep,
 * made beside the destination and put in place when it is complete. */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/fd.h"
#include "base/str.h"
#include "fsop.h"
#include "path.h"

#define COPY_DEPTH_MAX 128

static int copy_entry(int from, const char *name, int to, const char *as, unsigned depth, struct error *err);

int fsop_copy_bytes(int in, int out, struct error *err) {
        for (;;) {
                ssize_t n = copy_file_range(in, NULL, out, NULL, 1 << 24, 0);
                if (n == 0)
                        return 0;
                if (n < 0 && errno != EXDEV && errno != EINVAL && errno != EOPNOTSUPP)
                        return error_errno(err, errno, "cannot copy");
                if (n < 0)
                        break;
        }
        char b[65536];
        for (ssize_t n; (n = read(in, b, sizeof b)) != 0;) {
                if (n < 0)
                        return error_errno(err, errno, "cannot copy");
                int r = fd_write_all(out, b, (size_t) n, err);
                if (r < 0)
                        return r;
        }
        return 0;
}

static int copy_regular(int from, const char *name, int to, const char *as, struct error *err) {
        _cleanup_fd_ int in = openat(from, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
        _cleanup_fd_ int out = openat(to, as, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
        if (in < 0 || out < 0)
                return error_errno(err, errno, "cannot copy '%s'", name);
        return fsop_copy_bytes(in, out, err);
}

static int copy_link(int from, const char *name, int to, const char *as, struct error *err) {
        char target[PATH_MAX];
        ssize_t n = readlinkat(from, name, target, sizeof target - 1);
        if (n < 0)
                return error_errno(err, errno, "cannot read link '%s'", name);
        target[n] = '\0';
        return symlinkat(target, to, as) < 0 ? error_errno(err, errno, "cannot make link '%s'", as) : 0;
}

static int copy_dir(int from, const char *name, int to, const char *as, unsigned depth, struct error *err) {
        if (depth > COPY_DEPTH_MAX)
                return error_set(err, -ELOOP, "the tree is deeper than %d folders", COPY_DEPTH_MAX);
        if (mkdirat(to, as, 0700) < 0)
                return error_errno(err, errno, "cannot make folder '%s'", as);
        _cleanup_fd_ int in = openat(from, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
        _cleanup_fd_ int out = openat(to, as, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
        if (in < 0 || out < 0)
                return error_errno(err, errno, "cannot open folder '%s'", name);
        char **names = NULL;
        size_t n = 0;
        int r = fsop_names(in, &names, &n, err);
        for (size_t i = 0; r == 0 && i < n; i++)
                r = copy_entry(in, names[i], out, names[i], depth + 1, err);
        fsop_names_free(names);
        return r;
}

static int copy_entry(int from, const char *name, int to, const char *as, unsigned depth, struct error *err) {
        struct stat st;
        if (fstatat(from, name, &st, AT_SYMLINK_NOFOLLOW) < 0)
                return error_errno(err, errno, "cannot copy '%s'", name);
        int r;
        if (S_ISREG(st.st_mode))
                r = copy_regular(from, name, to, as, err);
        else if (S_ISLNK(st.st_mode))
                r = copy_link(from, name, to, as, err);
        else if (S_ISDIR(st.st_mode))
                r = copy_dir(from, name, to, as, depth, err);
        else
                r = mknodat(to, as, st.st_mode, st.st_rdev) < 0 ? error_errno(err, errno, "cannot copy '%s'", name) : 0;
        if (r < 0)
                return r;
        if (fchownat(to, as, st.st_uid, st.st_gid, AT_SYMLINK_NOFOLLOW) < 0)
                return error_errno(err, errno, "cannot set the owner of '%s'", as);
        if (!S_ISLNK(st.st_mode) && fchmodat(to, as, st.st_mode & 07777, 0) < 0)
                return error_errno(err, errno, "cannot set the mode of '%s'", as);
        struct timespec times[2] = { st.st_atim, st.st_mtim };
        (void) utimensat(to, as, times, AT_SYMLINK_NOFOLLOW);
        return 0;
}

static int move_by_copy(const char *from, const char *to, struct error *err) {
        char tmp[PATH_MAX], dir[PATH_MAX];
        if (path_dir(to, dir) < 0 ||
            snprintf(tmp, sizeof tmp, "%s/.cspace-move-%d-%lx", dir, (int) gettid(), (unsigned long) time(NULL)) >= PATH_MAX)
                return error_set(err, -ENAMETOOLONG, "the path is longer than %d bytes", PATH_MAX - 1);
        int r = copy_entry(AT_FDCWD, from, AT_FDCWD, tmp, 0, err);
        if (r == 0 && rename(tmp, to) < 0)
                r = error_errno(err, errno, "cannot move '%s' to '%s'", from, to);
        if (r < 0) {
                (void) fsop_remove(tmp, NULL);
                return r;
        }
        return fsop_remove(from, err);
}

int fsop_move(const char *from, const char *to, struct error *err) {
        if (path_is_below(to, from) && !str_eq(from, to))
                return error_set(err, -EINVAL, "'%s' cannot be moved into itself", from);
        if (rename(from, to) == 0)
                return 0;
        if (errno != EXDEV)
                return error_errno(err, errno, "cannot move '%s' to '%s'", from, to);
        return move_by_copy(from, to, err);
}
