/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * Hash map from strings to pointers. Keys are borrowed: each must live in its value, unchanged,
 * for as long as the entry is there. Hashing is seeded per process.
 */

#include <stddef.h>

struct map;

struct map *map_new(void);
void map_free(struct map *m); /* not the values; NULL is fine */
int map_put(struct map *m, const char *key, void *value); /* 0, -EEXIST, -ENOMEM */
void *map_get(const struct map *m, const char *key);      /* NULL: none */
void *map_remove(struct map *m, const char *key);         /* returns the value, or NULL */
size_t map_count(const struct map *m);
/* Visits all in no order; start with *pos = 0, NULL ends. The map may lose the entry just
 * visited, but gain none, while being visited. */
void *map_next(const struct map *m, size_t *pos);
