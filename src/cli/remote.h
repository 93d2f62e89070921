/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* Files of a sandbox, by the API's file routes. Paths may be relative to the user's folder. */

#include <sys/types.h>

#include "client.h"

struct remote {
        struct client *client;
        const char *sandbox;
        const char *user; /* NULL: default */
};

enum remote_type { REMOTE_MISSING, REMOTE_FILE, REMOTE_DIR, REMOTE_OTHER };

struct remote_stat {
        enum remote_type type; /* of what a link leads to */
        mode_t mode;           /* permission bits */
        uint64_t size;
};

/* A path that does not exist is no error. */
int remote_stat(const struct remote *r, const char *path, struct remote_stat *ret, struct api_error *e);
/* query: "tar=1", "mode=644" or NULL. length < 0: not known. */
int remote_put(const struct remote *r, const char *path, const char *query, int64_t length, struct xfer **ret,
               struct api_error *e);
int remote_get(const struct remote *r, const char *path, const char *query, struct xfer **ret,
               struct api_error *e);
