/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* The process that becomes cspace-history, and what it does until then. */

#include <stdbool.h>

#include "rootd/rootd.h"

#define HISTORY_ARGS_MAX 16
#define HISTORY_IMAGES_MAX 2

struct history_start {
        const char *leaf; /* cgroup */
        uid_t uid;
        int out;          /* its standard output */
        int images[HISTORY_IMAGES_MAX]; /* descriptors 3 and 4; -EBADF: none */
        bool moment[HISTORY_IMAGES_MAX]; /* is written to: a copy of this moment is taken */
        char *const *argv; /* the first is the path to execute */
};

/* From here on failures are told on s->out as the program would. */
int history_child_start(struct rootd *r, const struct history_start *s, pid_t *ret_pid, int *ret_pidfd,
                        struct error *err);
