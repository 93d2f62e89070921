/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* The header lines of one part and the message's Content-Type, internal to the reader. */

#include "wire/multipart.h"

/* Finds the boundary in a Content-Type value. */
int multipart_boundary(const char *content_type, char ret[MULTIPART_BOUNDARY_MAX + 1], struct error *err);

/* Parses text[0..n) (lines ending in CRLF, without the empty one) into part, writing into text; the
 * decoded filename needs n more bytes at `extra`. NULL, or what is wrong. */
const char *multipart_head_parse(char *text, size_t n, char *extra, struct multipart_part *part);
