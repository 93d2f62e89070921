/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * Paths inside an image. Symbolic links are followed within the image alone (an absolute one starts at its root), at
 * most HISTORY_SYMLINKS_MAX of them, and ".." is answered from the way that was taken, not from the directory.
 */

#include "hfs.h"

struct hpath {
        struct hinode inode;
        char path[LIMIT_PATH]; /* "/" or "/a/b": without links, "." and ".." */
};

/* -ENOENT, -ENOTDIR, -ELOOP, -ENAMETOOLONG besides those of hfs. */
int hpath_resolve(struct hfs *fs, const char *path, bool follow_last, struct hpath *ret, struct error *err);
