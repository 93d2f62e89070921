/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * A question about the disk of a sandbox, as it is or was: cspace-rootd starts cspace-history, and what that writes is read
 * here. Of a running sandbox the guest is asked to write what it holds back first, for a bounded time; a guest that does
 * not answer has its disk read as a power cut would leave it.
 */

#include <jansson.h>

#include "api/api.h"
#include "base/error.h"
#include "base/id.h"
#include "base/limits.h"

struct app;
struct sandbox;
struct history;

#define HISTORY_SYNC_MS 5000
#define HISTORY_CURSOR_MAX 5503
#define HISTORY_FILE_MAX (4ull << 30)    /* also of all files of a tree */
#define HISTORY_STREAM_MAX (16ull << 30) /* of a tree, with what an archive has beside its files' bytes */
#define HISTORY_NO_SIZE UINT64_MAX
#define HISTORY_ANSWER_MAX (64u * 1024 * 1024) /* of a page of changes, as it comes */

struct history_question {
        bool diff;                   /* else a file, */
        bool tree;                   /* or a tar stream of what is there: a folder with all in it ("./" first), a file, a link */
        char from[ID_SIZE], to[ID_SIZE]; /* "template", "now" or an image; to: diff only */
        const char *path;            /* of a diff the prefix */
        const char *cursor;          /* diff; "" none */
        uint32_t limit;              /* diff */
        bool patch;                  /* diff */
};

/* Callbacks come from the loop. history_free() in any of them. */
struct history_handler {
        void (*on_change)(void *arg, json_t *change);                 /* borrowed */
        void (*on_file)(void *arg, const json_t *file, uint64_t size /* HISTORY_NO_SIZE: of a tree */);
        int (*on_bytes)(void *arg, const void *data, size_t n);       /* -ENOBUFS: not now; 1: taken, no more for now; history_resume() */
        /* Last. code: when err < 0. end: of a diff, what came last. */
        void (*on_end)(void *arg, int err, enum api_code code, const struct error *e, const json_t *end);
};

int history_ask(struct app *app, struct sandbox *s, const struct history_question *q, const struct history_handler *h,
                void *arg, struct history **ret, struct error *err);
void history_resume(struct history *h);
bool history_synced(const struct history *h); /* the guest has written all it had */
void history_free(struct history *h); /* ends it; NULL is fine */
