/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* Extended attributes: compared, not shown. Inline data is kept as one and is left out: it is content. */

#include "hfs.h"

/* 1: the same set of names and values; 0: not; or a negative errno. */
int xattr_equal(struct hfs *fa, const struct hinode *a, struct hfs *fb, const struct hinode *b);
