/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include <stdint.h>
#include <sys/types.h>

#include "base/error.h"

/* Makes dirfd/name a copy of src by reflink (by copying data where the filesystem has none), grown to
 * `bytes` (0: as src; smaller than src is -EINVAL), 0600 and owned by owner. Gives it open for
 * reading and writing; on failure nothing stays. */
int disk_clone(int src, int dirfd, const char *name, uint64_t bytes, uid_t owner, int *ret_fd,
               uint64_t *ret_bytes, struct error *err);
/* The same without a name, in the filesystem of dirfd: gives it open for reading alone, and it is gone with the last
 * descriptor, whatever becomes of us. Needs /proc. */
int disk_moment(int src, int dirfd, int *ret_fd, struct error *err);
/* An empty file of that size, 0600 root. */
int disk_create(int dirfd, const char *name, uint64_t bytes, int *ret_fd, struct error *err);
/* Bytes that would be free if the file were removed: extents no other file shares (FIEMAP), or
 * all allocated ones where the filesystem does not tell. */
uint64_t disk_own_bytes(int fd);
