/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* The command line, which the parent made from a request: checked here once more. */

#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"
#include "base/limits.h"

enum verb { VERB_DIFF, VERB_CAT, VERB_EXTRACT };

struct options {
        enum verb verb;
        const char *path;   /* of cat, extract */
        const char *prefix; /* of diff: "/" or "/a/b", without an end slash */
        char prefix_buf[LIMIT_PATH];
        char cursor[LIMIT_PATH]; /* of diff: the last path of the page before; "" for the first page */
        uint64_t limit;          /* of diff: changes */
        uint64_t max_bytes;      /* of cat and extract */
        bool patch, no_follow;
};

int options_parse(int argc, char **argv, struct options *ret, struct error *err);
