/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * Names. ext4 knows a file's parents only from the directories' side, so all directories of the newer image are read,
 * and of the older one those that may have changed; the others say the same in both. Kept are the names that matter:
 * of directories (for paths) and of touched inodes.
 *
 * A name that is gone from a directory, or new in it, is told apart here; what it means is for diff.c to find.
 */

#include "hfile.h"
#include "scan.h"

struct link {
        uint32_t parent, child;
        uint32_t name; /* in the arena */
        uint8_t name_n;
        bool told; /* this name is in added or pairs: it is not to be told a second time */
};

struct links {
        struct link *v;
        size_t n, cap;
};

/* A name that is in both images but stands for another file. */
struct link_pair {
        struct link old, new;
};

/* A directory that could not be read in one of the images. */
struct broken_dir {
        uint32_t ino;
        int error;
};

struct tree {
        struct hfs *old, *new;
        const struct scan *scan;
        char *arena;
        size_t arena_n, arena_cap;
        struct links old_links, new_links; /* sorted by child */
        struct links removed, added;
        struct link_pair *pairs;
        size_t pairs_n, pairs_cap;
        struct broken_dir *broken;
        size_t broken_n, broken_cap;
        uint64_t bad_names;
};

int tree_read(struct hfs *old, struct hfs *new, const struct scan *scan, struct tree *ret, struct error *err);
void tree_done(struct tree *t);

/* The links of one child; *ret_n may be 0. */
struct link *links_of(const struct links *l, uint32_t child, size_t *ret_n);

/* The path of a name in one of the images. -ENOENT: no way leads there from the root; -ENAMETOOLONG. */
int tree_path(const struct tree *t, const struct links *links, const struct link *l, char path[LIMIT_PATH]);
