/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* The shortest way from one text to another, line by line (Myers 1986), bounded. */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/*
 * a and b are lines as numbers: equal lines have equal numbers. Marks the lines of a that go (gone[i]) and those of b
 * that come (came[k]). Needs memory for max_edits squared numbers at most; a longer way is not looked for: then all
 * between the common start and the common end goes and comes. 0 or -ENOMEM.
 */
int myers_diff(const uint32_t *a, size_t an, const uint32_t *b, size_t bn, size_t max_edits, bool *gone, bool *came);
