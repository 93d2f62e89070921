/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* Query parameters of the list routes, in the encodings that clients use. Sans-I/O. */

#include <jansson.h>

#include "base/error.h"

/*
 * The metadata filter. value is the parameter after normal query decoding; clients have escaped it
 * twice before that: the pairs as a whole, and each key and value. "k%25201=v%25262" means
 * {"k 1": "v&2"}. *ret is a new object.
 */
int e2b_parse_metadata(const char *value, json_t **ret, struct error *err);

/* "running,paused" into two flags. */
#define E2B_STATE_RUNNING 0x1u
#define E2B_STATE_PAUSED 0x2u
int e2b_parse_states(const char *value, unsigned *ret, struct error *err);
