/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * For all targets: cutting the input into pieces. What a parser makes of an input must not depend
 * on where it was cut, so each target parses it whole and in pieces and compares. The cuts come
 * from the input itself (a hash), so that a crash is reproduced by its file alone.
 */

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);
__attribute__((visibility("default"))) const char *__ubsan_default_options(void);

const char *__ubsan_default_options(void) {
        return "halt_on_error=1:print_stacktrace=1";
}

#define REQUIRE(cond)                                                        \
        do {                                                                 \
                if (!(cond)) {                                               \
                        (void) fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #cond); \
                        abort();                                             \
                }                                                            \
        } while (0)

struct cuts {
        uint64_t state;
        size_t max; /* longest piece; 0: one piece */
};

static inline struct cuts cuts_of(const uint8_t *data, size_t n, size_t max) {
        uint64_t h = 0xcbf29ce484222325u ^ max;
        for (size_t i = 0; i < n; i++)
                h = (h ^ data[i]) * 0x100000001b3u;
        return (struct cuts){ .state = h | 1, .max = max };
}

static inline size_t cuts_next(struct cuts *c, size_t left) {
        if (c->max == 0)
                return left;
        c->state ^= c->state << 13;
        c->state ^= c->state >> 7;
        c->state ^= c->state << 17;
        size_t n = 1 + (size_t) (c->state % c->max);
        return n < left ? n : left;
}

/* A copy of its own size, so that a sanitizer sees a read beyond the piece. */
static inline uint8_t *piece_of(const uint8_t *data, size_t n) {
        uint8_t *p = malloc(n ? n : 1);
        REQUIRE(p);
        if (n)
                memcpy(p, data, n);
        return p;
}

static inline void require_same(const struct buf *a, const struct buf *b) {
        if (a->len == b->len && memcmp(buf_data(a), buf_data(b), a->len) == 0)
                return;
        (void) fprintf(stderr, "cut differently, read differently:\n%.*s\n---\n%.*s\n", (int) a->len,
                       (const char *) buf_data(a), (int) b->len, (const char *) buf_data(b));
        abort();
}
