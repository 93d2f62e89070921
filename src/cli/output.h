/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* Data on stdout. */

#include <jansson.h>
#include <stdint.h>

/* One line of JSON: ASCII alone, so that nothing in it moves a terminal. */
void output_json(const json_t *j);

/* Members for tables and lists; "" or the fallback when missing or of another kind. */
const char *member_str(const json_t *o, const char *key);
int64_t member_int(const json_t *o, const char *key, int64_t fallback);

/* "Name:   value" with the values in one column. */
void output_field(const char *name, const char *value);
void output_fieldf(const char *name, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* "2026-01-02T03:04:05.678Z (3 minutes ago)", "-" without one. */
void output_time(const char *name, const char *rfc3339);

const char *output_state_colour(const char *state); /* SGR for table_colour(), or NULL */
