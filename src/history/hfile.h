/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* The contents of one file, directory or symlink of an image. */

#include "hfs.h"

struct hfile {
        struct hfs *fs;
        struct hinode inode;
        uint64_t size;
        struct runs runs;
        uint8_t *small; /* inline data or a fast symlink's target, `size` bytes; else NULL */
};

int hfile_open(struct hfs *fs, const struct hinode *i, struct hfile *ret);
void hfile_done(struct hfile *f);
/* Exactly n bytes, all before the end of the file; holes are zeros. */
int hfile_read(struct hfile *f, uint64_t off, void *buf, size_t n);
/* The run that holds a logical block, or NULL for a hole; *ret_next: the first block after what that says. */
const struct run *hfile_run(const struct hfile *f, uint64_t lblk, uint64_t *ret_next);
/* -EUCLEAN: empty, too long, or with a NUL. */
int hfile_link_target(struct hfs *fs, const struct hinode *i, char target[LIMIT_PATH]);

/* -- directories ---------------------------------------------------------------------------------------------- */

struct hentry {
        uint32_t ino;
        const char *name; /* not terminated */
        size_t name_n;
};

/* Called for each entry but "." and ".."; what is no name (empty, with "/" or NUL) is counted and left out. A value
 * other than 0 ends the walk and is returned. */
typedef int hentry_fn(void *ctx, const struct hentry *e);
int hdir_walk(struct hfs *fs, const struct hinode *dir, hentry_fn *fn, void *ctx, uint64_t *ret_bad);
