/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * Every quantity that an image (and so a guest) controls. Reaching one gives the error code "limit" for the
 * question asked and costs nobody else anything.
 */

/* Of the process; set by itself before it reads the first byte. */
#define HISTORY_MEMORY_BYTES (1ULL << 30) /* RLIMIT_AS */
#define HISTORY_CPU_S 120                 /* RLIMIT_CPU */
#define HISTORY_WALL_S 600                /* alarm() */

/* Of an image. */
#define HISTORY_IMAGE_BYTES_MAX (1ULL << 40)
#define HISTORY_INODES_MAX (64u << 20)
#define HISTORY_BLOCK_MIN 1024u
#define HISTORY_BLOCK_MAX 65536u
#define HISTORY_INODE_BYTES_MAX 1024u
#define HISTORY_READ_BYTES_MAX (256ULL << 30) /* read from one image, all together */
#define HISTORY_RUNS_MAX (1u << 20)           /* extents of one file */
#define HISTORY_HOST_EXTENTS_MAX (16u << 20)  /* extents of the image's own file on the host */
#define HISTORY_JOURNAL_BLOCKS_MAX (1u << 20)
#define HISTORY_REVOKES_MAX (4u << 20)

/* Of trees and answers. */
#define HISTORY_DEPTH_MAX 256
#define HISTORY_SYMLINKS_MAX 40
#define HISTORY_NAME_MAX 255
#define HISTORY_LINKS_MAX (8u << 20)
#define HISTORY_NAMES_BYTES_MAX (256u << 20)
#define HISTORY_CHANGES_MAX (1u << 20)
#define HISTORY_DIR_BYTES_MAX (1ULL << 30)  /* of one directory */
#define HISTORY_XATTR_BYTES_MAX (1u << 20)  /* of one file, names and values */
#define HISTORY_RENAME_BYTES_MAX (256ULL << 20) /* compared to find renames by content */
#define HISTORY_PATCH_FILE_MAX (512u * 1024)
#define HISTORY_PATCH_LINES_MAX 20000
#define HISTORY_PATCH_EDITS_MAX 2000        /* above: one hunk that replaces all */
#define HISTORY_PATCH_BYTES_MAX (16u << 20) /* all patches of an answer */
#define HISTORY_LIMIT_DEFAULT 10000
#define HISTORY_LIMIT_MAX 100000
#define HISTORY_BYTES_DEFAULT (4ULL << 30) /* of cat and extract */
#define HISTORY_BYTES_MAX (1ULL << 40)
