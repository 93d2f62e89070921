/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* A unified difference of two small texts. */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"

struct patch_side {
        const char *path; /* NULL: the file was not there (/dev/null) */
        const uint8_t *data;
        size_t n;
};

/* Whether it is worth showing: UTF-8 without NUL, at most HISTORY_PATCH_FILE_MAX bytes and HISTORY_PATCH_LINES_MAX
 * lines. */
bool patch_is_text(const uint8_t *data, size_t n);

/* Appends "--- a/path", "+++ b/path" and the hunks, with three lines around each. Both sides are texts. Control bytes
 * of paths come out as "?". 0, -ENOMEM, -ENOBUFS. */
int patch_write(struct buf *out, const struct patch_side *old, const struct patch_side *new);
