/* SPDX-License-Identifier: Apache-2.0 */
#include "scan.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define CHUNK_BYTES (512u * 1024)

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

/* Whether a file owns a block that is suspect. What cannot be told is. */
static bool owns_suspect(struct hfs *fs, const struct hinode *i, const struct suspect *s) {
        struct ext3_extent_header h;

        if (hinode_acl_block(i) != 0 && suspect_any(s, hinode_acl_block(i), 1))
                return true;
        if (!hinode_mapped(i))
                return false;
        memcpy(&h, i->l.i_block, sizeof h);
        if ((i->l.i_flags & EXT4_EXTENTS_FL) && h.eh_magic == EXT3_EXT_MAGIC && h.eh_depth == 0 && h.eh_entries <= 4) {
                for (size_t k = 0; k < h.eh_entries; k++) {
                        struct ext3_extent e;
                        memcpy(&e, (const uint8_t *) i->l.i_block + sizeof h + k * sizeof e, sizeof e);
                        uint64_t len = e.ee_len > EXT_INIT_MAX_LEN ? e.ee_len - EXT_INIT_MAX_LEN : e.ee_len;
                        if (suspect_any(s, (uint64_t) e.ee_start_hi << 32 | e.ee_start, len))
                                return true;
                }
                return false;
        }
        _cleanup_(runs_done) struct runs runs = { .v = NULL };
        if (hfs_map(fs, i, &runs) < 0)
                return true;
        for (size_t k = 0; k < runs.n; k++)
                if (suspect_any(s, runs.v[k].pblk, runs.v[k].len))
                        return true;
        return false;
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
            !owns_suspect(t->new, n, t->s))
                return;
        set_bit(t->scan->touched, ino);
        t->scan->touched_n++;
        if (replaced)
                set_bit(t->scan->replaced, ino);
}

static void take(struct hinode *i, uint32_t ino, const uint8_t *raw, size_t n) {
        i->ino = ino;
        memcpy(i->raw, raw, n);
}

static bool all_zero(const uint8_t *p, size_t n) {
        return n == 0 || (p[0] == 0 && memcmp(p, p + 1, n - 1) == 0);
}

/* One block of a table; `was` is NULL where it is the same in both. */
static void look_block(struct run_state *t, uint32_t first, const uint8_t *was, const uint8_t *now) {
        static struct hinode o, n; /* large, and what lies beyond inode_bytes stays zero */
        uint32_t bytes = t->new->inode_bytes;

        for (uint32_t k = 0; k < t->new->block_size / bytes; k++) {
                const uint8_t *a = was ? was + (size_t) k * bytes : NULL, *b = now + (size_t) k * bytes;
                if (!a && (b[0] | b[1]) == 0) /* no mode: not in use */
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
static int look_chunk(struct run_state *t, uint64_t at, uint64_t n, uint32_t first, uint8_t *was, uint8_t *now) {
        uint32_t bs = t->new->block_size, per_block = bs / t->new->inode_bytes;
        bool suspect = suspect_any(t->s, at, n);

        int r = image_read(t->new->img, at * bs, now, (size_t) n * bs);
        if (r == 0 && suspect)
                r = image_read(t->old->img, at * bs, was, (size_t) n * bs);
        for (uint64_t k = 0; r == 0 && k < n; k++) {
                const uint8_t *b = now + k * bs;
                bool differ = suspect && suspect_any(t->s, at + k, 1);
                if (!differ && all_zero(b, bs))
                        continue;
                look_block(t, first + (uint32_t) k * per_block, differ ? was + k * bs : NULL, b);
        }
        return r;
}

/* A group whose inode table lies at the same place in both. */
static int look_group(struct run_state *t, uint32_t group, uint64_t table, uint8_t *was, uint8_t *now) {
        uint32_t bs = t->new->block_size, blocks = hfs_table_blocks(t->new), per_block = bs / t->new->inode_bytes;

        for (uint32_t k = 0; k < blocks;) {
                uint32_t n = 0;
                while (k < blocks && suspect_empty(t->s, table + k))
                        k++;
                while (k + n < blocks && (n + 1) * bs <= CHUNK_BYTES && !suspect_empty(t->s, table + k + n))
                        n++;
                if (n == 0)
                        continue;
                int r = look_chunk(t, table + k, n, group * t->new->inodes_per_group + k * per_block + 1, was, now);
                if (r < 0)
                        return r;
                k += n;
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
        *s = (struct scan){ .inodes = 0 };
}
