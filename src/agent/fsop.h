/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * Operations on the guest's files. All of them block and are run by work.h. They act with the
 * rights of the thread they run on. `owner`, where there is one, is who new files and folders are
 * given to (NULL: whoever the thread acts as).
 */

#include <stdbool.h>
#include <sys/stat.h>

#include "base/buf.h"
#include "base/error.h"
#include "user.h"

#define FSOP_LIST_MAX 100000u   /* entries of one listing */
#define FSOP_DIR_MAX 4000000u   /* names of one folder that is listed */

/* mkdir -p with mode 0755. Existing folders (also by a link) are left as they are; -ENOTDIR when
 * something else is in the way. */
int fsop_mkdirs(const char *path, const struct user *owner, struct error *err);
/* The parents of path. */
int fsop_make_parents(const char *path, const struct user *owner, struct error *err);
/* rm -rf, also of trees deeper than any path; missing is fine. Mount points are an error. */
int fsop_remove(const char *path, struct error *err);
/* rename(2), by copying where source and destination are on different filesystems. */
int fsop_move(const char *from, const char *to, struct error *err);
/* The sorted names of a folder, NULL-terminated; free with fsop_names_free(). */
int fsop_names(int dirfd, char ***ret, size_t *ret_n, struct error *err);
void fsop_names_free(char **names);

/* A JSON array of the entries below path, depth levels deep, in lexical order, depth first. */
int fsop_list(const char *path, unsigned depth, bool e2b, struct buf *out, struct error *err);

/* Whether path is on NFS, SMB or FUSE, where inotify sees nothing of other machines. */
bool fsop_is_network(const char *path);

/* Opens a regular file to be written in place: created with mode if it is missing (*ret_created),
 * truncated otherwise; owner as above. -EISDIR for a folder, -EINVAL for other things. */
int fsop_open_write(const char *path, mode_t mode, const struct user *owner, int *ret_fd, bool *ret_created,
                    struct error *err);
/* Opens a regular file to be read; a fifo or device never blocks, it is -EINVAL. */
int fsop_open_read(const char *path, int *ret_fd, struct stat *ret_st, struct error *err);
/* From where `in` stands to its end. */
int fsop_copy_bytes(int in, int out, struct error *err);
