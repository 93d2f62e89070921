/* SPDX-License-Identifier: Apache-2.0 */
#include "scan.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "array.h"

#define CHUNK_BYTES (64u * 1024) /* stays in the processor's cache between being copied and being looked at */
#define VIEW_BYTES (2u << 20)
#define NOTES_MAX (1u << 19)
#define PAGE_BYTES 4096u
#define AHEAD 24u /* inodes */

struct run_state {
        struct hfs *old, *new;
        const struct suspect *s;
        struct scan *scan;
        bool apart; /* the filesystems have nothing in common: equal numbers mean nothing */
};

static void set_bit(uint8_t *bits, uint32_t ino) {
        bits[ino / 8] |= (uint8_t) (1u << (ino % 8));
}

/* Reserved inodes have no names; the root is one that has. */
static bool is_reserved(uint32_t ino) {
        return ino < EXT2_GOOD_OLD_FIRST_INO && ino != EXT2_ROOT_INO;
}

/* Whether one of the extents in an inode is suspect; -1: they are not all there. */
static int leaf_suspect(const uint8_t *i_block, const struct suspect *s) {
        struct ext3_extent_header h;

        memcpy(&h, i_block, sizeof h);
        if (h.eh_magic != EXT3_EXT_MAGIC || h.eh_depth != 0 || h.eh_entries > 4)
                return -1;
        for (size_t k = 0; k < h.eh_entries; k++) {
                struct ext3_extent e;
                memcpy(&e, i_block + sizeof h + k * sizeof e, sizeof e);
                uint64_t len = e.ee_len > EXT_INIT_MAX_LEN ? e.ee_len - EXT_INIT_MAX_LEN : e.ee_len;
                if (suspect_any(s, (uint64_t) e.ee_start_hi << 32 | e.ee_start, len))
                        return 1;
        }
        return 0;
}

/* Whether a file owns a block that is suspect. What cannot be told is. */
static bool owns_suspect(struct hfs *fs, const struct hinode *i, const struct suspect *s) {
        if (hinode_acl_block(i) != 0 && suspect_any(s, hinode_acl_block(i), 1))
                return true;
        if (!hinode_mapped(i))
                return false;
        int leaf = i->l.i_flags & EXT4_EXTENTS_FL ? leaf_suspect((const uint8_t *) i->l.i_block, s) : -1;
        if (leaf >= 0)
                return leaf;
        _cleanup_(runs_done) struct runs runs = { .v = NULL };
        if (hfs_map(fs, i, &runs) < 0)
                return true;
        for (size_t k = 0; k < runs.n; k++)
                if (suspect_any(s, runs.v[k].pblk, runs.v[k].len))
                        return true;
        return false;
}

/* The same answer for nearly all files, from their first 128 bytes alone, where they lie: reading the tables is mostly
 * waiting for memory. The inode's own bytes are the same in both. */
static bool is_plain_and_same(const uint8_t *raw, uint32_t ino, const struct suspect *s) {
        const struct ext2_inode *i = (const struct ext2_inode *) (const void *) raw;

        return S_ISREG(i->i_mode) && i->i_file_acl == 0 && i->osd2.linux2.l_i_file_acl_high == 0 &&
               (i->i_flags & (EXT4_EXTENTS_FL | EXT4_INLINE_DATA_FL)) == EXT4_EXTENTS_FL && !is_reserved(ino) &&
               leaf_suspect((const uint8_t *) i->i_block, s) == 0;
}

/* Without memory or room there is just no note. */
static void add_note(struct scan *s, const struct hinode *i) {
        if (hinode_inline(i))
                return;
        struct dir_note n = { .ino = i->ino, .flags = i->l.i_flags, .size = hinode_size(i) };
        memcpy(n.block, i->l.i_block, sizeof n.block);
        (void) ARRAY_ADD(s->notes, s->notes_n, s->notes_cap, NOTES_MAX, n);
}

/* o is NULL where it is the same bytes as n. */
static void look(struct run_state *t, uint32_t ino, const struct hinode *o, const struct hinode *n) {
        const struct hinode *was = o ? o : n;
        bool used_old = hinode_used(was), used_new = hinode_used(n);

        if ((!used_old && !used_new) || is_reserved(ino))
                return;
        if (used_old && S_ISDIR(was->l.i_mode))
                set_bit(t->scan->old_dirs, ino);
        if (used_new && S_ISDIR(n->l.i_mode))
                set_bit(t->scan->new_dirs, ino);
        bool replaced = t->apart || used_old != used_new || !hinode_same_file(was, n);
        if (!replaced && !suspect_all(t->s) && (!o || memcmp(o->raw, n->raw, t->new->inode_bytes) == 0) &&
            !owns_suspect(t->new, n, t->s)) {
                if (S_ISDIR(n->l.i_mode))
                        add_note(t->scan, n);
                return;
        }
        set_bit(t->scan->touched, ino);
        t->scan->touched_n++;
        if (replaced)
                set_bit(t->scan->replaced, ino);
}

static void take(struct hinode *i, uint32_t ino, const uint8_t *raw, size_t n) {
        i->ino = ino;
        memcpy(i->raw, raw, n);
}

/* One block of a table; `was` is NULL where it is the same in both. */
static void look_block(struct run_state *t, uint32_t first, const uint8_t *was, const uint8_t *now) {
        static struct hinode o, n; /* large, and what lies beyond inode_bytes stays zero */
        uint32_t bytes = t->new->inode_bytes;

        for (uint32_t k = 0; k < t->new->block_size / bytes; k++) {
                const uint8_t *a = was ? was + (size_t) k * bytes : NULL, *b = now + (size_t) k * bytes;
                __builtin_prefetch(b + (size_t) AHEAD * bytes);
                __builtin_prefetch(b + (size_t) AHEAD * bytes + 64);
                if (!a && ((b[0] | b[1]) == 0 /* no mode: not in use */ || is_plain_and_same(b, first + k, t->s)))
                        continue;
                if (a && (a[0] | a[1] | b[0] | b[1]) == 0)
                        continue;
                take(&n, first + k, b, bytes);
                if (a)
                        take(&o, first + k, a, bytes);
                look(t, first + k, a ? &o : NULL, &n);
        }
}

/* Blocks [at, at + n) of both tables, whose first inode is `first`. */
static int look_chunk(struct run_state *t, uint64_t at, uint32_t n, uint32_t first, uint8_t *was, uint8_t *now) {
        uint32_t bs = t->new->block_size, per_block = bs / t->new->inode_bytes;
        bool suspect = suspect_any(t->s, at, n);

        int r = image_read(t->new->img, at * bs, now, (size_t) n * bs);
        if (r == 0 && suspect)
                r = image_read(t->old->img, at * bs, was, (size_t) n * bs);
        for (uint32_t k = 0; r == 0 && k < n; k++) {
                bool differ = suspect && suspect_any(t->s, at + k, 1);
                look_block(t, first + k * per_block, differ ? was + (size_t) k * bs : NULL, now + (size_t) k * bs);
        }
        return r;
}

/*
 * Blocks that are the same in both, and in no overlay, are looked at where they are: in the older image, which is a file that stays,
 * so that the host has them in memory the next time. The newer one may be a copy of this moment, of which it has nothing yet.
 */
static bool look_view(struct run_state *t, uint64_t at, uint32_t n, uint32_t first) {
        uint32_t bs = t->new->block_size, per_block = bs / t->new->inode_bytes;
        const uint8_t *view = image_view(t->old->img, at * bs, (size_t) n * bs);

        for (uint32_t k = 0; view && k < n; k++)
                look_block(t, first + k * per_block, NULL, view + (size_t) k * bs);
        image_view_done(view, (size_t) n * bs);
        return view;
}

/* How many blocks from k on are of one kind: at least one, at most `most`. */
static uint32_t stretch(const struct run_state *t, uint64_t table, uint32_t k, uint32_t blocks, bool suspect, uint32_t most) {
        uint32_t n = 1;

        while (n < most && k + n < blocks && !suspect_empty(t->s, table + k + n) &&
               suspect_any(t->s, table + k + n, 1) == suspect)
                n++;
        return n;
}

/* A group whose inode table lies at the same place in both. */
static int look_group(struct run_state *t, uint32_t group, uint64_t table, uint8_t *was, uint8_t *now) {
        uint32_t bs = t->new->block_size, blocks = hfs_table_blocks(t->new), per_block = bs / t->new->inode_bytes;
        uint32_t copied = CHUNK_BYTES / bs, viewed = VIEW_BYTES / bs, n;

        for (uint32_t k = 0; k < blocks; k += n) {
                n = 1;
                if (suspect_empty(t->s, table + k))
                        continue;
                uint32_t first = group * t->new->inodes_per_group + k * per_block + 1;
                bool suspect = suspect_any(t->s, table + k, 1);
                n = stretch(t, table, k, blocks, suspect, suspect ? copied : viewed);
                if (!suspect && bs % PAGE_BYTES == 0 && look_view(t, table + k, n, first))
                        continue;
                n = n < copied ? n : copied;
                int r = look_chunk(t, table + k, n, first, was, now);
                if (r < 0)
                        return r;
        }
        return 0;
}

/* One by one, where nothing is known of how the tables lie. */
static int look_singly(struct run_state *t, uint32_t from, uint32_t to) {
        static struct hinode o, n;
        static const struct hinode none;

        for (uint32_t ino = from; ino <= to; ino++) {
                int r = ino <= t->old->inodes ? hfs_inode(t->old, ino, &o) : -EUCLEAN;
                if (r == -EUCLEAN)
                        o = none;
                else if (r < 0)
                        return r;
                r = ino <= t->new->inodes ? hfs_inode(t->new, ino, &n) : -EUCLEAN;
                if (r == -EUCLEAN)
                        n = none;
                else if (r < 0)
                        return r;
                o.ino = n.ino = ino;
                look(t, ino, &o, &n);
        }
        return 0;
}

static int look_all(struct run_state *t, uint8_t *was, uint8_t *now) {
        uint32_t ipg = t->new->inodes_per_group, groups = 0;
        int r = 0;

        if (!t->apart)
                groups = t->old->groups < t->new->groups ? t->old->groups : t->new->groups;
        for (uint32_t g = 0; r == 0 && g < groups; g++) {
                uint64_t table = hfs_table(t->new, g);
                if (table != 0 && hfs_table(t->old, g) == table)
                        r = look_group(t, g, table, was, now);
                else
                        r = look_singly(t, g * ipg + 1, (g + 1) * ipg);
        }
        return r < 0 ? r : look_singly(t, groups * ipg + 1, t->scan->inodes);
}

static int make_bits(struct scan *s) {
        size_t n = (size_t) s->inodes / 8 + 1;

        s->touched = calloc(1, n);
        s->replaced = calloc(1, n);
        s->old_dirs = calloc(1, n);
        s->new_dirs = calloc(1, n);
        return s->touched && s->replaced && s->old_dirs && s->new_dirs ? 0 : -ENOMEM;
}

int scan_inodes(struct hfs *old, struct hfs *new, const struct suspect *s, struct scan *ret, struct error *err) {
        size_t room = CHUNK_BYTES > new->block_size ? CHUNK_BYTES : new->block_size;
        _cleanup_(scan_done) struct scan scan = { .inodes = old->inodes > new->inodes ? old->inodes : new->inodes };
        _cleanup_free_ uint8_t *was = malloc(room), *now = malloc(room);
        struct run_state t = { .old = old, .new = new, .s = s, .scan = &scan, .apart = !suspect_same_layout(old, new) };

        if (!was || !now || make_bits(&scan) < 0)
                return error_set(err, -ENOMEM, "out of memory");
        int r = look_all(&t, was, now);
        if (r < 0)
                return error_errno(err, r, "the inode tables cannot be read");
        *ret = scan;
        scan = (struct scan){ .inodes = 0 };
        return 0;
}

void scan_done(struct scan *s) {
        free(s->touched);
        free(s->replaced);
        free(s->old_dirs);
        free(s->new_dirs);
        free(s->notes);
        *s = (struct scan){ .inodes = 0 };
}
