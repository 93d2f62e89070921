/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * A file or a tree as a tar stream. Of a folder: "./" first, then its contents by name, as the agent's own
 * downloads are. Of anything else: one entry with its last name. Sockets and devices are left out; further names of a
 * file are links to the first one; attributes are not kept.
 */

#include "hfile.h"
#include "hpath.h"
#include "output.h"

/* hfile_open() for regular files, after what cannot be read as one is refused. */
int extract_open(struct hfs *fs, const struct hinode *i, struct hfile *ret);
int extract_bytes(struct hfile *f, struct output *out, struct error *err);
int extract_tree(struct hfs *fs, const struct hpath *p, uint64_t max_bytes, struct output *out, struct error *err);
