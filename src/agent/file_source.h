/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* A file, or a part of it, as the body of an answer: GET of both APIs. */

#include <sys/stat.h>

#include "agent.h"

enum file_style { FILE_STYLE_E2B, FILE_STYLE_NATIVE }; /* how errors look */

/* Answers x with the file at path, read with the rights of `as` (NULL: root): conditional requests,
 * one range, gzip when that is all the client takes. */
void file_source_answer(struct agent *a, struct http_x *x, const char *path, const struct user *as,
                        enum file_style style);
