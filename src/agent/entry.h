/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* One file, folder or link as the APIs describe it. */

#include <limits.h>
#include <stdbool.h>
#include <sys/stat.h>

#include "base/buf.h"
#include "base/error.h"
#include "user.h"

enum entry_type { ENTRY_OTHER, ENTRY_FILE, ENTRY_DIR, ENTRY_LINK };

/* name, path and what they lead to. For a link, type and mode are its target's. */
struct entry {
        char path[PATH_MAX];
        struct stat st;             /* of the name itself */
        enum entry_type type;       /* ENTRY_LINK: a link that leads nowhere */
        mode_t target_mode;
        uint64_t target_size;
        char target[PATH_MAX];      /* fully resolved (or as written, when it leads nowhere); "" no link */
};

/* Fills e for path. Blocks. */
int entry_read(const char *path, struct entry *e, struct error *err);
/* As a JSON object: in the form of filesystem.EntryInfo, or in the native one, where `follow` says
 * whether a link is described as what it leads to. */
int entry_json_e2b(const struct entry *e, struct user_names *names, struct buf *out);
int entry_json(const struct entry *e, bool follow, struct user_names *names, struct buf *out);

/* Go's FileMode.String(): "-rw-r--r--", "drwxr-xr-x", "Lrwxrwxrwx", "dtrwxrwxrwx". */
void entry_permissions(mode_t mode, char out[16]);

/* --- X-Metadata: extended attributes user.e2b.<key> --------------------------------------------- */

#define METADATA_KEY_MAX 246
#define METADATA_TOTAL_MAX 4096

struct metadata_item {
        char *key, *value;
};
struct metadata {
        struct metadata_item *items;
        size_t n;
        size_t total;
};
void metadata_done(struct metadata *m);
/* Lowercases the key. -EINVAL: not printable ASCII, or over the limits. */
int metadata_add(struct metadata *m, const char *key, const char *value, struct error *err);
/* Replaces the set of fd's file. */
int metadata_write(int fd, const struct metadata *m, struct error *err);
/* Appends ,"metadata":{...} for path's file when it has any. */
int metadata_json(const char *path, struct buf *out);
