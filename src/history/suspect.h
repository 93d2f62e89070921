/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * Which blocks of two images can differ at all, without reading them.
 *
 * Two images of one sandbox's history are reflinks of one another: where nothing was written since, both files lie on
 * the same blocks of the host's filesystem. What FIEMAP shows as the same place is equal, whatever the guest says;
 * all else is suspect, and is compared where it matters. The guest has no part in this.
 *
 * Where the host cannot tell (no reflinks, another filesystem), or the filesystems' layouts do not fit each other, all
 * blocks are suspect.
 */

#include "hfs.h"

struct suspect {
        uint64_t *changed; /* a bit for each block; NULL: all are suspect */
        uint64_t *filled;  /* of the newer image: a bit for each block that is no hole; NULL: not known */
        uint64_t blocks;
        uint64_t count; /* of suspect blocks, where known */
};

int suspect_make(const struct hfs *old, const struct hfs *new, struct suspect *ret, struct error *err);
/* The same for a caller that knows which blocks of the images themselves differ, and that no other does: a test. All
 * blocks count as filled. */
int suspect_from_blocks(const struct hfs *old, const struct hfs *new, const uint64_t *blocks, size_t n, struct suspect *ret,
                        struct error *err);
void suspect_done(struct suspect *s);

static inline bool suspect_all(const struct suspect *s) {
        return !s->changed;
}

/* Whether any of n blocks is suspect; those beyond the end are. */
bool suspect_any(const struct suspect *s, uint64_t block, uint64_t n);

/* Whether a block reads as zeros in both images. */
static inline bool suspect_empty(const struct suspect *s, uint64_t block) {
        return s->changed && s->filled && block < s->blocks &&
               !((s->changed[block / 64] | s->filled[block / 64]) >> (block % 64) & 1);
}

/* Whether all that is needed to use the same numbers (blocks, inodes) in both holds. */
bool suspect_same_layout(const struct hfs *a, const struct hfs *b);
