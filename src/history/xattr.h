/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* Extended attributes: compared, and written into archives. Inline data is kept as one and is left out: it is content. */

#include <stddef.h>
#include <stdint.h>

#include "hfs.h"

/* One of a file; names are whole ("user.x"). */
struct xattr {
        char *name;
        uint8_t *value;
        size_t n;
};
struct xattrs {
        struct xattr *v;
        size_t n, cap, bytes;
        int r;
};
void xattrs_done(struct xattrs *a); /* one with nothing in it is fine */

/* Those of i, by name; access lists as the kernel gives them to programs. ret is empty before. -EDQUOT, -EUCLEAN, -ENOMEM. */
int xattrs_read(struct hfs *fs, const struct hinode *i, struct xattrs *ret);

/* 1: the same set of names and values; 0: not; or a negative errno. */
int xattr_equal(struct hfs *fa, const struct hinode *a, struct hfs *fb, const struct hinode *b);
