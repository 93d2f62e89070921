/* SPDX-License-Identifier: Apache-2.0 */
#include "hfs.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "array.h"

#define SUPER_OFFSET 1024u
#define SUPER_BYTES 1024u

/* What libext2fs makes of a failure, as an errno. */
static int ext_errno(errcode_t e) {
        switch (e) {
        case EXT2_ET_NO_MEMORY:
        case ENOMEM:
                return -ENOMEM;
        case EXT2_ET_UNSUPP_FEATURE:
        case EXT2_ET_RO_UNSUPP_FEATURE:
                return -EOPNOTSUPP;
        default:
                return -EUCLEAN;
        }
}

static int check_super(struct image *img, uint32_t *block_size, bool *needs_journal, struct error *err) {
        union {
                struct ext2_super_block s;
                uint8_t raw[SUPER_BYTES];
        } sb;

        int r = image_read_raw(img, SUPER_OFFSET, &sb, sizeof sb);
        if (r < 0)
                return error_errno(err, r, "the image has no superblock");
        if (sb.s.s_magic != EXT2_SUPER_MAGIC)
                return error_set(err, -EUCLEAN, "the image has no ext4 filesystem");
        if (sb.s.s_log_block_size > EXT2_MAX_BLOCK_LOG_SIZE - EXT2_MIN_BLOCK_LOG_SIZE)
                return error_set(err, -EUCLEAN, "the superblock names a block size that cannot be");
        *block_size = HISTORY_BLOCK_MIN << sb.s.s_log_block_size;
        *needs_journal = ext2fs_has_feature_journal(&sb.s) && ext2fs_has_feature_journal_needs_recovery(&sb.s);
        return 0;
}

static int take_geometry(struct hfs *fs, struct error *err) {
        const struct ext2_super_block *s = fs->fs->super;

        fs->block_size = fs->fs->blocksize;
        fs->inode_bytes = (uint32_t) EXT2_INODE_SIZE(s);
        fs->inodes_per_group = s->s_inodes_per_group;
        fs->groups = fs->fs->group_desc_count;
        fs->inodes = s->s_inodes_count;
        fs->blocks = ext2fs_blocks_count(fs->fs->super);
        if (fs->block_size < HISTORY_BLOCK_MIN || fs->block_size > HISTORY_BLOCK_MAX ||
            fs->blocks > fs->img->source.size / fs->block_size)
                return error_set(err, -EUCLEAN, "the filesystem is larger than its image");
        if (fs->inode_bytes < EXT2_GOOD_OLD_INODE_SIZE || fs->inode_bytes > HISTORY_INODE_BYTES_MAX ||
            fs->inode_bytes > fs->block_size || fs->block_size % fs->inode_bytes != 0)
                return error_set(err, -EOPNOTSUPP, "inodes of %u bytes are not supported", fs->inode_bytes);
        if (fs->inodes > HISTORY_INODES_MAX)
                return error_set(err, -EDQUOT, "the filesystem has more than %u inodes", HISTORY_INODES_MAX);
        if (fs->inodes_per_group == 0 || fs->groups == 0 ||
            (uint64_t) fs->inodes_per_group * fs->groups != fs->inodes ||
            fs->inodes_per_group % (fs->block_size / fs->inode_bytes) != 0)
                return error_set(err, -EUCLEAN, "the superblock's numbers of inodes contradict each other");
        return 0;
}

static int open_ext2(struct image *img, ext2_filsys *ret, struct error *err) {
        errcode_t e = image_ext2fs_open(img, EXT2_FLAG_64BITS, ret);

        if (e)
                return error_set(err, ext_errno(e), "the filesystem cannot be read: %s", error_message(e));
        return 0;
}

/* One number for each block of the journal. */
static int journal_blocks(struct hfs *fs, const struct runs *runs, uint64_t **ret, uint32_t *ret_n, struct error *err) {
        uint64_t n = 0;

        for (size_t i = 0; i < runs->n; i++) {
                if (runs->v[i].kind == RUN_META)
                        continue;
                if (runs->v[i].lblk != n || runs->v[i].kind != RUN_DATA)
                        return error_set(err, -EUCLEAN, "the journal has holes");
                n += runs->v[i].len;
        }
        if (n < 2 || n > HISTORY_JOURNAL_BLOCKS_MAX)
                return error_set(err, n < 2 ? -EUCLEAN : -EDQUOT, "a journal of %llu blocks is not accepted",
                                 (unsigned long long) n);
        uint64_t *v = calloc(n, sizeof *v);
        if (!v)
                return error_set(err, -ENOMEM, "out of memory");
        for (size_t i = 0; i < runs->n; i++)
                for (uint64_t k = 0; runs->v[i].kind == RUN_DATA && k < runs->v[i].len; k++)
                        v[runs->v[i].lblk + k] = runs->v[i].pblk + k;
        (void) fs;
        *ret = v;
        *ret_n = (uint32_t) n;
        return 0;
}

static int load_journal(struct hfs *fs, struct error *err) {
        _cleanup_(runs_done) struct runs runs = { .v = NULL };
        _cleanup_free_ uint64_t *blocks = NULL;
        struct hinode inode;
        uint32_t n = 0, ino = fs->fs->super->s_journal_inum;

        if (ino == 0)
                return error_set(err, -EOPNOTSUPP, "the filesystem's journal is on another device");
        int r = hfs_inode(fs, ino, &inode);
        if (r == 0 && (!S_ISREG(inode.l.i_mode) || hinode_inline(&inode)))
                r = -EUCLEAN;
        if (r == 0)
                r = hfs_map(fs, &inode, &runs);
        if (r < 0)
                return error_errno(err, r, "the journal's inode cannot be read");
        r = journal_blocks(fs, &runs, &blocks, &n, err);
        if (r < 0)
                return r;
        const struct journal_map map = { .blocks = blocks, .n = n, .block_size = fs->block_size, .fs_blocks = fs->blocks };
        return journal_load(fs->img, &map, &fs->journal, err);
}

/* The filesystem is opened twice: as it lies there, to find the journal, and again under what that holds. */
int hfs_open(struct image *img, struct hfs **ret, struct error *err) {
        _cleanup_(hfs_freep) struct hfs *fs = calloc(1, sizeof *fs);

        if (!fs)
                return error_set(err, -ENOMEM, "out of memory");
        fs->img = img;
        int r = check_super(img, &img->block_size, &fs->needs_journal, err);
        if (r == 0)
                r = open_ext2(img, &fs->fs, err);
        if (r == 0)
                r = take_geometry(fs, err);
        if (r == 0 && fs->needs_journal)
                r = load_journal(fs, err);
        if (r == 0 && img->overlay_n > 0) {
                ext2fs_free(fs->fs);
                fs->fs = NULL;
                r = open_ext2(img, &fs->fs, err);
                if (r == 0)
                        r = take_geometry(fs, err);
                if (r == 0 && fs->block_size != img->block_size)
                        r = error_set(err, -EUCLEAN, "the journal changes the block size");
        }
        if (r < 0)
                return r;
        *ret = STEAL(fs);
        return 0;
}

struct hfs *hfs_free(struct hfs *fs) {
        if (!fs)
                return NULL;
        if (fs->fs)
                ext2fs_free(fs->fs);
        free(fs);
        return NULL;
}

uint32_t hfs_table_blocks(const struct hfs *fs) {
        return fs->inodes_per_group / (fs->block_size / fs->inode_bytes);
}

uint64_t hfs_table(const struct hfs *fs, uint32_t group) {
        uint64_t at = ext2fs_inode_table_loc(fs->fs, group), n = hfs_table_blocks(fs);

        return at > 0 && at < fs->blocks && n <= fs->blocks - at ? at : 0;
}

int hfs_inode(struct hfs *fs, uint32_t ino, struct hinode *ret) {
        if (ino == 0 || ino > fs->inodes)
                return -EUCLEAN;
        uint32_t group = (ino - 1) / fs->inodes_per_group, index = (ino - 1) % fs->inodes_per_group;
        uint64_t table = hfs_table(fs, group);
        if (table == 0)
                return -EUCLEAN;
        struct hinode i = { .ino = ino };
        int r = image_read(fs->img, table * fs->block_size + (uint64_t) index * fs->inode_bytes, i.raw, fs->inode_bytes);
        if (r == 0)
                *ret = i;
        return r;
}

/* -- block maps --------------------------------------------------------------------------------------------------- */

void runs_done(struct runs *r) {
        free(r->v);
        *r = (struct runs){ .v = NULL };
}

int runs_add(struct runs *r, const struct run *run) {
        struct run *last = r->n ? &r->v[r->n - 1] : NULL;

        if (last && last->kind == run->kind && last->lblk + last->len == run->lblk &&
            last->pblk + last->len == run->pblk && run->kind != RUN_META) {
                last->len += run->len;
                return 0;
        }
        return ARRAY_ADD(r->v, r->n, r->cap, HISTORY_RUNS_MAX, *run);
}

static int add_run(const struct hfs *fs, struct runs *r, const struct run *run) {
        if (run->len == 0 || run->pblk == 0 || run->pblk >= fs->blocks || run->len > fs->blocks - run->pblk ||
            run->lblk + run->len > 1ULL << 32)
                return -EUCLEAN;
        return runs_add(r, run);
}

/* All of the map lies in the inode: nearly every file. */
static int map_leaf(const struct hfs *fs, const struct hinode *i, struct runs *ret) {
        const uint8_t *base = (const uint8_t *) i->l.i_block;
        struct ext3_extent_header h;

        memcpy(&h, base, sizeof h);
        if (h.eh_entries > (sizeof i->l.i_block - sizeof h) / sizeof(struct ext3_extent))
                return -EUCLEAN;
        for (size_t k = 0; k < h.eh_entries; k++) {
                struct ext3_extent e;
                memcpy(&e, base + sizeof h + k * sizeof e, sizeof e);
                bool unwritten = e.ee_len > EXT_INIT_MAX_LEN;
                struct run run = { .lblk = e.ee_block,
                                   .pblk = (uint64_t) e.ee_start_hi << 32 | e.ee_start,
                                   .len = unwritten ? e.ee_len - EXT_INIT_MAX_LEN : e.ee_len,
                                   .kind = unwritten ? RUN_UNWRITTEN : RUN_DATA };
                int r = add_run(fs, ret, &run);
                if (r < 0)
                        return r;
        }
        return 0;
}

static int map_tree(struct hfs *fs, const struct hinode *i, struct runs *ret) {
        ext2_extent_handle_t handle = NULL;
        struct ext2fs_extent e;
        struct hinode copy = *i; /* the library wants to be able to write to it */
        int op = EXT2_EXTENT_ROOT, r = 0;

        errcode_t code = ext2fs_extent_open2(fs->fs, i->ino, &copy.small, &handle);
        if (code)
                return ext_errno(code);
        for (size_t steps = 0; r == 0; steps++, op = EXT2_EXTENT_NEXT) {
                code = ext2fs_extent_get(handle, op, &e);
                if (code == EXT2_ET_EXTENT_NO_NEXT)
                        break;
                if (code) {
                        r = ext_errno(code);
                        break;
                }
                if (steps > 2 * (size_t) HISTORY_RUNS_MAX) {
                        r = -EDQUOT;
                        break;
                }
                if (e.e_flags & EXT2_EXTENT_FLAGS_SECOND_VISIT)
                        continue;
                bool leaf = e.e_flags & EXT2_EXTENT_FLAGS_LEAF;
                struct run run = { .lblk = leaf ? e.e_lblk : 0,
                                   .pblk = e.e_pblk,
                                   .len = leaf ? e.e_len : 1,
                                   .kind = !leaf                                      ? RUN_META
                                           : e.e_flags & EXT2_EXTENT_FLAGS_UNINIT     ? RUN_UNWRITTEN
                                                                                      : RUN_DATA };
                r = add_run(fs, ret, &run);
        }
        ext2fs_extent_free(handle);
        return r;
}

struct iterate {
        struct hfs *fs;
        struct runs *runs;
        int r;
};

static int on_block(ext2_filsys ext, blk64_t *block, e2_blkcnt_t count, blk64_t ref, int offset, void *data) {
        struct iterate *it = data;
        struct run run = { .lblk = count < 0 ? 0 : (uint64_t) count,
                           .pblk = *block,
                           .len = 1,
                           .kind = count < 0 ? RUN_META : RUN_DATA };

        (void) ext, (void) ref, (void) offset;
        it->r = add_run(it->fs, it->runs, &run);
        return it->r < 0 ? BLOCK_ABORT : 0;
}

static int map_indirect(struct hfs *fs, const struct hinode *i, struct runs *ret) {
        struct iterate it = { .fs = fs, .runs = ret };
        errcode_t code = ext2fs_block_iterate3(fs->fs, i->ino, BLOCK_FLAG_READ_ONLY, NULL, on_block, &it);

        return it.r < 0 ? it.r : code ? ext_errno(code) : 0;
}

static int by_place(const void *x, const void *y) {
        const struct run *a = x, *b = y;

        if ((a->kind == RUN_META) != (b->kind == RUN_META))
                return a->kind == RUN_META ? -1 : 1;
        return a->lblk < b->lblk ? -1 : a->lblk > b->lblk;
}

/* What lies over one another is no map; a reader must not depend on the order in which it was met. */
static int check_runs(struct runs *r) {
        if (r->n > 1)
                qsort(r->v, r->n, sizeof *r->v, by_place);
        for (size_t i = 1; i < r->n; i++)
                if (r->v[i - 1].kind != RUN_META && r->v[i - 1].lblk + r->v[i - 1].len > r->v[i].lblk)
                        return -EUCLEAN;
        return 0;
}

int hfs_map(struct hfs *fs, const struct hinode *i, struct runs *ret) {
        _cleanup_(runs_done) struct runs runs = { .v = NULL };
        struct ext3_extent_header h;
        int r;

        if (!hinode_mapped(i)) {
                *ret = (struct runs){ .v = NULL };
                return 0;
        }
        memcpy(&h, i->l.i_block, sizeof h);
        if (!(i->l.i_flags & EXT4_EXTENTS_FL))
                r = map_indirect(fs, i, &runs);
        else if (h.eh_magic != EXT3_EXT_MAGIC)
                r = -EUCLEAN;
        else
                r = h.eh_depth == 0 ? map_leaf(fs, i, &runs) : map_tree(fs, i, &runs);
        if (r == 0)
                r = check_runs(&runs);
        if (r < 0)
                return r;
        *ret = runs;
        runs = (struct runs){ .v = NULL };
        return 0;
}

/* -- what an inode says ------------------------------------------------------------------------------------------- */

bool hinode_fast_symlink(const struct hinode *i) {
        return S_ISLNK(i->l.i_mode) && !hinode_inline(i) && !(i->l.i_flags & EXT4_EXTENTS_FL) &&
               hinode_size(i) < sizeof i->l.i_block;
}

bool hinode_mapped(const struct hinode *i) {
        return (S_ISREG(i->l.i_mode) || S_ISDIR(i->l.i_mode) || S_ISLNK(i->l.i_mode)) && !hinode_inline(i) &&
               !hinode_fast_symlink(i);
}

/* Whether the inode is large enough for a field that ends at `end`. */
static bool has_extra(const struct hinode *i, size_t end) {
        return EXT2_GOOD_OLD_INODE_SIZE + (size_t) i->l.i_extra_isize >= end;
}

void hinode_mtime(const struct hinode *i, int64_t *ret_s, uint32_t *ret_ns) {
        int64_t s = (int32_t) i->l.i_mtime;
        uint32_t ns = 0;

        if (has_extra(i, offsetof(struct ext2_inode_large, i_mtime_extra) + 4)) {
                s += (int64_t) (i->l.i_mtime_extra & EXT4_EPOCH_MASK) << 32;
                ns = i->l.i_mtime_extra >> EXT4_EPOCH_BITS;
        }
        *ret_s = s;
        *ret_ns = ns > 999999999 ? 0 : ns;
}

uint64_t hinode_device(const struct hinode *i) {
        uint32_t old = i->l.i_block[0], v = i->l.i_block[1];

        if (old)
                return (uint64_t) ((old >> 8) & 0xff) << 32 | (old & 0xff);
        return (uint64_t) ((v & 0xfff00) >> 8) << 32 | (v & 0xff) | ((v >> 12) & 0xfff00);
}

bool hinode_same_file(const struct hinode *a, const struct hinode *b) {
        const size_t end = offsetof(struct ext2_inode_large, i_crtime_extra) + 4;

        if ((a->l.i_mode & S_IFMT) != (b->l.i_mode & S_IFMT) || a->l.i_generation != b->l.i_generation)
                return false;
        if (!has_extra(a, end) || !has_extra(b, end))
                return true;
        return a->l.i_crtime == b->l.i_crtime && a->l.i_crtime_extra == b->l.i_crtime_extra;
}

const char *hinode_type(const struct hinode *i) {
        switch (i->l.i_mode & S_IFMT) {
        case S_IFREG:
                return "file";
        case S_IFDIR:
                return "directory";
        case S_IFLNK:
                return "symlink";
        case S_IFCHR:
                return "char_device";
        case S_IFBLK:
                return "block_device";
        case S_IFIFO:
                return "fifo";
        case S_IFSOCK:
                return "socket";
        default:
                return "other";
        }
}
