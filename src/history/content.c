/* SPDX-License-Identifier: Apache-2.0 */
#include "content.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define CHUNK_BYTES (256u * 1024)

struct piece {
        bool zero, placed;
        uint64_t block, end; /* end in bytes */
};

static struct piece piece_at(const struct hfile *f, uint64_t off) {
        uint64_t bs = f->fs->block_size, next = 0;

        if (f->small)
                return (struct piece){ .end = f->size };
        const struct run *r = hfile_run(f, off / bs, &next);
        struct piece p = { .zero = !r || r->kind == RUN_UNWRITTEN,
                           .placed = r,
                           .end = next > f->size / bs ? f->size : next * bs };
        if (r)
                p.block = r->pblk + (off / bs - r->lblk);
        return p;
}

static bool same_place(const struct piece *x, const struct piece *y, const struct suspect *s, uint64_t off, uint64_t end,
                       uint64_t bs) {
        return s && !suspect_all(s) && x->placed && y->placed && !x->zero && !y->zero && x->block == y->block &&
               !suspect_any(s, x->block, (end - off / bs * bs + bs - 1) / bs);
}

/* buf holds two chunks. */
static int bytes_equal(struct hfile *a, struct hfile *b, uint64_t off, uint64_t end, uint8_t *buf, size_t chunk) {
        while (off < end) {
                size_t n = end - off < chunk ? (size_t) (end - off) : chunk;
                int r = hfile_read(a, off, buf, n);
                if (r == 0)
                        r = hfile_read(b, off, buf + chunk, n);
                if (r < 0)
                        return r;
                if (memcmp(buf, buf + chunk, n) != 0)
                        return 0;
                off += n;
        }
        return 1;
}

int content_equal(struct hfile *a, struct hfile *b, const struct suspect *s, uint64_t *budget) {
        if (a->size != b->size)
                return 0;
        size_t chunk = a->size < CHUNK_BYTES ? (size_t) a->size + 1 : CHUNK_BYTES;
        _cleanup_free_ uint8_t *buf = malloc(2 * chunk);
        if (!buf)
                return -ENOMEM;
        for (uint64_t off = 0; off < a->size;) {
                struct piece x = piece_at(a, off), y = piece_at(b, off);
                uint64_t end = x.end < y.end ? x.end : y.end;
                bool skip = (x.zero && y.zero) || same_place(&x, &y, s, off, end, a->fs->block_size);
                if (!skip && end - off > CHUNK_BYTES) /* pieces, so that the budget is not one large step */
                        end = off + CHUNK_BYTES;
                if (!skip && budget) {
                        if (*budget < end - off)
                                return -EDQUOT;
                        *budget -= end - off;
                }
                int r = skip ? 1 : bytes_equal(a, b, off, end, buf, chunk);
                if (r <= 0)
                        return r;
                off = end;
        }
        return 1;
}
