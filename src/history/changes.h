/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * What happened to which path. The names that went and came (tree.h) are put together:
 *
 *   0. a folder that is in both images is followed first: what is in it goes with it and is not told again;
 *   1. the same name or path on both sides is one change, whatever inode it stands for (editors write a new file and
 *      rename it over the old one; a folder may have been made anew);
 *   2. the same file under another name is a rename: inode number, generation, creation time and type are the same;
 *   3. so is a file that came with exactly the bytes of one that went;
 *   4. the rest was deleted or added;
 *   5. and touched files that kept their names may have changed in themselves.
 *
 * Whether something of kinds 1 and 5 differs at all is for record.c to see.
 */

#include "tree.h"

enum change_kind { CHANGE_ADDED, CHANGE_DELETED, CHANGE_CHANGED, CHANGE_RENAMED, CHANGE_UNREADABLE };

struct change {
        enum change_kind kind;
        bool by_content;         /* of a rename */
        int error;               /* of what is unreadable */
        uint32_t old_ino, new_ino; /* 0 where there is none */
        char *path;              /* in the newer image; of what was deleted: in the older one */
        char *from;              /* in the older image, where that is another path; else NULL */
};

struct changes {
        struct change *v; /* sorted by path */
        size_t n, cap;
        uint64_t unreachable; /* names to which no path leads */
        bool too_deep_old, too_deep_new; /* there are names, of either image, whose path is beyond what is told */
};

int changes_find(struct tree *t, struct changes *ret, struct error *err);
void changes_done(struct changes *c);
