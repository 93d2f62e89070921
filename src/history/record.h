/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* One change looked at closely, and as JSON. */

#include <jansson.h>

#include "changes.h"
#include "suspect.h"

struct recorder {
        struct hfs *old, *new;
        const struct suspect *suspect;
        bool patch;
        size_t patch_bytes; /* so far */
};

/*
 * *ret is NULL when nothing has changed that is told (times and sizes of folders are not). What cannot be read becomes
 * a record with "error"; only limits and lack of memory fail.
 */
int record_make(struct recorder *r, const struct change *c, json_t **ret, struct error *err);
