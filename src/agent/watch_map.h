/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* The folders of one watcher by inotify watch descriptor, and names whose creation event is still
 * to come although they have been reported. */

#include <stdbool.h>
#include <stddef.h>

/* A stack of strings. */
struct watch_names {
        char **v;
        size_t n, cap;
};
int watch_names_add(struct watch_names *s, const char *name); /* copies; 0 or -ENOMEM */
char *watch_names_take(struct watch_names *s);                /* the last one; n > 0 */
void watch_names_done(struct watch_names *s);

struct watch_map {
        char **dirs; /* by wd; NULL: none */
        size_t cap, n;
        struct watch_names expected;
};
void watch_map_done(struct watch_map *m);
int watch_map_set(struct watch_map *m, int wd, const char *dir, size_t max); /* 0, -ENOBUFS, -ENOMEM */
const char *watch_map_get(const struct watch_map *m, int wd);
void watch_map_remove(struct watch_map *m, int wd);
/* Takes dir and what lies below it off the inotify instance. */
void watch_map_remove_tree(struct watch_map *m, const char *dir, int inotify_fd);

int watch_map_expect(struct watch_map *m, const char *name);
bool watch_map_unexpect(struct watch_map *m, const char *name); /* whether it was expected; once */
/* Nothing is expected any more once the queue is empty. */
void watch_map_settle(struct watch_map *m, int inotify_fd);
