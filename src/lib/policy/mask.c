/* SPDX-License-Identifier: Apache-2.0 */

/*
 * A response's bytes pass through; at each the patterns are tried that begin with it. What may be the beginning
 * of one when the piece ends is held back until more comes. Patterns are few (the secret, and how it was sent),
 * and begin rarely, so this costs about one look into a table a byte.
 */

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "policy/binding_internal.h"

#define PATTERNS_MAX 3

struct pattern {
        uint8_t *data;
        size_t n;
};

struct mask {
        struct pattern patterns[PATTERNS_MAX];
        size_t n;
        bool starts[256];
        struct buf held; /* shorter than the longest pattern */
        uint64_t count;
};

static int add(struct mask *m, const void *data, size_t n) {
        if (n < BINDING_SECRET_MIN)
                return 0;
        for (size_t i = 0; i < m->n; i++)
                if (m->patterns[i].n == n && memcmp(m->patterns[i].data, data, n) == 0)
                        return 0;
        uint8_t *copy = malloc(n);
        if (!copy)
                return -ENOMEM;
        memcpy(copy, data, n);
        m->patterns[m->n++] = (struct pattern){ copy, n };
        m->starts[copy[0]] = true;
        return 0;
}

static void wipe(struct buf *b) {
        if (b->data)
                explicit_bzero(b->data, b->cap);
        buf_done(b);
}

void mask_free(struct mask *m) {
        if (!m)
                return;
        for (size_t i = 0; i < m->n; i++) {
                explicit_bzero(m->patterns[i].data, m->patterns[i].n);
                free(m->patterns[i].data);
        }
        wipe(&m->held);
        free(m);
}

void mask_freep(struct mask **m) {
        mask_free(*m);
}

int mask_new(const struct binding_use *u, struct mask **ret) {
        const struct secret *s = u->outcome == BINDING_ADD ? bindings_secret(u->bindings, u->binding->credential) : NULL;
        static const char basic[] = "Basic ";

        if (!s)
                return -ENOENT;
        _cleanup_(mask_freep) struct mask *m = calloc(1, sizeof *m);
        _cleanup_(wipe) struct buf sent = BUF_INIT(0);
        uint8_t *room;
        if (!m)
                return -ENOMEM;
        int r = add(m, s->data, s->n);
        if (r == 0)
                r = buf_reserve(&sent, 3 * BINDING_SECRET_MAX + BINDING_TEMPLATE_MAX, &room);
        if (r == 0)
                r = binding_render(u->binding, s, &sent);
        /* Of a header's value only the secret is one: "Bearer" may stand anywhere. */
        if (r == 0 && u->binding->place == BINDING_BASIC)
                r = add(m, buf_data(&sent) + strlen(basic), sent.len - strlen(basic));
        if (r == 0 && u->binding->place == BINDING_QUERY)
                r = add(m, buf_data(&sent), sent.len);
        if (r == 0)
                *ret = STEAL(m);
        return r;
}

/* Length of the longest pattern at d, 0 without one; *partial: one begins here and d is too short to tell. */
static size_t match_at(const struct mask *m, const uint8_t *d, size_t n, bool *partial) {
        size_t longest = 0;

        *partial = false;
        for (size_t i = 0; i < m->n; i++) {
                const struct pattern *p = &m->patterns[i];
                size_t len = p->n < n ? p->n : n;
                if (memcmp(p->data, d, len) != 0)
                        continue;
                if (len < p->n)
                        *partial = true;
                else if (len > longest)
                        longest = len;
        }
        return longest;
}

/* Masks in d; returns how many bytes are decided. */
static size_t mask_bytes(const struct mask *m, uint8_t *d, size_t n, bool last, uint64_t *count) {
        size_t i = 0;

        while (i < n) {
                bool partial;
                if (!m->starts[d[i]]) {
                        i++;
                        continue;
                }
                size_t len = match_at(m, d + i, n - i, &partial);
                if (partial && !last)
                        return i;
                if (len > 0) {
                        memset(d + i, '*', len);
                        (*count)++;
                }
                i += len ? len : 1;
        }
        return n;
}

int mask_feed(struct mask *m, const void *data, size_t n, struct buf *out) {
        int r = n ? buf_append(&m->held, data, n) : 0;

        if (r < 0)
                return r;
        uint8_t *d = m->held.data + m->held.start;
        size_t done = m->held.len ? mask_bytes(m, d, m->held.len, false, &m->count) : 0;
        if (done == 0)
                return 0;
        r = buf_append(out, d, done);
        if (r == 0)
                buf_consume(&m->held, done);
        return r;
}

int mask_end(struct mask *m, struct buf *out) {
        if (m->held.len == 0)
                return 0;
        uint8_t *d = m->held.data + m->held.start;
        (void) mask_bytes(m, d, m->held.len, true, &m->count);
        int r = buf_append(out, d, m->held.len);
        buf_clear(&m->held);
        return r;
}

void mask_text(const struct mask *m, char *s, size_t n) {
        uint64_t count = 0;

        (void) mask_bytes(m, (uint8_t *) s, n, true, &count);
}

uint64_t mask_count(const struct mask *m) {
        return m->count;
}
