/* SPDX-License-Identifier: Apache-2.0 */

/* Open addressing with linear probing; a removed entry leaves a tombstone until the next growth,
 * so that a visit in progress never sees an entry move. */

#include "map.h"

#include <errno.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/id.h"

#define MAP_MIN 16

struct slot {
        const char *key; /* NULL: never used, or a tombstone */
        void *value;
        bool tomb;
};

struct map {
        struct slot *slots;
        size_t cap;  /* power of two */
        size_t used; /* live entries */
        size_t full; /* live entries and tombstones */
        uint64_t seed;
};

static uint64_t hash(const struct map *m, const char *key) {
        uint64_t h = 1469598103934665603ULL ^ m->seed;
        for (; *key; key++)
                h = (h ^ (uint8_t) *key) * 1099511628211ULL;
        h ^= h >> 33; /* the low bits of FNV alone are weak */
        h *= 0xff51afd7ed558ccdULL;
        return h ^ h >> 33;
}

struct map *map_new(void) {
        struct map *m = calloc(1, sizeof *m);
        if (!m)
                return NULL;
        m->slots = calloc(MAP_MIN, sizeof *m->slots);
        if (!m->slots || random_bytes(&m->seed, sizeof m->seed) < 0) {
                map_free(m);
                return NULL;
        }
        m->cap = MAP_MIN;
        return m;
}

void map_free(struct map *m) {
        if (!m)
                return;
        free(m->slots);
        free(m);
}

static struct slot *find(const struct map *m, const char *key) {
        for (size_t i = hash(m, key) & (m->cap - 1);; i = (i + 1) & (m->cap - 1)) {
                struct slot *s = &m->slots[i];
                if (!s->key && !s->tomb)
                        return NULL;
                if (s->key && strcmp(s->key, key) == 0)
                        return s;
        }
}

static void place(struct map *m, const char *key, void *value) {
        size_t i = hash(m, key) & (m->cap - 1);
        while (m->slots[i].key)
                i = (i + 1) & (m->cap - 1);
        if (!m->slots[i].tomb)
                m->full++;
        m->slots[i] = (struct slot){ .key = key, .value = value };
        m->used++;
}

static int grow(struct map *m) {
        size_t cap = m->cap;
        while (cap < 4 * (m->used + 1))
                cap *= 2;
        struct slot *slots = calloc(cap, sizeof *slots);
        if (!slots)
                return -ENOMEM;
        struct slot *old = m->slots;
        size_t old_cap = m->cap;
        m->slots = slots;
        m->cap = cap;
        m->used = m->full = 0;
        for (size_t i = 0; i < old_cap; i++)
                if (old[i].key)
                        place(m, old[i].key, old[i].value);
        free(old);
        return 0;
}

int map_put(struct map *m, const char *key, void *value) {
        if (find(m, key))
                return -EEXIST;
        if (4 * (m->full + 1) > 3 * m->cap) {
                int r = grow(m);
                if (r < 0)
                        return r;
        }
        place(m, key, value);
        return 0;
}

void *map_get(const struct map *m, const char *key) {
        struct slot *s = find(m, key);
        return s ? s->value : NULL;
}

void *map_remove(struct map *m, const char *key) {
        struct slot *s = find(m, key);
        if (!s)
                return NULL;
        void *v = s->value;
        *s = (struct slot){ .tomb = true };
        m->used--;
        return v;
}

size_t map_count(const struct map *m) {
        return m->used;
}

void *map_next(const struct map *m, size_t *pos) {
        while (*pos < m->cap) {
                const struct slot *s = &m->slots[(*pos)++];
                if (s->key)
                        return s->value;
        }
        return NULL;
}
