/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * Order in which kernel modules must be loaded, from the text of modules.dep and modules.builtin (modules.dep(5)):
 * every module after all that it depends on, each once, built-in ones left out.
 */

#include <stddef.h>

#include "base/error.h"

#define MODULES_MAX 4096  /* lines of modules.dep */
#define MODULES_DEPTH 64  /* of a chain of dependencies */

struct modules {
        char *text;           /* modules.dep, cut into words */
        struct module *list;
        size_t n;
        char *builtin;
        const char **order;   /* paths as in modules.dep: "kernel/fs/ext4/ext4.ko" */
        size_t n_order;
};

int modules_init(struct modules *m, const char *dep, const char *builtin, struct error *err);
void modules_done(struct modules *m);

/* Adds a module by name ("virtio_blk"; - and _ are the same) and what it needs to the order. 0, or -ENOENT
 * when it is neither in modules.dep nor built in, -ELOOP for a circle. */
int modules_want(struct modules *m, const char *name, struct error *err);
/* The same for every module whose path starts with prefix ("kernel/fs/overlayfs/"); none is fine. */
int modules_want_folder(struct modules *m, const char *prefix, struct error *err);
