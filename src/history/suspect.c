/* SPDX-License-Identifier: Apache-2.0 */
#include "suspect.h"

#include <errno.h>
#include <linux/fiemap.h>
#include <linux/fs.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>

#define BATCH 512u
/* What such an extent holds is not at fe_physical, or not yet, or not alone. */
#define NO_PLACE                                                                                                    \
        (FIEMAP_EXTENT_UNKNOWN | FIEMAP_EXTENT_DELALLOC | FIEMAP_EXTENT_ENCODED | FIEMAP_EXTENT_DATA_ENCRYPTED |     \
         FIEMAP_EXTENT_NOT_ALIGNED | FIEMAP_EXTENT_DATA_INLINE | FIEMAP_EXTENT_DATA_TAIL)

/* The extents of one file, read in batches. */
struct places {
        int fd;
        struct fiemap *map;
        uint32_t at;
        uint64_t next, seen;
        bool last;
        struct fiemap_extent e; /* the current one; past the end: length 0 */
};

static int places_fill(struct places *p) {
        struct fiemap *m = p->map;

        memset(m, 0, sizeof *m);
        m->fm_start = p->next;
        m->fm_length = FIEMAP_MAX_OFFSET - p->next;
        m->fm_flags = FIEMAP_FLAG_SYNC; /* without it, data not yet written out shows its old place */
        m->fm_extent_count = BATCH;
        if (ioctl(p->fd, FS_IOC_FIEMAP, m) < 0)
                return -errno;
        p->at = 0;
        if (m->fm_mapped_extents == 0)
                p->last = true;
        return 0;
}

static int places_step(struct places *p) {
        if (p->at >= p->map->fm_mapped_extents && !p->last) {
                int r = places_fill(p);
                if (r < 0)
                        return r;
        }
        if (p->at >= p->map->fm_mapped_extents) {
                p->e = (struct fiemap_extent){ .fe_length = 0 };
                return 0;
        }
        p->e = p->map->fm_extents[p->at++];
        if (++p->seen > HISTORY_HOST_EXTENTS_MAX)
                return -EDQUOT;
        if (p->e.fe_length == 0 || p->e.fe_logical + p->e.fe_length <= p->next)
                return -EIO;
        p->next = p->e.fe_logical + p->e.fe_length;
        p->last = p->last || (p->e.fe_flags & FIEMAP_EXTENT_LAST);
        return 0;
}

static int places_open(struct places *p, int fd) {
        *p = (struct places){ .fd = fd };
        p->map = calloc(1, sizeof *p->map + BATCH * sizeof(struct fiemap_extent));
        return p->map ? places_step(p) : -ENOMEM;
}

static void places_done(struct places *p) {
        free(p->map);
}

/* What lies at pos, and up to where that holds. */
struct place {
        bool zero, known;
        uint64_t physical, end;
};

static int places_at(struct places *p, uint64_t pos, struct place *ret) {
        while (p->e.fe_length > 0 && p->e.fe_logical + p->e.fe_length <= pos) {
                int r = places_step(p);
                if (r < 0)
                        return r;
        }
        if (p->e.fe_length == 0 || p->e.fe_logical > pos) {
                *ret = (struct place){ .zero = true, .end = p->e.fe_length ? p->e.fe_logical : UINT64_MAX };
                return 0;
        }
        *ret = (struct place){ .zero = p->e.fe_flags & FIEMAP_EXTENT_UNWRITTEN,
                               .known = !(p->e.fe_flags & NO_PLACE),
                               .physical = p->e.fe_physical + (pos - p->e.fe_logical),
                               .end = p->e.fe_logical + p->e.fe_length };
        return 0;
}

static void set_range(uint64_t *bits, uint64_t blocks, uint64_t from, uint64_t to) {
        for (uint64_t b = from; b < to && b < blocks;) {
                uint64_t word = b / 64, low = b % 64, n = 64 - low;
                if (n > to - b)
                        n = to - b;
                uint64_t mask = n == 64 ? UINT64_MAX : ((1ULL << n) - 1) << low;
                bits[word] |= mask;
                b += n;
        }
}

static int compare_places(struct suspect *s, struct places *a, struct places *b, uint64_t size, uint64_t bs) {
        struct place x = { .zero = false }, y = { .zero = false };

        for (uint64_t pos = 0; pos < size;) {
                int r = places_at(a, pos, &x);
                if (r == 0)
                        r = places_at(b, pos, &y);
                if (r < 0)
                        return r;
                uint64_t end = x.end < y.end ? x.end : y.end;
                if (end > size)
                        end = size;
                bool same = (x.zero && y.zero) || (!x.zero && !y.zero && x.known && y.known && x.physical == y.physical);
                if (!same)
                        set_range(s->changed, s->blocks, pos / bs, (end + bs - 1) / bs);
                if (!y.zero)
                        set_range(s->filled, s->blocks, pos / bs, (end + bs - 1) / bs);
                pos = end;
        }
        return 0;
}

/* What the journal replaces has no place of its own. */
static void add_overlay(struct suspect *s, const struct image *img) {
        for (size_t i = 0; i < img->overlay_n; i++) {
                set_range(s->changed, s->blocks, img->overlay[i].block, img->overlay[i].block + 1);
                set_range(s->filled, s->blocks, img->overlay[i].block, img->overlay[i].block + 1);
        }
}

bool suspect_same_layout(const struct hfs *a, const struct hfs *b) {
        return a->block_size == b->block_size && a->inode_bytes == b->inode_bytes &&
               a->inodes_per_group == b->inodes_per_group &&
               memcmp(a->fs->super->s_uuid, b->fs->super->s_uuid, sizeof a->fs->super->s_uuid) == 0;
}

static int make_bits(struct suspect *s, const struct hfs *old, const struct hfs *new, struct error *err) {
        const struct image_source *x = &old->img->source, *y = &new->img->source;
        uint64_t size = x->size > y->size ? x->size : y->size;

        s->blocks = size / new->block_size + 1;
        s->changed = calloc(s->blocks / 64 + 1, sizeof *s->changed);
        s->filled = calloc(s->blocks / 64 + 1, sizeof *s->filled);
        return s->changed && s->filled ? 0 : error_set(err, -ENOMEM, "out of memory");
}

static void finish(struct suspect *s, const struct hfs *old, const struct hfs *new) {
        add_overlay(s, old->img);
        add_overlay(s, new->img);
        for (uint64_t i = 0; i <= s->blocks / 64; i++)
                s->count += (uint64_t) __builtin_popcountll(s->changed[i]);
}

int suspect_from_blocks(const struct hfs *old, const struct hfs *new, const uint64_t *blocks, size_t n, struct suspect *ret,
                        struct error *err) {
        _cleanup_(suspect_done) struct suspect s = { .changed = NULL };

        *ret = (struct suspect){ .changed = NULL };
        if (!suspect_same_layout(old, new))
                return 0;
        int r = make_bits(&s, old, new, err);
        if (r < 0)
                return r;
        for (size_t i = 0; i < n; i++)
                set_range(s.changed, s.blocks, blocks[i], blocks[i] + 1);
        set_range(s.filled, s.blocks, 0, s.blocks);
        finish(&s, old, new);
        *ret = s;
        s = (struct suspect){ .changed = NULL };
        return 0;
}

int suspect_make(const struct hfs *old, const struct hfs *new, struct suspect *ret, struct error *err) {
        _cleanup_(suspect_done) struct suspect s = { .changed = NULL };
        _cleanup_(places_done) struct places a = { .fd = -EBADF }, b = { .fd = -EBADF };
        const struct image_source *x = &old->img->source, *y = &new->img->source;

        *ret = (struct suspect){ .changed = NULL };
        if (!suspect_same_layout(old, new) || x->fd < 0 || y->fd < 0 || x->dev != y->dev)
                return 0;
        int r = make_bits(&s, old, new, err);
        if (r < 0)
                return r;
        r = places_open(&a, x->fd);
        if (r == 0)
                r = places_open(&b, y->fd);
        if (r == 0)
                r = compare_places(&s, &a, &b, x->size > y->size ? x->size : y->size, new->block_size);
        if (r == -ENOMEM || r == -EDQUOT)
                return error_errno(err, r, "the image's extents");
        if (r < 0) /* this filesystem cannot tell */
                return 0;
        finish(&s, old, new);
        *ret = s;
        s = (struct suspect){ .changed = NULL };
        return 0;
}

void suspect_done(struct suspect *s) {
        free(s->changed);
        free(s->filled);
        s->changed = s->filled = NULL;
}

bool suspect_any(const struct suspect *s, uint64_t block, uint64_t n) {
        if (!s->changed || block >= s->blocks || n > s->blocks - block)
                return true;
        for (uint64_t b = block, end = block + n; b < end;) {
                uint64_t low = b % 64, k = 64 - low;
                if (k > end - b)
                        k = end - b;
                uint64_t mask = k == 64 ? UINT64_MAX : ((1ULL << k) - 1) << low;
                if (s->changed[b / 64] & mask)
                        return true;
                b += k;
        }
        return false;
}
