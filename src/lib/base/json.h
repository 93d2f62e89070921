/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * jansson with limits and error texts. The readers name the offending key and value kind, so that
 * an API handler can return the message as it is.
 */

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/cleanup.h"
#include "base/error.h"

#define JSON_DEPTH_MAX 32

/* json_decrefp() is jansson's own. */
#define _cleanup_json_ _cleanup_(json_decrefp)

/* Parses exactly one value of at most max bytes and JSON_DEPTH_MAX levels, duplicate keys
 * refused, NUL in strings refused. *ret is a new reference. */
int json_parse(const void *data, size_t n, size_t max, json_t **ret, struct error *err);

/* Readers of one member. A missing or null member leaves *ret as it was and is an error only when
 * `required`; a member of another kind, or outside the limits, is -EINVAL with a message. Strings
 * are borrowed from obj. */
int json_read_str(const json_t *obj, const char *key, bool required, size_t max_len, const char **ret,
                  struct error *err);
int json_read_u64(const json_t *obj, const char *key, bool required, uint64_t min, uint64_t max,
                  uint64_t *ret, struct error *err);
int json_read_bool(const json_t *obj, const char *key, bool required, bool *ret, struct error *err);
int json_read_obj(const json_t *obj, const char *key, bool required, json_t **ret, struct error *err);
int json_read_array(const json_t *obj, const char *key, bool required, size_t max_items, json_t **ret,
                    struct error *err);
/* Object of strings to strings, as env and metadata are. */
int json_read_str_map(const json_t *obj, const char *key, size_t max_items, size_t max_key, size_t max_val,
                      json_t **ret, struct error *err);

/* -EINVAL naming the first key of obj that is not in the NULL-terminated list. */
int json_only_keys(const json_t *obj, const char *const *keys, struct error *err);

/* Appends s (UTF-8) as a JSON string, for texts that shall not be put into a json_t, whose memory cannot be wiped. */
int json_put_str(struct buf *out, const char *s);

/* Compact dump, malloc'd; NULL on failure. */
char *json_to_str(const json_t *j);
