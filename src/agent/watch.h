/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * Watching a folder, or the tree below it, by inotify. One inotify instance for each watcher, so
 * that one that nobody reads fills its own queue in the kernel and nobody else's; its overflow is
 * reported, not hidden.
 */

#include <stdbool.h>
#include <uv.h>

#include "base/error.h"

#define WATCHERS_MAX 512
#define WATCH_DIRS_MAX 131072 /* folders of one watcher */

enum watch_event { WATCH_CREATE, WATCH_WRITE, WATCH_REMOVE, WATCH_RENAME, WATCH_CHMOD };

struct watchers;
struct watcher;

struct watch_ops {
        /* Set up: events count from now on. err < 0: it failed, and the watcher is gone. */
        void (*on_ready)(void *arg, int err, const struct error *e);
        /* name is relative to the watched folder; "." itself. path is absolute. */
        void (*on_event)(void *arg, enum watch_event type, const char *name, const char *path);
        /* Events were lost (-EOVERFLOW) or a new folder could not be watched (-ENOSPC, -ENOBUFS). */
        void (*on_lost)(void *arg, int err, const char *why);
};

struct watchers *watchers_new(uv_loop_t *loop); /* NULL: no memory */
void watchers_free(struct watchers *all);

/* path must be cleaned. Scanning the tree is done on a thread; on_ready comes later, not from here. */
int watcher_new(struct watchers *all, const char *path, bool recursive, const struct watch_ops *ops, void *arg,
                struct watcher **ret, struct error *err);
void watcher_free(struct watcher *w); /* no callback afterwards; NULL is fine */
/* While paused the kernel queues events, up to its limit. */
void watcher_pause(struct watcher *w);
void watcher_resume(struct watcher *w);
