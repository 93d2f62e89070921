/* SPDX-License-Identifier: Apache-2.0 */
#include "hfile.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define DIR_CHUNK_BLOCKS 64u

static int open_inline(struct hfs *fs, const struct hinode *i, struct hfile *f) {
        struct hinode copy = *i;
        size_t room = HISTORY_INODE_BYTES_MAX + sizeof i->l.i_block, n = 0;

        errcode_t e = ext2fs_inline_data_size(fs->fs, i->ino, &n);
        if (e || n > room)
                return -EUCLEAN;
        f->small = calloc(1, room);
        if (!f->small)
                return -ENOMEM;
        e = ext2fs_inline_data_get(fs->fs, i->ino, &copy.small, f->small, &n);
        if (e || n > room)
                return -EUCLEAN;
        if (S_ISDIR(i->l.i_mode))
                f->size = n;
        return f->size > n ? -EUCLEAN : 0;
}

int hfile_open(struct hfs *fs, const struct hinode *i, struct hfile *ret) {
        struct hfile f = { .fs = fs, .inode = *i, .size = hinode_size(i) };
        int r = 0;

        if (hinode_inline(i))
                r = open_inline(fs, i, &f);
        else if (hinode_fast_symlink(i)) {
                f.small = malloc(sizeof i->l.i_block);
                r = f.small ? 0 : -ENOMEM;
                if (f.small)
                        memcpy(f.small, i->l.i_block, sizeof i->l.i_block);
        } else if (!hinode_mapped(i))
                f.size = 0;
        else
                r = hfs_map(fs, i, &f.runs);
        if (r < 0) {
                hfile_done(&f);
                return r;
        }
        *ret = f;
        return 0;
}

void hfile_done(struct hfile *f) {
        runs_done(&f->runs);
        free(f->small);
        f->small = NULL;
}

const struct run *hfile_run(const struct hfile *f, uint64_t lblk, uint64_t *ret_next) {
        size_t lo = 0, hi = f->runs.n;

        while (lo < hi) { /* the first run that ends after lblk */
                size_t mid = lo + (hi - lo) / 2;
                const struct run *r = &f->runs.v[mid];
                if (r->kind == RUN_META || r->lblk + r->len <= lblk)
                        lo = mid + 1;
                else
                        hi = mid;
        }
        const struct run *r = lo < f->runs.n ? &f->runs.v[lo] : NULL;
        if (r && r->lblk <= lblk) {
                *ret_next = r->lblk + r->len;
                return r;
        }
        *ret_next = r ? r->lblk : UINT64_MAX;
        return NULL;
}

int hfile_read(struct hfile *f, uint64_t off, void *buf, size_t n) {
        uint64_t bs = f->fs->block_size;
        uint8_t *p = buf;

        if (off > f->size || n > f->size - off)
                return -ERANGE;
        if (f->small) {
                memcpy(p, f->small + off, n);
                return 0;
        }
        while (n > 0) {
                uint64_t next, lblk = off / bs;
                const struct run *r = hfile_run(f, lblk, &next);
                uint64_t end = next > UINT64_MAX / bs ? UINT64_MAX : next * bs;
                size_t part = end - off < n ? (size_t) (end - off) : n;
                if (!r || r->kind == RUN_UNWRITTEN)
                        memset(p, 0, part);
                else {
                        int e = image_read(f->fs->img, (r->pblk + (lblk - r->lblk)) * bs + off % bs, p, part);
                        if (e < 0)
                                return e;
                }
                p += part;
                off += part;
                n -= part;
        }
        return 0;
}

int hfile_link_target(struct hfs *fs, const struct hinode *i, char target[LIMIT_PATH]) {
        _cleanup_(hfile_done) struct hfile f = { .fs = fs };
        char text[LIMIT_PATH];

        int r = hfile_open(fs, i, &f);
        if (r < 0)
                return r;
        if (f.size == 0 || f.size >= sizeof text)
                return -EUCLEAN;
        r = hfile_read(&f, 0, text, (size_t) f.size);
        if (r < 0)
                return r;
        text[f.size] = '\0';
        if (strlen(text) != f.size)
                return -EUCLEAN;
        memcpy(target, text, (size_t) f.size + 1);
        return 0;
}

/* -- directories ---------------------------------------------------------------------------------------------- */

static bool is_name(const char *s, size_t n) {
        return n > 0 && !memchr(s, '/', n) && !memchr(s, '\0', n);
}

static bool is_dot(const char *s, size_t n) {
        return (n == 1 && s[0] == '.') || (n == 2 && s[0] == '.' && s[1] == '.');
}

/* rec_len has two forms for blocks that are 64 KiB: 0xffff and 0 mean all of it. */
static size_t record_bytes(uint16_t raw, size_t block) {
        if (block >= 65536 && (raw == 0 || raw == 0xffff))
                return block;
        return block >= 65536 ? (size_t) (raw & 0xfffc) | (size_t) (raw & 3) << 16 : raw;
}

/* The entries of one block. The nodes of a hash tree look like one unused entry and need no care. */
static int walk_block(const uint8_t *p, size_t n, hentry_fn *fn, void *ctx, uint64_t *bad) {
        for (size_t at = 0; at + EXT2_DIR_ENTRY_HEADER_LEN <= n;) {
                uint32_t ino;
                uint16_t raw;
                memcpy(&ino, p + at, 4);
                memcpy(&raw, p + at + 4, 2);
                size_t record = record_bytes(raw, n), name_n = p[at + 6];
                if (record < EXT2_DIR_ENTRY_HEADER_LEN || record % 4 || record > n - at)
                        return -EUCLEAN;
                const struct hentry e = { .ino = ino, .name = (const char *) p + at + 8, .name_n = name_n };
                at += record;
                if (ino == 0)
                        continue;
                if (name_n + EXT2_DIR_ENTRY_HEADER_LEN > record)
                        return -EUCLEAN;
                if (is_dot(e.name, name_n))
                        continue;
                if (!is_name(e.name, name_n)) {
                        ++*bad;
                        continue;
                }
                int r = fn(ctx, &e);
                if (r != 0)
                        return r;
        }
        return 0;
}

/* Inline: four bytes for "..", then entries in the inode's 60 bytes, then entries in the attribute. */
static int walk_inline(struct hfile *f, hentry_fn *fn, void *ctx, uint64_t *bad) {
        size_t first = sizeof f->inode.l.i_block, n = (size_t) f->size;

        if (n < first)
                return n < 4 ? -EUCLEAN : walk_block(f->small + 4, n - 4, fn, ctx, bad);
        int r = walk_block(f->small + 4, first - 4, fn, ctx, bad);
        return r != 0 || n == first ? r : walk_block(f->small + first, n - first, fn, ctx, bad);
}

static int walk_run(struct hfs *fs, const struct run *run, uint64_t end, uint8_t *buf, hentry_fn *fn, void *ctx,
                    uint64_t *bad) {
        for (uint64_t k = 0; k < run->len && run->lblk + k < end;) {
                uint64_t left = run->len - k, n = left < DIR_CHUNK_BLOCKS ? left : DIR_CHUNK_BLOCKS;
                if (n > end - run->lblk - k)
                        n = end - run->lblk - k;
                int r = image_read(fs->img, (run->pblk + k) * fs->block_size, buf, (size_t) n * fs->block_size);
                for (uint64_t b = 0; r == 0 && b < n; b++)
                        r = walk_block(buf + b * fs->block_size, fs->block_size, fn, ctx, bad);
                if (r != 0)
                        return r;
                k += n;
        }
        return 0;
}

int hdir_walk(struct hfs *fs, const struct hinode *dir, hentry_fn *fn, void *ctx, uint64_t *ret_bad) {
        _cleanup_(hfile_done) struct hfile f = { .fs = fs };
        uint64_t bad = 0;

        if (!S_ISDIR(dir->l.i_mode))
                return -ENOTDIR;
        if (dir->l.i_flags & EXT4_ENCRYPT_FL)
                return -EOPNOTSUPP;
        int r = hfile_open(fs, dir, &f);
        if (r < 0)
                return r;
        if (f.size > HISTORY_DIR_BYTES_MAX)
                return -EDQUOT;
        if (f.small)
                r = walk_inline(&f, fn, ctx, &bad);
        else {
                size_t most = 1;
                for (size_t i = 0; i < f.runs.n; i++)
                        if (f.runs.v[i].kind == RUN_DATA && f.runs.v[i].len > most)
                                most = f.runs.v[i].len < DIR_CHUNK_BLOCKS ? (size_t) f.runs.v[i].len : DIR_CHUNK_BLOCKS;
                _cleanup_free_ uint8_t *buf = malloc(most * fs->block_size);
                if (!buf)
                        return -ENOMEM;
                for (size_t i = 0; r == 0 && i < f.runs.n; i++)
                        if (f.runs.v[i].kind == RUN_DATA)
                                r = walk_run(fs, &f.runs.v[i], f.size / fs->block_size, buf, fn, ctx, &bad);
        }
        if (ret_bad)
                *ret_bad += bad;
        return r;
}
