/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * Two streams joined: what one receives is written to the other, held back while the other's queue
 * is long, half-closes passed on. Ends when both directions have ended or either side fails.
 */

#include "io/stream.h"

struct splice;

/* Takes both streams in every case. on_end comes once, later than this call, after both streams
 * are closed; the splice is gone then. */
int splice_new(struct stream *a, struct stream *b, void (*on_end)(void *arg), void *arg, struct splice **ret);
void splice_break(struct splice *s); /* aborts both; no on_end; NULL is fine */
