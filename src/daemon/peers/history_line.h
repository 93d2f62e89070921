/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * Lines of cspace-history (docs/architecture.md, "History"). Who writes them has read a guest's filesystem, and may have been
 * taken over by it: so a line is read member by member, and what comes out has nothing else in it.
 */

#include <jansson.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"

#define HISTORY_LINE_MAX (8u * 1024 * 1024) /* a patch of a file of 512 KiB, escaped */
#define HISTORY_PATCH_MAX (4u * 1024 * 1024)
#define HISTORY_MESSAGE_MAX 1024

enum history_kind {
        HISTORY_CHANGE, /* a record of a diff, to be passed on */
        HISTORY_END,    /* {"more","cursor"?,"warnings"?}: the diff is complete */
        HISTORY_FILE,   /* what file it is; `size` bytes follow */
        HISTORY_ERROR,  /* {"error","code"} */
};

/* A line without its end. *ret is new; -EPROTO with a message when it is none of these. */
int history_line_read(const void *line, size_t n, enum history_kind *ret_kind, json_t **ret, struct error *err);
