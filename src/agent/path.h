/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * Paths as the E2B protocol understands them: cleaned by their text alone ("a/../b" is "b" whatever
 * a is), relative ones below the user's home, `~` the home itself. Any byte but NUL and '/' is
 * legal in a name.
 */

#include <limits.h>
#include <stdbool.h>
#include <stddef.h>

#include "base/error.h"

/* Cleans an absolute path: no empty, "." or ".." parts, no trailing slash. */
int path_clean(const char *path, char out[PATH_MAX]);

/* Empty means dflt (may be NULL or "") or else home. */
int path_resolve(const char *path, const char *home, const char *dflt, char out[PATH_MAX], struct error *err);

/* The same, but relative paths start in dflt where there is one. */
int path_resolve_in(const char *path, const char *home, const char *dflt, char out[PATH_MAX], struct error *err);

int path_join(const char *dir, const char *name, char out[PATH_MAX]);
const char *path_base(const char *path);             /* "/" for the root; borrowed */
int path_dir(const char *path, char out[PATH_MAX]);  /* of a cleaned path */
/* Whether path is dir or lies below it; both cleaned. */
bool path_is_below(const char *path, const char *dir);
