/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * A tree as a tar stream, made piece by piece as it is asked for. Names are relative to the folder
 * ("./", "a", "a/b"); a single file is one member under its own name. Links are kept as links, hard
 * links within the tree as such. Sockets, pipes and devices are left out; what is mounted below the
 * folder is not entered. Blocks; acts with the rights of its thread.
 */

#include <stdint.h>
#include <sys/types.h>

#include "base/error.h"

struct tar_pack;
int tar_pack_open(const char *path, struct tar_pack **ret, struct error *err);
/* Up to cap bytes; 0 at the end. A file that shrinks or cannot be read is an error: a stream that
 * ends well is the whole tree. */
ssize_t tar_pack_read(struct tar_pack *p, uint8_t *out, size_t cap, struct error *err);
void tar_pack_free(struct tar_pack *p);
