/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* File descriptors. Every descriptor is born O_CLOEXEC; an empty field holds -EBADF. */

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/cleanup.h"
#include "base/error.h"

/* Closes fd unless it is negative; keeps errno. Returns -EBADF, to be assigned back. */
int fd_close(int fd);
void fd_closep(int *fd);
#define _cleanup_fd_ _cleanup_(fd_closep)

/* Returns the descriptor and leaves -EBADF behind. */
int fd_steal(int *fd);

int fd_nonblock(int fd, struct error *err);
int fd_cloexec(int fd, int on, struct error *err);

/* Writes all n bytes (restarting on EINTR; blocking descriptors only). */
int fd_write_all(int fd, const void *data, size_t n, struct error *err);
/* All n bytes at that offset, without moving the file's own. 0 or a negative errno; -EIO where the file ends before. */
int fd_pread_all(int fd, void *data, size_t n, uint64_t at);
int fd_pwrite_all(int fd, const void *data, size_t n, uint64_t at);

/*
 * Opens path beneath dirfd with openat2(RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS |
 * RESOLVE_NO_MAGICLINKS): the only way a path with a part that came from outside is opened.
 * Returns the descriptor.
 */
int fd_open_beneath(int dirfd, const char *path, int flags, mode_t mode, struct error *err);

/* Reads a whole file of at most max bytes; -EFBIG above. *ret is NUL-terminated, malloc'd, and
 * owned by the caller; *ret_n (may be NULL) does not count the NUL. */
int fd_read_file_at(int dirfd, const char *path, size_t max, char **ret, size_t *ret_n, struct error *err);
/* The same of a regular file alone; -EINVAL of anything else. Waits for nobody, whatever somebody has put there. */
int fd_read_regular_at(int dirfd, const char *path, size_t max, char **ret, size_t *ret_n, struct error *err);

/* Replaces path with data so that after a power cut either the old or the new content is there:
 * temporary file beside it, fsync, rename, fsync of the directory. */
int fd_replace_file_at(int dirfd, const char *path, const void *data, size_t n, mode_t mode,
                       struct error *err);

/* mkdir -p beneath dirfd, one component at a time, never through a link. */
int fd_mkdir_p_at(int dirfd, const char *path, mode_t mode, struct error *err);

/* rm -rf beneath dirfd: never follows a link, never crosses into another mount. Missing is fine. */
int fd_remove_tree_at(int dirfd, const char *path, struct error *err);

/* Copies src onto dst by reflink (FICLONE). -EOPNOTSUPP or -EXDEV where the filesystem can't. */
int fd_reflink(int src, int dst, struct error *err);
