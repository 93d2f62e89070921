/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* Reading audit logs (audit_log.h): from a place on, through a filter, a bounded piece at a time. Safe beside the writer
 * and on any thread. */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/error.h"
#include "policy/audit_filter.h"

#define AUDIT_SEGMENTS_MAX 4096           /* of one sandbox */
#define AUDIT_SCAN_MAX (32u * 1024 * 1024) /* bytes looked at in one go */
#define AUDIT_PAGE_BYTES (8u * 1024 * 1024) /* of lines in one page */
#define AUDIT_CURSOR_SIZE 40

/* Place in a log. */
struct audit_place {
        uint64_t segment, offset;
};
int audit_place_parse(const char *text, struct audit_place *ret); /* 0 or -EINVAL */
void audit_place_text(const struct audit_place *p, char out[AUDIT_CURSOR_SIZE]);

/* Which records, by the keys of policy/audit_filter.h and one more value of kind: "lost", for the lines that say how many
 * records found no room. Those are also there when nothing but times is asked for. */
struct audit_query {
        struct audit_filter *filter; /* NULL: all */
        bool narrow;                 /* by more than times */
        bool lost;                   /* those lines alone */
};
int audit_query_set(struct audit_query *q, const char *key, const char *value, struct error *err);
void audit_query_done(struct audit_query *q);
/* One line, without its end, as the store has it. */
bool audit_query_match(const struct audit_query *q, const char *line, size_t n);

struct audit_page {
        struct buf lines;
        size_t n;
        struct audit_place next;
        bool end; /* nothing more is there now */
};
/* -ENOENT: there is no log of that sandbox. -EINVAL: not a place in it. Lines are appended to ret->lines. */
int audit_read(int dirfd, const char *id, const struct audit_query *q, struct audit_place from, size_t limit,
               struct audit_page *ret, struct error *err);

/* The numbers of the segments, ascending; -ENOENT. For the writer. */
int audit_segments(int dirfd, const char *id, uint64_t ret[AUDIT_SEGMENTS_MAX], size_t *ret_n);
