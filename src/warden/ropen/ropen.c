/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Preloaded into QEMU. An open of the one path named in CSPACE_ROPEN=FD:PATH gives a copy of the
 * inherited descriptor FD; every other open goes its way.
 *
 * QEMU 7.2 opens the file behind guest memory by path and read-write, also for a private mapping. A
 * template's memory must not be writable by a VM, and need not even be readable by its uid; a
 * private mapping of a read-only descriptor is enough, and the descriptor was opened by one who may.
 *
 * The variants are all that glibc's headers make of open() and openat() with and without large file
 * support and fortification.
 */

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define EXPORT __attribute__((visibility("default")))

EXPORT int open(const char *path, int flags, ...);
EXPORT int open64(const char *path, int flags, ...);
EXPORT int openat(int dir, const char *path, int flags, ...);
EXPORT int openat64(int dir, const char *path, int flags, ...);
EXPORT int __open_2(const char *path, int flags);
EXPORT int __open64_2(const char *path, int flags);
EXPORT int __openat_2(int dir, const char *path, int flags);
EXPORT int __openat64_2(int dir, const char *path, int flags);

/* The descriptor to copy, or -1 when path is not the one. Reads the environment each time: the
 * loader may call in here before any constructor has run. */
static int match(const char *path) {
        const char *spec = getenv("CSPACE_ROPEN");
        if (!spec || !path)
                return -1;
        char *end;
        long fd = strtol(spec, &end, 10);
        if (end == spec || *end != ':' || fd < 0 || fd > 65535 || strcmp(end + 1, path) != 0)
                return -1;
        return (int) fd;
}

static int answer(int fd, int flags) {
        int copy = fcntl(fd, flags & O_CLOEXEC ? F_DUPFD_CLOEXEC : F_DUPFD, 0);
        if (copy >= 0)
                (void) lseek(copy, 0, SEEK_SET);
        return copy;
}

static int pass_on(int dir, const char *path, int flags, mode_t mode) {
        static int (*next)(int, const char *, int, ...);
        if (!next) {
                void *p = dlsym(RTLD_NEXT, "openat64");
                memcpy(&next, &p, sizeof(next));
        }
        if (!next) {
                errno = ENOSYS;
                return -1;
        }
        return next(dir, path, flags, mode);
}

static int do_open(int dir, const char *path, int flags, mode_t mode) {
        int fd = match(path);
        return fd >= 0 ? answer(fd, flags) : pass_on(dir, path, flags, mode);
}

static bool wants_mode(int flags) {
        return (flags & O_CREAT) || (flags & O_TMPFILE) == O_TMPFILE;
}

/* mode is read only where the caller has passed one. */
#define MODE(flags)                               \
        ({                                        \
                mode_t m_ = 0;                    \
                if (wants_mode(flags)) {          \
                        va_list ap_;              \
                        va_start(ap_, flags);     \
                        m_ = va_arg(ap_, mode_t); \
                        va_end(ap_);              \
                }                                 \
                m_;                               \
        })

int open(const char *path, int flags, ...) {
        return do_open(AT_FDCWD, path, flags, MODE(flags));
}

int open64(const char *path, int flags, ...) {
        return do_open(AT_FDCWD, path, flags | O_LARGEFILE, MODE(flags));
}

int openat(int dir, const char *path, int flags, ...) {
        return do_open(dir, path, flags, MODE(flags));
}

int openat64(int dir, const char *path, int flags, ...) {
        return do_open(dir, path, flags | O_LARGEFILE, MODE(flags));
}

int __open_2(const char *path, int flags) {
        return do_open(AT_FDCWD, path, flags, 0);
}

int __open64_2(const char *path, int flags) {
        return do_open(AT_FDCWD, path, flags | O_LARGEFILE, 0);
}

int __openat_2(int dir, const char *path, int flags) {
        return do_open(dir, path, flags, 0);
}

int __openat64_2(int dir, const char *path, int flags) {
        return do_open(dir, path, flags | O_LARGEFILE, 0);
}
