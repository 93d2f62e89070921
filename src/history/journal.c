/* SPDX-License-Identifier: Apache-2.0 */

/*
 * One pass over the log collects, transaction by transaction, the tags (which block has a copy where) and the
 * revocations (which block's older copies must not be used any more, because the block was freed and may hold a file's
 * data since). At each commit block the transaction becomes part of the result. Then the newest copy of each block
 * that no later transaction revoked is the overlay.
 */
#include "journal.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "array.h"
#include "base/cleanup.h"
#include "jbd2.h"
#include "bounds.h"

struct copy {
        uint64_t block;
        uint64_t at;
        uint32_t seq;
        bool escaped;
};

struct revoke {
        uint64_t block;
        uint32_t seq;
};

struct log {
        struct image *img;
        const struct journal_map *map;
        uint32_t first, last; /* the log is [first, last) */
        uint32_t features, seed;
        size_t tag_bytes;
        struct copy *copies;
        size_t copies_n, copies_cap, copies_committed;
        struct revoke *revokes;
        size_t revokes_n, revokes_cap, revokes_committed;
        uint8_t *block, *data; /* a block each */
};

static uint32_t be32(const uint8_t *p) {
        return (uint32_t) p[0] << 24 | (uint32_t) p[1] << 16 | (uint32_t) p[2] << 8 | p[3];
}

static uint16_t be16(const uint8_t *p) {
        return (uint16_t) (p[0] << 8 | p[1]);
}

static bool checksummed(const struct log *l) {
        return l->features & (JBD2_INCOMPAT_CSUM_V2 | JBD2_INCOMPAT_CSUM_V3);
}

/* Whether the checksum at `at` is that of the whole block with itself as zero. */
static bool block_sum_ok(const struct log *l, uint8_t *block, size_t at, size_t n, uint32_t seed) {
        uint32_t stored = be32(block + at);

        memset(block + at, 0, 4);
        uint32_t sum = ext2fs_crc32c_le(seed, block, n);
        block[at] = (uint8_t) (stored >> 24);
        block[at + 1] = (uint8_t) (stored >> 16);
        block[at + 2] = (uint8_t) (stored >> 8);
        block[at + 3] = (uint8_t) stored;
        return !checksummed(l) || sum == stored;
}

static int read_block(struct log *l, uint32_t n, uint8_t *buf) {
        return image_read_raw(l->img, l->map->blocks[n] * l->map->block_size, buf, l->map->block_size);
}

static uint32_t next_block(const struct log *l, uint32_t n) {
        return n + 1 >= l->last ? l->first : n + 1;
}

static int add_copy(struct log *l, const struct copy *c) {
        return ARRAY_ADD(l->copies, l->copies_n, l->copies_cap, HISTORY_JOURNAL_BLOCKS_MAX, *c);
}

static int add_revoke(struct log *l, uint64_t block, uint32_t seq) {
        const struct revoke r = { .block = block, .seq = seq };

        return ARRAY_ADD(l->revokes, l->revokes_n, l->revokes_cap, HISTORY_REVOKES_MAX, r);
}

static bool data_sum_ok(const struct log *l, const uint8_t *data, uint32_t seq, const uint8_t *tag) {
        const uint8_t be[4] = { (uint8_t) (seq >> 24), (uint8_t) (seq >> 16), (uint8_t) (seq >> 8), (uint8_t) seq };
        uint32_t sum;

        if (!checksummed(l))
                return true;
        sum = ext2fs_crc32c_le(ext2fs_crc32c_le(l->seed, be, sizeof be), data, l->map->block_size);
        if (l->features & JBD2_INCOMPAT_CSUM_V3)
                return be32(tag + 12) == sum;
        return be16(tag + 4) == (sum & 0xffff);
}

struct tag {
        uint64_t block;
        uint32_t flags;
};

static struct tag tag_of(const struct log *l, const uint8_t *p) {
        struct tag t = { .block = be32(p) };

        if (l->features & JBD2_INCOMPAT_CSUM_V3)
                t.flags = be32(p + 4);
        else
                t.flags = be16(p + 6);
        if (l->features & JBD2_INCOMPAT_64BIT)
                t.block |= (uint64_t) be32(p + 8) << 32;
        return t;
}

static size_t tag_bytes(uint32_t features) {
        if (features & JBD2_INCOMPAT_CSUM_V3)
                return 16;
        size_t n = 8;
        if (features & JBD2_INCOMPAT_CSUM_V2)
                n += 2;
        if (features & JBD2_INCOMPAT_64BIT)
                n += 4;
        return n;
}

/* Reads the tags of the descriptor in l->block; *pos goes on behind its data. *ok: all checksums fit. */
static int read_descriptor(struct log *l, uint32_t seq, uint32_t *pos, uint32_t *left, bool *ok) {
        size_t end = l->map->block_size - (checksummed(l) ? JBD2_TAIL_BYTES : 0);
        struct tag t = { .flags = 0 };

        for (size_t at = JBD2_HEADER_BYTES; !(t.flags & JBD2_TAG_LAST) && at + l->tag_bytes <= end;) {
                const uint8_t *p = l->block + at;
                t = tag_of(l, p);
                at += l->tag_bytes + (t.flags & JBD2_TAG_SAME_UUID ? 0 : 16);
                if (*left == 0)
                        return -EUCLEAN;
                --*left;
                int r = read_block(l, *pos, l->data);
                if (r < 0)
                        return r;
                if (!data_sum_ok(l, l->data, seq, p))
                        *ok = false;
                struct copy c = { .block = t.block,
                                  .at = l->map->blocks[*pos] * l->map->block_size,
                                  .seq = seq,
                                  .escaped = t.flags & JBD2_TAG_ESCAPED };
                if (!(t.flags & JBD2_TAG_DELETED)) {
                        if (t.block >= l->map->fs_blocks)
                                return -EUCLEAN;
                        r = add_copy(l, &c);
                }
                if (r < 0)
                        return r;
                *pos = next_block(l, *pos);
        }
        return 0;
}

static int read_revokes(struct log *l, uint32_t seq) {
        size_t width = l->features & JBD2_INCOMPAT_64BIT ? 8 : 4, used = be32(l->block + JBD2_HEADER_BYTES);
        size_t end = l->map->block_size - (checksummed(l) ? JBD2_TAIL_BYTES : 0);

        if (used > end)
                return -EUCLEAN;
        for (size_t at = JBD2_REVOKE_HEADER_BYTES; at + width <= used; at += width) {
                uint64_t block = be32(l->block + at);
                if (width == 8)
                        block = block << 32 | be32(l->block + at + 4);
                int r = add_revoke(l, block, seq);
                if (r < 0)
                        return r;
        }
        return 0;
}

/* Goes through the log from `pos` on. What is not committed is left out of the *_committed counts. */
static int scan(struct log *l, uint32_t pos, uint32_t seq, struct journal_result *res) {
        uint32_t left = l->last - l->first; /* a log that goes round twice is none */
        size_t tail = l->map->block_size - JBD2_TAIL_BYTES;
        bool ok = true;

        while (left > 0) {
                left--;
                int r = read_block(l, pos, l->block);
                if (r < 0)
                        return r;
                if (be32(l->block) != JBD2_MAGIC || be32(l->block + 8) != seq)
                        return 0;
                pos = next_block(l, pos);
                uint32_t type = be32(l->block + 4);
                if (type == JBD2_COMMIT) {
                        if (!block_sum_ok(l, l->block, 16, l->map->block_size, l->seed))
                                return 0;
                        if (!ok) {
                                res->damaged = true;
                                return 0;
                        }
                        l->copies_committed = l->copies_n;
                        l->revokes_committed = l->revokes_n;
                        res->transactions++;
                        seq++;
                } else if (type == JBD2_DESCRIPTOR) {
                        if (!block_sum_ok(l, l->block, tail, l->map->block_size, l->seed))
                                return 0;
                        r = read_descriptor(l, seq, &pos, &left, &ok);
                } else if (type == JBD2_REVOKE) {
                        if (!block_sum_ok(l, l->block, tail, l->map->block_size, l->seed))
                                return 0;
                        r = read_revokes(l, seq);
                } else
                        return 0;
                if (r == -EUCLEAN) /* of a transaction that was never committed, or nobody could use it */
                        return 0;
                if (r < 0)
                        return r;
        }
        return 0;
}

static int by_block_then_age(const void *x, const void *y) {
        const struct copy *a = x, *b = y;

        if (a->block != b->block)
                return a->block < b->block ? -1 : 1;
        if (a->seq != b->seq)
                return (int32_t) (a->seq - b->seq) < 0 ? -1 : 1;
        return a->at < b->at ? -1 : a->at > b->at;
}

static int revokes_by_block(const void *x, const void *y) {
        const struct revoke *a = x, *b = y;

        if (a->block != b->block)
                return a->block < b->block ? -1 : 1;
        return (int32_t) (a->seq - b->seq) < 0 ? -1 : a->seq != b->seq;
}

/* A revocation holds for the copies of its own and of earlier transactions. */
static bool revoked(const struct log *l, const struct copy *c) {
        size_t lo = 0, hi = l->revokes_committed;

        while (lo < hi) { /* the first entry of a larger block: the one before it is this block's newest */
                size_t mid = lo + (hi - lo) / 2;
                if (l->revokes[mid].block <= c->block)
                        lo = mid + 1;
                else
                        hi = mid;
        }
        return lo > 0 && l->revokes[lo - 1].block == c->block && (int32_t) (c->seq - l->revokes[lo - 1].seq) <= 0;
}

/*
 * The journal writes blocks of one transaction in any order but each once; of several copies of the same
 * transaction (never seen) the one further on in the image is as good as the other.
 */
static int make_overlay(struct log *l) {
        size_t n = 0;

        if (l->copies_committed == 0)
                return 0;
        struct overlay_entry *v = calloc(l->copies_committed, sizeof *v);
        if (!v)
                return -ENOMEM;
        qsort(l->copies, l->copies_committed, sizeof *l->copies, by_block_then_age);
        if (l->revokes_committed > 0)
                qsort(l->revokes, l->revokes_committed, sizeof *l->revokes, revokes_by_block);
        for (size_t i = 0; i < l->copies_committed; i++) {
                const struct copy *c = &l->copies[i];
                if ((i + 1 < l->copies_committed && l->copies[i + 1].block == c->block) || revoked(l, c))
                        continue;
                v[n++] = (struct overlay_entry){ .block = c->block, .at = c->at, .escaped = c->escaped };
        }
        free(l->img->overlay);
        l->img->overlay = v;
        l->img->overlay_n = n;
        l->img->block_size = l->map->block_size;
        return 0;
}

static int read_super(struct log *l, uint32_t *start, uint32_t *seq, struct journal_result *res, struct error *err) {
        uint8_t *sb = l->block;
        int r = read_block(l, 0, sb);

        if (r < 0)
                return error_errno(err, r, "the journal cannot be read");
        uint32_t type = be32(sb + 4), maxlen = be32(sb + JBD2_SB_MAXLEN);
        if (be32(sb) != JBD2_MAGIC || (type != JBD2_SUPER_V1 && type != JBD2_SUPER_V2))
                return error_set(err, -EUCLEAN, "the journal has no superblock");
        l->features = type == JBD2_SUPER_V2 ? be32(sb + JBD2_SB_INCOMPAT) : 0;
        if (l->features & ~JBD2_INCOMPAT_KNOWN)
                return error_set(err, -EOPNOTSUPP, "the journal has features that are not known (%#x)", l->features);
        if (be32(sb + JBD2_SB_BLOCK_SIZE) != l->map->block_size || maxlen > l->map->n || maxlen < 2)
                return error_set(err, -EUCLEAN, "the journal's superblock does not fit the filesystem");
        if (checksummed(l)) {
                if (sb[JBD2_SB_CHECKSUM_TYPE] != JBD2_CHECKSUM_CRC32C ||
                    !block_sum_ok(l, sb, JBD2_SB_CHECKSUM, JBD2_SB_BYTES, ~0u))
                        return error_set(err, -EUCLEAN, "the journal's superblock has a wrong checksum");
                l->seed = ext2fs_crc32c_le(~0u, sb + JBD2_SB_UUID, 16);
        }
        l->first = be32(sb + JBD2_SB_FIRST);
        l->last = maxlen;
        if (l->features & JBD2_INCOMPAT_FAST_COMMIT) {
                uint32_t fc = be32(sb + JBD2_SB_FC_BLOCKS);
                fc = fc ? fc : JBD2_FC_BLOCKS_DEFAULT;
                if (fc >= maxlen)
                        return error_set(err, -EUCLEAN, "the journal's fast commit area does not fit");
                l->last = maxlen - fc;
                res->fast_commits = true;
        }
        *start = be32(sb + JBD2_SB_START);
        *seq = be32(sb + JBD2_SB_SEQUENCE);
        if (l->first < 1 || l->first >= l->last || (*start != 0 && (*start < l->first || *start >= l->last)))
                return error_set(err, -EUCLEAN, "the journal's bounds make no sense");
        l->tag_bytes = tag_bytes(l->features);
        return 0;
}

static void log_done(struct log *l) {
        free(l->copies);
        free(l->revokes);
        free(l->block);
        free(l->data);
}

int journal_load(struct image *img, const struct journal_map *map, struct journal_result *ret, struct error *err) {
        _cleanup_(log_done) struct log l = { .img = img, .map = map };
        struct journal_result res = { .transactions = 0 };
        uint32_t start = 0, seq = 0;

        if (map->n < 2 || map->n > HISTORY_JOURNAL_BLOCKS_MAX)
                return error_set(err, -EUCLEAN, "a journal of %u blocks is none", map->n);
        l.block = malloc(map->block_size);
        l.data = malloc(map->block_size);
        if (!l.block || !l.data)
                return error_set(err, -ENOMEM, "out of memory");
        int r = read_super(&l, &start, &seq, &res, err);
        if (r < 0)
                return r;
        if (start != 0) {
                r = scan(&l, start, seq, &res);
                if (r == 0)
                        r = make_overlay(&l);
                if (r < 0)
                        return error_errno(err, r, "the journal cannot be read");
        }
        *ret = res;
        return 0;
}
