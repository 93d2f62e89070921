/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * The inodes of two filesystems, compared: which may have changed, by their own bytes or by a block that they own.
 * Every inode of the newer filesystem is looked at, and every block it claims; neither bitmaps nor times are asked. A
 * block that was written behind the back of its file's inode is therefore found as well.
 */

#include "suspect.h"

/* What it takes to read a directory: most are met again right after the scan. */
struct dir_note {
        uint32_t ino, flags;
        uint64_t size;
        uint32_t block[EXT2_N_BLOCKS];
};

struct scan {
        uint32_t inodes;   /* the larger number of both */
        uint8_t *touched;  /* a bit each: in use in one of them, and not certainly the same */
        uint8_t *replaced; /* touched, and not the same file any more: made, deleted, or both */
        uint8_t *old_dirs, *new_dirs;
        uint32_t touched_n;
        struct dir_note *notes; /* by ino; of directories that are the same in both, but not of all of them */
        size_t notes_n, notes_cap;
};

int scan_inodes(struct hfs *old, struct hfs *new, const struct suspect *s, struct scan *ret, struct error *err);
void scan_done(struct scan *s);

static inline bool scan_bit(const uint8_t *bits, uint32_t ino) {
        return bits[ino / 8] >> (ino % 8) & 1;
}
