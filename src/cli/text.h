/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * Text for people. Names and messages that come from a server or a guest may hold anything; what is
 * printed as text passes text_safe() first, so that no byte of it drives the terminal: control
 * characters (C0, DEL, C1), bytes that are no UTF-8, and the invisible characters that reorder or
 * hide text are shown as \xNN or \u{NNNN}.
 */

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "mem.h"

/* malloc'd. A newline becomes "\n" in two characters: one message is one line. */
char *text_safe(const char *s) __attribute__((malloc, returns_nonnull));
char *text_safe_n(const void *s, size_t n) __attribute__((malloc, returns_nonnull));
void text_put(FILE *f, const char *s); /* text_safe() and print */

/* How many bytes of s fill at most so many columns. */
size_t text_fit(const char *s, size_t columns);
size_t text_width(const char *s); /* columns on a terminal */

#define TEXT_SIZE 32
/* "3 minutes ago", "in 2 hours", "just now". */
void text_relative(int64_t unix_ms, int64_t now_ms, char out[TEXT_SIZE]);
/* RFC 3339 in, relative out; "-" for NULL, the input (made safe) when it is no time. */
void text_relative_rfc3339(const char *s, char out[TEXT_SIZE]);
void text_size(uint64_t bytes, char out[TEXT_SIZE]);  /* "1.5 GiB" */
void text_duration(uint64_t ms, char out[TEXT_SIZE]); /* "0.21 s", "3 min 5 s" */

/* Prints text wrapped at `width` columns, each line after `indent` blanks. A line end in the text is a blank but before
 * an empty line, which stays, and before one that starts with a blank: that is printed as it stands. */
void text_wrap(FILE *f, const char *s, unsigned indent, unsigned width);

/* Whether f is a terminal that may be coloured (NO_COLOR, TERM=dumb say no). */
bool text_colour(FILE *f);
unsigned text_columns(int fd); /* of the terminal, 80 when it is none */
