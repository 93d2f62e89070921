/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* Waiting for an operation of the API. */

#include "client.h"
#include "progress.h"

/* Waits until the operation has ended, showing its steps (p may be NULL). 0 and its final form in
 * *ret (owned by the caller, may be NULL), or -1: it failed (its own error), or cannot be waited for. */
int operation_wait(struct client *c, const char *id, struct progress *p, json_t **ret, struct api_error *e);

/* The same for one that goes on when this program is stopped by SIGINT, SIGTERM or SIGHUP: then goes_on is told, and
 * CLI_SIGNAL plus the signal is returned (no error is set). */
int operation_watch(struct client *c, const char *id, struct progress *p, const char *goes_on, json_t **ret, struct api_error *e);
