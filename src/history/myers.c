/* SPDX-License-Identifier: Apache-2.0 */

/*
 * The greedy form: for d = 0, 1, 2, ... edits, v[k] is how far into `a` one gets on diagonal k (k = x - y). The v of
 * each d is kept, and from the end the way is walked back through them.
 */
#include "myers.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>

#include "base/cleanup.h"

struct search {
        const uint32_t *a, *b;
        ssize_t an, bn;
        ssize_t **trace; /* trace[d] holds diagonals -d .. d */
        ssize_t d;       /* edits of the way that was found; -1: none within the limit */
};

static void search_done(struct search *s, size_t rows) {
        for (size_t i = 0; s->trace && i < rows; i++)
                free(s->trace[i]);
        free(s->trace);
}

/* Where diagonal k stands before its d-th edit: one line of b came (from k + 1) or one of a went (from k - 1). */
static bool comes_from_above(const ssize_t *before, ssize_t d, ssize_t k) {
        const ssize_t *v = before + (d - 1); /* v[0] is diagonal 0 */

        return k == -d || (k != d && v[k - 1] < v[k + 1]);
}

static int forward(struct search *s, size_t max_edits) {
        for (ssize_t d = 0; d <= (ssize_t) max_edits && d <= s->an + s->bn; d++) {
                ssize_t *row = malloc((2 * (size_t) d + 1) * sizeof *row);
                if (!row)
                        return -ENOMEM;
                s->trace[d] = row;
                for (ssize_t k = -d; k <= d; k += 2) {
                        ssize_t x = 0;
                        if (d > 0) {
                                const ssize_t *v = s->trace[d - 1] + (d - 1);
                                x = comes_from_above(s->trace[d - 1], d, k) ? v[k + 1] : v[k - 1] + 1;
                        }
                        while (x < s->an && x - k < s->bn && x - k >= 0 && s->a[x] == s->b[x - k])
                                x++;
                        row[k + d] = x;
                        if (k > -d)
                                row[k + d - 1] = -1; /* the diagonals between are not reached with d edits */
                        if (k == s->an - s->bn && x >= s->an) {
                                s->d = d;
                                return 0;
                        }
                }
        }
        return 0;
}

static void backward(const struct search *s, bool *gone, bool *came) {
        ssize_t x = s->an, y = s->bn;

        for (ssize_t d = s->d; d > 0; d--) {
                const ssize_t *v = s->trace[d - 1] + (d - 1);
                ssize_t k = x - y;
                if (comes_from_above(s->trace[d - 1], d, k)) {
                        x = v[k + 1];
                        y = x - (k + 1);
                        if (y >= 0 && y < s->bn)
                                came[y] = true;
                } else {
                        x = v[k - 1];
                        y = x - (k - 1);
                        if (x >= 0 && x < s->an)
                                gone[x] = true;
                }
        }
}

int myers_diff(const uint32_t *a, size_t an, const uint32_t *b, size_t bn, size_t max_edits, bool *gone, bool *came) {
        size_t head = 0, tail = 0;

        memset(gone, 0, an);
        memset(came, 0, bn);
        while (head < an && head < bn && a[head] == b[head])
                head++;
        while (tail < an - head && tail < bn - head && a[an - 1 - tail] == b[bn - 1 - tail])
                tail++;
        struct search s = { .a = a + head,
                            .b = b + head,
                            .an = (ssize_t) (an - head - tail),
                            .bn = (ssize_t) (bn - head - tail),
                            .d = -1 };
        s.trace = calloc(max_edits + 1, sizeof *s.trace);
        int r = s.trace ? forward(&s, max_edits) : -ENOMEM;
        if (r == 0 && s.d >= 0)
                backward(&s, gone + head, came + head);
        else if (r == 0) {
                memset(gone + head, 1, (size_t) s.an);
                memset(came + head, 1, (size_t) s.bn);
        }
        search_done(&s, max_edits + 1);
        return r;
}
