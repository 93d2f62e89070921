/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * A table of text with aligned columns. Cells are copied and made safe (text.h). The last column is
 * not padded, so that lines have no blanks at their end.
 */

#include <stdio.h>

struct table;

struct table *table_new(const char *const *headers); /* NULL-terminated */
/* Appends one cell; a row is full after as many cells as there are headers. NULL is shown as "-". */
void table_cell(struct table *t, const char *text);
void table_cellf(struct table *t, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* On terminals that know colours: the cell just added is shown in this colour ("32"). */
void table_colour(struct table *t, const char *sgr);
void table_print(const struct table *t, FILE *out);
void table_free(struct table *t);
