/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * cat and extract: one path of one image. Each answers with a line of JSON; cat then with the file's bytes, exactly
 * "size" many, extract with a tar stream. What goes wrong after the first line shows in the exit status and in
 * an answer that is too short.
 */

#include "hfs.h"
#include "options.h"
#include "output.h"

int show_cat(struct hfs *fs, const struct options *o, struct output *out, struct error *err);
int show_extract(struct hfs *fs, const struct options *o, struct output *out, struct error *err);
