/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * The part that runs in a child whose root directory is the new root filesystem. Paths are absolute
 * and mean the image's; links in it are followed and end inside.
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"

/* Memory shared by the child and the builder. */
struct configure {
        bool packages;     /* built from packages: cspace's own settings for apt and pip apply */
        bool looks_like_image;
        uint64_t epoch;
        const char *sources; /* what apt inside shall use; NULL: leave alone */
        /* results */
        struct error err;
        char code[32];
        char user[33], shell[64];
        uint32_t uid, gid;
        char os_id[64], os_version[64], os_name[128];
};

int configure_fail(struct configure *c, const char *code, int errnum, const char *fmt, ...)
        __attribute__((format(printf, 4, 5)));

int configure_check(struct configure *c);    /* shell there, for this machine */
int configure_users(struct configure *c);
int configure_settings(struct configure *c); /* files in /etc */
int configure_tidy(struct configure *c);     /* traces of the build */

/* Helpers on the image's files. */
int image_read(const char *path, size_t max, char **ret);           /* a regular file; malloc'd */
/* Replaces the file, keeping owner and mode of an old one. */
int image_write(const char *path, const char *text, size_t n, unsigned mode);
int image_mkdir(const char *path, unsigned mode);                   /* one level; there already: fine */
bool image_exists(const char *path);
