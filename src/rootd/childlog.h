/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * What a warden or gateway writes to its descriptor 2. Each has a FIFO of its own in the sandbox's folder, which only
 * rootd can open; rootd reads it, says whose line it is, and writes it to its own log. A program that was taken
 * over can so neither forge a line of another, nor change the flags of a description that rootd writes to, nor fill the
 * log: lines have a longest length, and there are limits on their rate and on bytes read.
 *
 * The FIFO outlives rootd: the next one opens it again, and a program that writes meanwhile is not held back.
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <uv.h>

#include "base/error.h"
#include "base/log.h"

#define CHILDLOG_LINE_MAX 1024      /* of a line; the rest is cut */
#define CHILDLOG_LINES 50           /* in ten seconds; how many were left out is said later */
#define CHILDLOG_BYTES (128 * 1024) /* read in CHILDLOG_WINDOW_MS; then nothing is read until that is over */
#define CHILDLOG_WINDOW_MS 10000

struct childlog;

/* Makes or opens the FIFO `name` in the folder `dir` (not kept). program and id are what lines are marked with. */
int childlog_new(uv_loop_t *loop, int dir, const char *name, const char *program, const char *id, struct childlog **ret,
                 struct error *err);
/* A descriptor for a program to write to, with a description of its own; negative errno. */
int childlog_writer(const struct childlog *l);
void childlog_free(struct childlog *l); /* NULL is fine */

/* The level of a line of base/log.h in its text form, and its message; what has another form is a warning as a whole. */
enum log_level childlog_parse(const char *line, const char **ret_message);
