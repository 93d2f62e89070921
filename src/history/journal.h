/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * What a mount would replay, as an overlay over the image. The image may have been taken from a running VM at any
 * moment; what its guest had synced by then may be in the journal alone.
 *
 * Sans-I/O towards the filesystem: the caller says where the journal's blocks lie. All that is committed counts; the
 * first block that is torn, of another sequence, or whose checksum is wrong ends the log, as at a mount.
 */

#include <stdint.h>

#include "image.h"

struct journal_map {
        const uint64_t *blocks; /* image block of each of the journal's blocks */
        uint32_t n;
        uint32_t block_size;
        uint64_t fs_blocks; /* blocks beyond are not the filesystem's */
};

struct journal_result {
        uint32_t transactions; /* replayed */
        bool fast_commits;     /* the journal may hold fast commits, which are not replayed */
        bool damaged;          /* a transaction that was complete had a block with a wrong checksum */
};

/* Sets img->overlay. -EUCLEAN: the journal cannot be trusted; a mount would refuse it as well. */
int journal_load(struct image *img, const struct journal_map *map, struct journal_result *ret, struct error *err);
