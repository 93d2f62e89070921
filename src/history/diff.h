/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * What changed between two images, as JSON lines sorted by path. The last line begins {"end":true and says whether
 * there is more; an answer without it is cut off.
 */

#include "hfs.h"
#include "options.h"
#include "output.h"

struct suspect;

int diff_run(struct hfs *old, struct hfs *new, const struct options *o, struct output *out, struct error *err);
/* For one who knows which blocks may differ; takes over nothing. */
int diff_suspects(struct hfs *old, struct hfs *new, const struct suspect *s, const struct options *o, struct output *out,
                  struct error *err);
