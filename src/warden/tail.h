/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* The last bytes of what a descriptor said: read as fast as they come, kept up to a limit, for the
 * text of an error. The writer can neither block on it nor fill anything. */

#include <stddef.h>
#include <uv.h>

#include "base/error.h"

struct tail;

/* Takes fd (pipe or socket). */
int tail_new(uv_loop_t *loop, int fd, size_t keep, struct tail **ret, struct error *err);
/* Reads what is there now. */
void tail_drain(struct tail *t);
/* NUL-terminated, borrowed, control bytes but newlines replaced; "" for NULL. */
const char *tail_text(struct tail *t);
void tail_free(struct tail *t);
