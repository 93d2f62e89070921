/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* Whether two files have the same bytes. */

#include "hfile.h"
#include "suspect.h"

/*
 * 1, 0 or a negative errno. Blocks that both share at the same place, and that are not suspect, are not read; s may be
 * NULL. At most *budget bytes are read of each (NULL: any number), -EDQUOT above.
 */
int content_equal(struct hfile *a, struct hfile *b, const struct suspect *s, uint64_t *budget);
