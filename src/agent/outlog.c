/* SPDX-License-Identifier: Apache-2.0 */
#include "outlog.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* Small writes share a chunk; a chunk is big enough that its head does not matter. */
#define CHUNK_SIZE (32u * 1024)
#define CHUNK_MIN 512u

struct outlog_chunk {
        struct outlog_chunk *next;
        uint64_t off; /* of data[0] */
        uint32_t n, cap;
        uint8_t channel;
        uint8_t data[];
};

static void drop_first(struct outlog *l) {
        struct outlog_chunk *c = l->first;
        l->first = c->next;
        if (!l->first)
                l->last = NULL;
        l->chunks--;
        free(c);
}

void outlog_done(struct outlog *l) {
        while (l->first)
                drop_first(l);
}

static struct outlog_chunk *grow(struct outlog *l, uint8_t channel, size_t n) {
        /* The first chunk of a command that prints one line stays small. */
        size_t cap = l->first || n > CHUNK_MIN ? CHUNK_SIZE : CHUNK_MIN;
        struct outlog_chunk *c = malloc(sizeof *c + cap);
        if (!c)
                return NULL;
        *c = (struct outlog_chunk){ .off = l->end, .cap = (uint32_t) cap, .channel = channel };
        if (l->last)
                l->last->next = c;
        else
                l->first = c;
        l->last = c;
        l->chunks++;
        return c;
}

int outlog_append(struct outlog *l, uint8_t channel, const void *data, size_t n) {
        const uint8_t *p = data;
        while (n > 0) {
                struct outlog_chunk *c = l->last;
                if (!c || c->channel != channel || c->n == c->cap) {
                        c = grow(l, channel, n);
                        if (!c)
                                return -ENOMEM;
                }
                size_t m = c->cap - c->n;
                if (m > n)
                        m = n;
                memcpy(c->data + c->n, p, m);
                c->n += (uint32_t) m;
                l->end += m;
                p += m;
                n -= m;
        }
        return 0;
}

void outlog_ack(struct outlog *l, uint64_t off) {
        if (off > l->end)
                off = l->end;
        if (off <= l->base)
                return;
        l->base = off;
        while (l->first && l->first->off + l->first->n <= off)
                drop_first(l);
}

size_t outlog_peek(const struct outlog *l, uint64_t off, uint8_t *ret_channel, const uint8_t **ret_data) {
        if (off < l->base || off >= l->end)
                return 0;
        const struct outlog_chunk *c = l->first;
        while (c && off >= c->off + c->n)
                c = c->next;
        if (!c)
                return 0;
        size_t skip = (size_t) (off - c->off);
        *ret_channel = c->channel;
        *ret_data = c->data + skip;
        return c->n - skip;
}
