/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * Keys that are for cspace and not for the sandbox, as ssh(1) has them: at the start of a line
 *   ~.  detaches    ~?  lists them    ~~  sends one ~
 * Sans-I/O.
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/error.h"

struct escape {
        uint8_t character; /* 0: none */
        enum { ESCAPE_LINE_START, ESCAPE_SEEN, ESCAPE_ELSEWHERE } state;
        void (*print)(const char *text);
};

/* setting: NULL for "~", one character, or "none". */
int escape_init(struct escape *e, const char *setting, void (*print)(const char *text), struct error *err);
/* Filters in place: the bytes left, or -1 to detach. They may be one more than n: data has room. */
ssize_t escape_filter(struct escape *e, uint8_t *data, size_t n);
