/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * Input from a descriptor of any kind (terminal, pipe, file, socket), read by a worker so that the
 * descriptor, which other programs share, need not be made non-blocking. One piece at a time is
 * read: source_next() asks for it. A terminal is left alone while this program is in the
 * background, where reading would stop it.
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <uv.h>

#define SOURCE_PIECE (128u * 1024)

/* n 0: end of input; err < 0: it cannot be read. data is borrowed. */
typedef void (*source_cb)(void *arg, const uint8_t *data, size_t n, int err);

struct source;
struct source *source_new(uv_loop_t *loop, int fd, source_cb cb, void *arg);
void source_next(struct source *s); /* nothing while one is under way, or after the end */
void source_free(struct source *s); /* NULL is fine */
