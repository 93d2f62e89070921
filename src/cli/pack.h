/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* Writes local trees as a tar stream (pax). Links inside a tree are kept as links. */

#include <stddef.h>
#include <stdint.h>

#include "base/error.h"

/* Takes the next bytes; < 0 stops the packing (the callee keeps the reason). */
typedef int (*pack_sink)(void *arg, const void *data, size_t n);

struct pack;
int pack_new(pack_sink sink, void *arg, struct pack **ret, struct error *err);
/* Adds path, which is followed when it is a link, under the name `as`; "" means its contents alone,
 * without a name around them. Files of other kinds are left out and counted. -ECANCELED: the sink stopped. */
int pack_add(struct pack *p, const char *path, const char *as, struct error *err);
int pack_finish(struct pack *p, struct error *err);
uint64_t pack_skipped(const struct pack *p); /* sockets, devices and the like */
void pack_free(struct pack *p);              /* NULL is fine */

/* Bytes of all regular files under path, for a progress bar. */
uint64_t pack_size(const char *path);
