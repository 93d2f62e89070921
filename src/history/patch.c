/* SPDX-License-Identifier: Apache-2.0 */
#include "patch.h"

#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/str.h"
#include "bounds.h"
#include "myers.h"

#define CONTEXT 3

struct line {
        const uint8_t *p;
        size_t n; /* with its end, if it has one */
        uint32_t id;
};

struct text {
        struct line *v;
        uint32_t *ids;
        bool *marked; /* this line goes (older text) or comes (newer text) */
        size_t n;
};

const char *patch_unfit(const uint8_t *data, size_t n) {
        size_t lines = 0;

        if (n > HISTORY_PATCH_FILE_MAX)
                return "too_large";
        if ((n > 0 && memchr(data, '\0', n)) || !str_is_utf8(data, n))
                return "binary";
        for (size_t i = 0; i < n; i++)
                lines += data[i] == '\n';
        lines += n > 0 && data[n - 1] != '\n';
        return lines > HISTORY_PATCH_LINES_MAX ? "too_large" : NULL;
}

static void text_done(struct text *t) {
        free(t->v);
        free(t->ids);
        free(t->marked);
}

static int split(struct text *t, const uint8_t *data, size_t n) {
        size_t lines = 1;

        for (size_t i = 0; i < n; i++)
                lines += data[i] == '\n';
        t->v = calloc(lines, sizeof *t->v);
        t->ids = calloc(lines, sizeof *t->ids);
        t->marked = calloc(lines, sizeof *t->marked);
        if (!t->v || !t->ids || !t->marked)
                return -ENOMEM;
        for (size_t i = 0; i < n;) {
                const uint8_t *end = memchr(data + i, '\n', n - i);
                size_t k = end ? (size_t) (end - data) - i + 1 : n - i;
                t->v[t->n++] = (struct line){ .p = data + i, .n = k };
                i += k;
        }
        return 0;
}

static int by_content(const void *x, const void *y) {
        const struct line *a = *(struct line *const *) x, *b = *(struct line *const *) y;
        size_t n = a->n < b->n ? a->n : b->n;
        int r = memcmp(a->p, b->p, n);

        return r != 0 ? r : a->n < b->n ? -1 : a->n > b->n;
}

/* Equal lines of both texts get equal numbers. */
static int number(struct text *a, struct text *b) {
        size_t n = a->n + b->n;
        uint32_t id = 0;

        if (n == 0)
                return 0;
        _cleanup_free_ struct line **all = calloc(n, sizeof *all);
        if (!all)
                return -ENOMEM;
        for (size_t i = 0; i < n; i++)
                all[i] = i < a->n ? &a->v[i] : &b->v[i - a->n];
        qsort(all, n, sizeof(struct line *), by_content);
        for (size_t i = 0; i < n; i++) {
                if (i > 0 && by_content(&all[i - 1], &all[i]) != 0)
                        id++;
                all[i]->id = id;
        }
        for (size_t i = 0; i < a->n; i++)
                a->ids[i] = a->v[i].id;
        for (size_t i = 0; i < b->n; i++)
                b->ids[i] = b->v[i].id;
        return 0;
}

static int put_line(struct buf *out, char mark, const struct line *l) {
        int r = buf_append(out, &mark, 1);

        if (r == 0)
                r = buf_append(out, l->p, l->n);
        if (r == 0 && l->p[l->n - 1] != '\n')
                r = buf_puts(out, "\n\\ No newline at end of file\n");
        return r;
}

static int put_range(struct buf *out, char sign, size_t from, size_t n) {
        /* An empty range names the line before it. */
        return n == 1 ? buf_printf(out, "%c%zu", sign, from + 1) : buf_printf(out, "%c%zu,%zu", sign, n ? from + 1 : from, n);
}

/* Lines [i, i_end) of a against [k, k_end) of b, which begin and end with equal lines. */
static int put_hunk(struct buf *out, const struct text *a, const struct text *b, size_t i, size_t i_end, size_t k,
                    size_t k_end) {
        int r = buf_puts(out, "@@ ");

        if (r == 0)
                r = put_range(out, '-', i, i_end - i);
        if (r == 0)
                r = buf_puts(out, " ");
        if (r == 0)
                r = put_range(out, '+', k, k_end - k);
        if (r == 0)
                r = buf_puts(out, " @@\n");
        while (r == 0 && (i < i_end || k < k_end)) {
                if (i < i_end && a->marked[i])
                        r = put_line(out, '-', &a->v[i++]);
                else if (k < k_end && b->marked[k])
                        r = put_line(out, '+', &b->v[k++]);
                else {
                        r = put_line(out, ' ', &a->v[i++]);
                        k++;
                }
        }
        return r;
}

/* Both texts are walked together; equal lines are passed in step. */
static int put_hunks(struct buf *out, const struct text *a, const struct text *b) {
        size_t i = 0, k = 0;

        while (i < a->n || k < b->n) {
                size_t same = 0;
                while (i + same < a->n && k + same < b->n && !a->marked[i + same] && !b->marked[k + same])
                        same++;
                i += same;
                k += same;
                if (i >= a->n && k >= b->n)
                        return 0;
                size_t lead = same < CONTEXT ? same : CONTEXT, i0 = i - lead, k0 = k - lead;
                for (;;) { /* until more equal lines follow than two contexts need */
                        while (i < a->n && a->marked[i])
                                i++;
                        while (k < b->n && b->marked[k])
                                k++;
                        same = 0;
                        while (i + same < a->n && k + same < b->n && !a->marked[i + same] && !b->marked[k + same])
                                same++;
                        bool end = i + same >= a->n && k + same >= b->n;
                        if (end || same > 2 * CONTEXT)
                                break;
                        i += same;
                        k += same;
                }
                size_t trail = same < CONTEXT ? same : CONTEXT;
                int r = put_hunk(out, a, b, i0, i + trail, k0, k + trail);
                if (r < 0)
                        return r;
                i += trail;
                k += trail;
        }
        return 0;
}

static int put_name(struct buf *out, const char *mark, const char *prefix, const char *path) {
        int r = buf_puts(out, mark);

        if (r == 0)
                r = buf_puts(out, path ? prefix : "/dev/null");
        for (const char *p = path; r == 0 && p && *p; p++)
                r = buf_append(out, (unsigned char) *p < 0x20 || *p == 0x7f ? "?" : p, 1);
        return r < 0 ? r : buf_puts(out, "\n");
}

int patch_write(struct buf *out, const struct patch_side *old, const struct patch_side *new) {
        _cleanup_(text_done) struct text a = { .v = NULL }, b = { .v = NULL };

        int r = split(&a, old->data, old->n);
        if (r == 0)
                r = split(&b, new->data, new->n);
        if (r == 0)
                r = number(&a, &b);
        if (r == 0)
                r = myers_diff(a.ids, a.n, b.ids, b.n, HISTORY_PATCH_EDITS_MAX, a.marked, b.marked);
        if (r == 0)
                r = put_name(out, "--- ", "a", old->path);
        if (r == 0)
                r = put_name(out, "+++ ", "b", new->path);
        return r < 0 ? r : put_hunks(out, &a, &b);
}
