/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* The lines of `cspace doctor`. */

#include <jansson.h>
#include <stdbool.h>

enum verdict { VERDICT_OK, VERDICT_WARN, VERDICT_FAIL };

struct report {
        json_t *checks;
        unsigned fails, warns;
};

/* One check. hint says what to do, and is shown unless all is well; it may be NULL. */
void report_add(struct report *r, enum verdict v, const char *name, const char *hint, const char *fmt, ...)
        __attribute__((format(printf, 5, 6)));
/* The summary, or everything with --json. */
void report_end(struct report *r);
