/* SPDX-License-Identifier: Apache-2.0 */
#include "table.h"

#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "text.h"

#define TABLE_GAP 3

struct cell {
        char *text;
        const char *sgr;
        size_t width;
};

struct table {
        struct cell *cells; /* row by row, the headers first */
        size_t n, cols;
};

static void add(struct table *t, char *text) {
        /* Powers of two: grown when n is one. */
        if ((t->n & (t->n - 1)) == 0)
                t->cells = mem_grow(t->cells, t->n ? 2 * t->n : 1, sizeof *t->cells);
        t->cells[t->n++] = (struct cell) { .text = text, .width = text_width(text) };
}

struct table *table_new(const char *const *headers) {
        struct table *t = mem_new(sizeof *t);

        for (; headers[t->cols]; t->cols++)
                add(t, mem_dup(headers[t->cols]));
        return t;
}

void table_cell(struct table *t, const char *text) {
        add(t, text_safe(text && *text ? text : "-"));
}

void table_cellf(struct table *t, const char *fmt, ...) {
        va_list ap;

        va_start(ap, fmt);
        _cleanup_free_ char *s = mem_vprintf(fmt, ap);
        va_end(ap);
        table_cell(t, s);
}

void table_colour(struct table *t, const char *sgr) {
        t->cells[t->n - 1].sgr = sgr;
}

void table_print(const struct table *t, FILE *out) {
        bool colour = text_colour(out);

        size_t *width = mem_new(t->cols * sizeof *width);
        for (size_t i = 0; i < t->n; i++)
                if (t->cells[i].width > width[i % t->cols])
                        width[i % t->cols] = t->cells[i].width;
        for (size_t i = 0; i < t->n; i++) {
                const struct cell *c = &t->cells[i];
                bool last = i % t->cols == t->cols - 1;

                if (c->sgr && colour)
                        fprintf(out, "\033[%sm%s\033[0m", c->sgr, c->text);
                else
                        fputs(c->text, out);
                if (last)
                        fputc('\n', out);
                else
                        fprintf(out, "%*s", (int) (width[i % t->cols] - c->width + TABLE_GAP), "");
        }
        free(width);
}

void table_free(struct table *t) {
        if (!t)
                return;
        for (size_t i = 0; i < t->n; i++)
                free(t->cells[i].text);
        free(t->cells);
        free(t);
}
