/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * What changed between two images, as JSON lines sorted by path. The last line begins {"end":true and says whether
 * there is more; an answer without it is cut off.
 */

#include "hfs.h"
#include "options.h"
#include "output.h"

int diff_run(struct hfs *old, struct hfs *new, const struct options *o, struct output *out, struct error *err);
