/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* A unified difference of two small texts. */

#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"

struct patch_side {
        const char *path; /* NULL: the file was not there (/dev/null) */
        const uint8_t *data;
        size_t n;
};

/* NULL where it is worth showing, or why it is not: "binary" where it is no UTF-8 or has a NUL, "too_large" beyond
 * HISTORY_PATCH_FILE_MAX bytes or HISTORY_PATCH_LINES_MAX lines. */
const char *patch_unfit(const uint8_t *data, size_t n);

/* Appends "--- a/path", "+++ b/path" and the hunks, with three lines around each. Both sides are texts. Control bytes
 * of paths come out as "?". 0, -ENOMEM, -ENOBUFS. */
int patch_write(struct buf *out, const struct patch_side *old, const struct patch_side *new);
