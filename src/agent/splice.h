/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include "io/stream.h"

/* Joins two streams: what one receives the other sends, as fast as the slower one takes it; ends and
 * losses are passed on. Takes both, and looks after itself until both have ended. */
struct splices;
struct splices *splices_new(void); /* NULL: no memory */
void splices_free(struct splices *all); /* cuts all */
int splice_start(struct splices *all, struct stream *a, struct stream *b); /* -ENOMEM: both are aborted */
