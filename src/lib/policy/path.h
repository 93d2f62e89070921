/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * Paths of requests against patterns of rules. The gateway forwards a path as it was sent, and what the
 * server makes of "//", "%2f" or ";x" is not known here. So a path is read in each way that a
 * server could read it, and a rule is only decided by a path on which all readings agree; on any other the
 * answer is PATH_AMBIGUOUS and the request is refused. Dot segments (in any encoding), "\", NUL and
 * other control bytes, malformed or doubled escapes, full-width separators and invalid UTF-8 are ambiguous from the start:
 * no client that means well sends them.
 *
 * Pattern: begins with "/". "*" is any run of bytes but "/", "**" any run at all; a pattern that ends in "/" means
 * everything below; anything else is that path exactly. Patterns are written decoded, but for "%2f": an encoded
 * slash that is no separator. Any other "%" is refused, as are "?", "#", ";", "\", "//" and dot segments.
 */

#include <stdbool.h>
#include <stddef.h>

#include "base/error.h"

#define PATH_PATTERN_MAX 256
#define PATH_READ_MAX 4096 /* longer paths are ambiguous where a rule looks at paths */
#define PATH_ODD_MAX 1024  /* those that can be read in several ways: each costs time for each */

enum path_match { PATH_NO = 0, PATH_YES, PATH_AMBIGUOUS };

struct path;
/* From a request target of origin-form ("/a?b") or absolute-form; the query is not looked at. NULL: no memory. */
struct path *path_read(const char *target);
void path_free(struct path *p);
void path_freep(struct path **p);
/* What makes it ambiguous whatever the pattern, or NULL. */
const char *path_trouble(const struct path *p);

/* Checks a pattern and gives the form that path_match() takes, malloc'd. */
int path_pattern(const char *text, char **ret, struct error *err);
/* Whether any of the n patterns matches, over all readings. */
enum path_match path_match(const struct path *p, const char *const *patterns, size_t n);
