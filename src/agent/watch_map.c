/* SPDX-License-Identifier: Apache-2.0 */
#include "watch_map.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/inotify.h>
#include <sys/ioctl.h>

#include "base/str.h"
#include "path.h"

int watch_names_add(struct watch_names *s, const char *name) {
        if (s->n == s->cap) {
                size_t cap = s->cap ? 2 * s->cap : 16;
                char **v = realloc(s->v, cap * sizeof *v);
                if (!v)
                        return -ENOMEM;
                s->v = v;
                s->cap = cap;
        }
        s->v[s->n] = strdup(name);
        if (!s->v[s->n])
                return -ENOMEM;
        s->n++;
        return 0;
}

char *watch_names_take(struct watch_names *s) {
        return s->v[--s->n];
}

void watch_names_done(struct watch_names *s) {
        while (s->n > 0)
                free(watch_names_take(s));
        free(s->v);
        *s = (struct watch_names){ 0 };
}

void watch_map_done(struct watch_map *m) {
        for (size_t i = 0; i < m->cap; i++)
                free(m->dirs[i]);
        free(m->dirs);
        watch_names_done(&m->expected);
        *m = (struct watch_map){ 0 };
}

int watch_map_set(struct watch_map *m, int wd, const char *dir, size_t max) {
        size_t i = (size_t) wd;
        if (wd < 0)
                return -EINVAL;
        if (i >= m->cap) {
                size_t cap = i < 32 ? 64 : 2 * i;
                char **v = realloc(m->dirs, cap * sizeof *v);
                if (!v)
                        return -ENOMEM;
                memset(v + m->cap, 0, (cap - m->cap) * sizeof *v);
                m->dirs = v;
                m->cap = cap;
        }
        if (!m->dirs[i] && m->n >= max)
                return -ENOBUFS;
        char *copy = strdup(dir);
        if (!copy)
                return -ENOMEM;
        m->n += !m->dirs[i];
        free(m->dirs[i]);
        m->dirs[i] = copy;
        return 0;
}

const char *watch_map_get(const struct watch_map *m, int wd) {
        return wd >= 0 && (size_t) wd < m->cap ? m->dirs[wd] : NULL;
}

void watch_map_remove(struct watch_map *m, int wd) {
        if (!watch_map_get(m, wd))
                return;
        free(m->dirs[wd]);
        m->dirs[wd] = NULL;
        m->n--;
}

void watch_map_remove_tree(struct watch_map *m, const char *dir, int inotify_fd) {
        for (size_t i = 0; i < m->cap; i++)
                if (m->dirs[i] && *m->dirs[i] && path_is_below(m->dirs[i], dir)) {
                        (void) inotify_rm_watch(inotify_fd, (int) i);
                        watch_map_remove(m, (int) i);
                }
}

int watch_map_expect(struct watch_map *m, const char *name) {
        return watch_names_add(&m->expected, name);
}

bool watch_map_unexpect(struct watch_map *m, const char *name) {
        struct watch_names *e = &m->expected;
        for (size_t i = e->n; i-- > 0;)
                if (str_eq(e->v[i], name)) {
                        free(e->v[i]);
                        e->v[i] = e->v[--e->n];
                        return true;
                }
        return false;
}

void watch_map_settle(struct watch_map *m, int inotify_fd) {
        int waiting = 0;
        if (m->expected.n > 0 && ioctl(inotify_fd, FIONREAD, &waiting) == 0 && waiting == 0)
                watch_names_done(&m->expected);
}
