/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * What is being done, on stderr. On a terminal one line that is drawn again and again; elsewhere a
 * line for each new step. Silent with --json.
 */

#include <stdbool.h>
#include <stdint.h>

struct progress;
/* lines: print steps also where there is no terminal. */
struct progress *progress_new(bool lines);
/* Where there is no terminal: a step that begins with prefix is announced by text, once. */
void progress_announce(struct progress *p, const char *prefix, const char *text);
/* percent and eta_s: -1 when not known. */
void progress_step(struct progress *p, const char *step, int percent, int64_t eta_s);
/* Bytes moved; total 0 when not known. */
void progress_bytes(struct progress *p, const char *what, uint64_t done, uint64_t total);
/* Removes the line, so that something else can be printed. */
void progress_clear(struct progress *p);
void progress_free(struct progress *p); /* clears; NULL is fine */
