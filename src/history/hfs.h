/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * An ext4 filesystem in an image, as it would be after a mount (journal replayed), read-only.
 *
 * libext2fs knows the superblock, the group descriptors, extent trees, inline data and extended attributes. Whole inode
 * tables and directories are read here in large pieces and parsed without it, because that is what the
 * difference of two images with many files spends its time on.
 *
 * Error codes: -EUCLEAN corrupt, -EOPNOTSUPP of a kind that is not supported, -EDQUOT a limit, -EIO.
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/stat.h>

#include <ext2fs/ext2fs.h>

#include "base/cleanup.h"
#include "base/error.h"
#include "base/limits.h"
#include "image.h"
#include "journal.h"
#include "bounds.h"

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "raw inodes and directories are read as they lie");

struct hfs {
        struct image *img;
        ext2_filsys fs;
        uint32_t block_size, inode_bytes, inodes_per_group, groups, inodes;
        uint64_t blocks;
        struct journal_result journal;
        bool needs_journal; /* was not cleanly unmounted */
};

/* One inode as it lies in the table; what lies beyond inode_bytes is zero. */
struct hinode {
        uint32_t ino;
        union {
                struct ext2_inode_large l;
                struct ext2_inode small;
                uint8_t raw[HISTORY_INODE_BYTES_MAX];
        };
};

enum run_kind {
        RUN_DATA,
        RUN_UNWRITTEN, /* reads as zeros */
        RUN_META,      /* blocks of the map itself; lblk means nothing */
};

struct run {
        uint64_t lblk, pblk, len;
        enum run_kind kind;
};

struct runs {
        struct run *v;
        size_t n, cap;
};

int hfs_open(struct image *img, struct hfs **ret, struct error *err);
struct hfs *hfs_free(struct hfs *fs);
static inline void hfs_freep(struct hfs **fs) {
        *fs = hfs_free(*fs);
}

/* -EUCLEAN for a number that cannot be. */
int hfs_inode(struct hfs *fs, uint32_t ino, struct hinode *ret);
/* First block of a group's inode table, 0 where it lies outside of the filesystem. */
uint64_t hfs_table(const struct hfs *fs, uint32_t group);
uint32_t hfs_table_blocks(const struct hfs *fs);

/* Where a file's blocks are, sorted by lblk with RUN_META first. Nothing for inline data and fast symlinks. */
int hfs_map(struct hfs *fs, const struct hinode *i, struct runs *ret);
void runs_done(struct runs *r);
int runs_add(struct runs *r, const struct run *run);

/* -- what an inode says ------------------------------------------------------------------------------------------- */

static inline bool hinode_used(const struct hinode *i) {
        return i->l.i_mode != 0 && i->l.i_links_count > 0;
}

static inline uint64_t hinode_size(const struct hinode *i) {
        return EXT2_I_SIZE(&i->l);
}

static inline bool hinode_inline(const struct hinode *i) {
        return i->l.i_flags & EXT4_INLINE_DATA_FL;
}

static inline uint32_t hinode_uid(const struct hinode *i) {
        return (uint32_t) i->l.i_uid | (uint32_t) i->l.osd2.linux2.l_i_uid_high << 16;
}

static inline uint32_t hinode_gid(const struct hinode *i) {
        return (uint32_t) i->l.i_gid | (uint32_t) i->l.osd2.linux2.l_i_gid_high << 16;
}

static inline uint64_t hinode_acl_block(const struct hinode *i) {
        return (uint64_t) i->l.i_file_acl | (uint64_t) i->l.osd2.linux2.l_i_file_acl_high << 32;
}

bool hinode_fast_symlink(const struct hinode *i);
/* Whether the blocks of the inode are a map: not for inline data, fast symlinks, devices, fifos and sockets. */
bool hinode_mapped(const struct hinode *i);
void hinode_mtime(const struct hinode *i, int64_t *ret_s, uint32_t *ret_ns);
/* major << 32 | minor */
uint64_t hinode_device(const struct hinode *i);
/* Whether both are the same file at two times: type, generation and creation time. */
bool hinode_same_file(const struct hinode *a, const struct hinode *b);
/* "file", "directory", "symlink", ..., "other" */
const char *hinode_type(const struct hinode *i);
