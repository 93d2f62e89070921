/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * Unpacks a tar stream that a sandbox sent, which is hostile: beneath one folder, and nowhere else.
 *
 * Refused, and the end of it: absolute names, "..", names that lead through a link (also one that
 * came in the same stream), hard links to anything but a file beneath the folder, sizes and counts
 * over the limits below. Device nodes, sockets and pipes are left out and counted. Modes lose set-uid,
 * set-gid and sticky and what the umask takes; owners are not taken over.
 */

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/error.h"

#define UNPACK_ENTRIES_MAX 10000000u
#define UNPACK_DIRS_MAX 1000000u /* their modes are kept until the end */
#define UNPACK_DEPTH_MAX 256u
#define UNPACK_FILE_MAX (1ULL << 44)

/* The next piece, borrowed until the next call; 0 at the end; < 0: cannot be read (the callee keeps
 * the reason). */
typedef ssize_t (*unpack_source)(void *arg, const uint8_t **ret);

struct unpack_result {
        uint64_t entries, bytes, skipped;
};

/*
 * strip: the first component of every name ("" none: names are taken as they are); as: what stands
 * in its place ("": nothing, the contents come straight into dirfd). -ECANCELED: the source failed.
 */
int unpack(int dirfd, const char *strip, const char *as, unpack_source source, void *arg,
           struct unpack_result *ret, struct error *err);

/* A tar name without "." and empty components; -EINVAL when it is absolute, has "..", or is too
 * deep. out has room for strlen(name) + 1; it is "" for the folder itself. */
int unpack_clean_name(const char *name, char *out, struct error *err);
