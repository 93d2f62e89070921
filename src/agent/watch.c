/* SPDX-License-Identifier: Apache-2.0 */

/*
 * A tree needs a watch for each folder, and a folder that appears is watched only a moment after it
 * appeared. What was made in it meanwhile would be missed; so after adding the watch the folder is
 * read, and its entries are reported as created (and files with content as written). An entry made between the two steps comes twice,
 * once read and once as an event: names reported from reading are remembered, and the first
 * creation event of such a name is dropped.
 *
 * Folders are read on a thread of the pool (a tree that was moved in can be large); while a scan
 * runs, the watcher takes no events, so order is kept.
 */
#include "watch.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/inotify.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/fd.h"
#include "base/str.h"
#include "list.h"
#include "path.h"
#include "watch_map.h"
#include "work.h"

#define MASK \
        (IN_CREATE | IN_MODIFY | IN_ATTRIB | IN_DELETE | IN_MOVED_FROM | IN_MOVED_TO | IN_DELETE_SELF | IN_MOVE_SELF | \
         IN_ONLYDIR | IN_DONT_FOLLOW | IN_EXCL_UNLINK)
#define EVENT_BUFFER (64 * 1024)

/* First character of an entry of watcher.found */
#define FOUND '-'
#define FOUND_WRITTEN 'W'

struct watchers {
        uv_loop_t *loop;
        struct list all;
        size_t n;
};

struct watcher {
        struct list link;
        struct watchers *all; /* NULL: freed while a scan runs */
        char root[PATH_MAX];
        bool recursive, ready, paused, scanning, polling;
        int fd, root_wd;
        uv_poll_t *poll;
        struct watch_map map; /* wd -> folder relative to root */
        const struct watch_ops *ops;
        void *arg;
        /* scan: folders to add, and what was found in them */
        struct watch_names todo, found;
        int scan_r;
        struct error scan_err;
        /* events that are not handled yet because a scan had to come first */
        char *rest;
        size_t rest_n;
};

static void start_scan(struct watcher *w);
static void handle(struct watcher *w, const char *data, size_t n);

/* --- scanning, on the thread ---------------------------------------------------------------- */

static int full_path(const struct watcher *w, const char *rel, char out[PATH_MAX]) {
        return *rel ? path_join(w->root, rel, out) : str_copy(out, PATH_MAX, w->root);
}

static int scan_entries(struct watcher *w, const char *rel, const char *path) {
        DIR *d = opendir(path);
        if (!d)
                return 0; /* gone again */
        int r = 0;
        for (struct dirent *de; r == 0 && (de = readdir(d));) {
                if (str_eq(de->d_name, ".") || str_eq(de->d_name, ".."))
                        continue;
                char child[PATH_MAX], full[PATH_MAX];
                struct stat st;
                if ((*rel ? path_join(rel, de->d_name, child) : str_copy(child, sizeof child, de->d_name)) < 0 ||
                    full_path(w, child, full) < 0)
                        continue;
                bool known = lstat(full, &st) == 0;
                bool dir = known && S_ISDIR(st.st_mode);
                if (w->ready && known) {
                        char found[PATH_MAX + 1] = { S_ISREG(st.st_mode) && st.st_size > 0 ? FOUND_WRITTEN : FOUND };
                        memcpy(found + 1, child, strlen(child) + 1);
                        r = watch_names_add(&w->found, found);
                }
                if (r == 0 && dir && w->recursive)
                        r = watch_names_add(&w->todo, child);
        }
        closedir(d);
        return r;
}

static int scan_one(struct watcher *w, const char *rel) {
        char path[PATH_MAX];
        if (full_path(w, rel, path) < 0)
                return 0;
        int wd = inotify_add_watch(w->fd, path, w->ready || *rel ? MASK : MASK & ~(unsigned) IN_DONT_FOLLOW);
        if (wd < 0) {
                if (w->ready || *rel)
                        if (errno == ENOENT || errno == ENOTDIR || errno == EACCES || errno == ELOOP)
                                return 0;
                return error_errno(&w->scan_err, errno, "cannot watch '%s'", path);
        }
        if (!*rel)
                w->root_wd = wd;
        int r = watch_map_set(&w->map, wd, rel, WATCH_DIRS_MAX);
        if (r < 0)
                return error_set(&w->scan_err, r, "more than %d folders would have to be watched", WATCH_DIRS_MAX);
        return w->recursive ? scan_entries(w, rel, path) : 0;
}

static void scan(void *arg) {
        struct watcher *w = arg;
        w->scan_r = 0;
        while (w->scan_r == 0 && w->todo.n > 0) {
                char *rel = watch_names_take(&w->todo);
                w->scan_r = scan_one(w, rel);
                free(rel);
        }
}

/* --- on the loop ---------------------------------------------------------------------------- */

static void poll_closed(uv_handle_t *h) {
        free(h);
}

static void destroy(struct watcher *w) {
        if (w->poll) {
                (void) uv_poll_stop(w->poll);
                uv_close((uv_handle_t *) w->poll, poll_closed);
        }
        fd_close(w->fd);
        watch_map_done(&w->map);
        watch_names_done(&w->todo);
        watch_names_done(&w->found);
        free(w->rest);
        free(w);
}

void watcher_free(struct watcher *w) {
        if (!w)
                return;
        list_remove(&w->link);
        w->all->n--;
        w->all = NULL;
        if (!w->scanning)
                destroy(w);
}

static void on_readable(uv_poll_t *h, int status, int events) {
        struct watcher *w = h->data;
        _Alignas(struct inotify_event) char data[EVENT_BUFFER];
        (void) status;
        (void) events;
        ssize_t n = read(w->fd, data, sizeof data);
        if (n > 0)
                handle(w, data, (size_t) n);
}

static void update(struct watcher *w) {
        bool want = w->ready && !w->paused && !w->scanning;
        if (want == w->polling || !w->poll)
                return;
        w->polling = want;
        if (want)
                (void) uv_poll_start(w->poll, UV_READABLE, on_readable);
        else
                (void) uv_poll_stop(w->poll);
}

static void tell(struct watcher *w, enum watch_event type, const char *rel) {
        char path[PATH_MAX];
        if (full_path(w, rel, path) == 0)
                w->ops->on_event(w->arg, type, *rel ? rel : ".", path);
}

static void scanned(void *arg) {
        struct watcher *w = arg;
        w->scanning = false;
        if (!w->all) {
                destroy(w);
                return;
        }
        if (!w->ready) {
                const struct watch_ops *ops = w->ops;
                void *cb_arg = w->arg;
                if (w->scan_r < 0) {
                        struct error e = w->scan_err;
                        watcher_free(w);
                        ops->on_ready(cb_arg, e.code, &e);
                        return;
                }
                w->ready = true;
                update(w);
                ops->on_ready(cb_arg, 0, NULL);
                return;
        }
        /* The names found count as created; their events, if any, are still to come. */
        w->scanning = true; /* keeps w alive in the callbacks */
        for (size_t i = 0; w->all && i < w->found.n; i++) { /* as found: a folder before what is in it */
                const char *found = w->found.v[i], *rel = found + 1;
                (void) watch_map_expect(&w->map, rel);
                tell(w, WATCH_CREATE, rel);
                if (w->all && *found == FOUND_WRITTEN)
                        tell(w, WATCH_WRITE, rel);
        }
        watch_names_done(&w->found);
        if (w->all && w->scan_r < 0)
                w->ops->on_lost(w->arg, w->scan_err.code, w->scan_err.msg);
        w->scanning = false;
        if (!w->all) {
                destroy(w);
                return;
        }
        char *rest = w->rest;
        size_t n = w->rest_n;
        w->rest = NULL;
        w->rest_n = 0;
        if (n > 0)
                handle(w, rest, n);
        else
                update(w);
        free(rest);
}

static void start_scan(struct watcher *w) {
        w->scanning = true;
        update(w);
        if (work_start(w->all->loop, NULL, scan, scanned, w) < 0) {
                w->scan_r = error_set(&w->scan_err, -ENOMEM, "out of memory");
                scanned(w);
        }
}

/* Returns false when a scan must come before the next event. */
static bool one_event(struct watcher *w, const struct inotify_event *ev) {
        char rel[PATH_MAX] = "";
        if (ev->mask & IN_Q_OVERFLOW) {
                w->ops->on_lost(w->arg, -EOVERFLOW, "more events came than the queue holds; some are lost");
                return true;
        }
        const char *dir = watch_map_get(&w->map, ev->wd);
        if (!dir)
                return true;
        if (ev->mask & IN_IGNORED) {
                watch_map_remove(&w->map, ev->wd);
                return true;
        }
        if ((ev->len ? (*dir ? path_join(dir, ev->name, rel) : str_copy(rel, sizeof rel, ev->name))
                     : str_copy(rel, sizeof rel, dir)) < 0)
                return true;
        bool self = ev->len == 0;
        if (self && ev->wd != w->root_wd)
                return true; /* the parent's watch tells of it */
        bool is_dir = ev->mask & IN_ISDIR;
        if (ev->mask & (IN_CREATE | IN_MOVED_TO)) {
                bool expected = watch_map_unexpect(&w->map, rel);
                if (!expected || (ev->mask & IN_MOVED_TO))
                        tell(w, WATCH_CREATE, rel);
                if (w->all && is_dir && w->recursive && !expected)
                        return watch_names_add(&w->todo, rel) < 0;
        } else if (ev->mask & IN_MODIFY)
                tell(w, WATCH_WRITE, rel);
        else if (ev->mask & (IN_DELETE | IN_DELETE_SELF))
                tell(w, WATCH_REMOVE, rel);
        else if (ev->mask & (IN_MOVED_FROM | IN_MOVE_SELF)) {
                if (is_dir && !self)
                        watch_map_remove_tree(&w->map, rel, w->fd);
                tell(w, WATCH_RENAME, rel);
        } else if (ev->mask & IN_ATTRIB)
                tell(w, WATCH_CHMOD, rel);
        return true;
}

static void handle(struct watcher *w, const char *data, size_t n) {
        w->scanning = true; /* keeps w alive in the callbacks */
        bool go = true;
        while (go && w->all && n >= sizeof(struct inotify_event)) {
                const struct inotify_event *ev = (const void *) data;
                size_t len = sizeof *ev + ev->len;
                go = one_event(w, ev);
                data += len;
                n -= len;
        }
        w->scanning = false;
        if (!w->all) {
                destroy(w);
                return;
        }
        if (n > 0 && !go) {
                w->rest = malloc(n);
                if (w->rest) {
                        memcpy(w->rest, data, n);
                        w->rest_n = n;
                } else
                        w->ops->on_lost(w->arg, -EOVERFLOW, "out of memory; events are lost");
        }
        if (!go)
                start_scan(w);
        else {
                watch_map_settle(&w->map, w->fd);
                update(w);
        }
}

void watcher_pause(struct watcher *w) {
        w->paused = true;
        update(w);
}

void watcher_resume(struct watcher *w) {
        w->paused = false;
        update(w);
}

/* --- life ----------------------------------------------------------------------------------- */

struct watchers *watchers_new(uv_loop_t *loop) {
        struct watchers *all = calloc(1, sizeof *all);
        if (!all)
                return NULL;
        all->loop = loop;
        list_init(&all->all);
        return all;
}

void watchers_free(struct watchers *all) {
        if (!all)
                return;
        LIST_FOREACH(it, &all->all)
                watcher_free(CONTAINER_OF(it, struct watcher, link));
        free(all);
}

int watcher_new(struct watchers *all, const char *path, bool recursive, const struct watch_ops *ops, void *arg,
                struct watcher **ret, struct error *err) {
        if (all->n >= WATCHERS_MAX)
                return error_set(err, -ENOBUFS, "%d folders are being watched already, which is the limit", WATCHERS_MAX);
        struct watcher *w = calloc(1, sizeof *w);
        if (!w || !(w->poll = calloc(1, sizeof *w->poll))) {
                free(w);
                return error_set(err, -ENOMEM, "out of memory");
        }
        w->ops = ops;
        w->arg = arg;
        w->recursive = recursive;
        (void) str_copy(w->root, sizeof w->root, path);
        w->fd = inotify_init1(IN_NONBLOCK | IN_CLOEXEC);
        int r = w->fd < 0 ? -errno : uv_poll_init(all->loop, w->poll, w->fd);
        if (r < 0) {
                fd_close(w->fd);
                free(w->poll);
                free(w);
                return error_errno(err, r, "cannot watch");
        }
        w->poll->data = w;
        w->all = all;
        list_append(&all->all, &w->link);
        all->n++;
        if (watch_names_add(&w->todo, "") < 0) {
                watcher_free(w);
                return error_set(err, -ENOMEM, "out of memory");
        }
        *ret = w;
        start_scan(w);
        return 0;
}
