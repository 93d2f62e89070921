/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * multipart/form-data reader (RFC 7578, RFC 2046), sans-I/O and in constant memory: file content
 * is never collected, so an upload may be as large as the disk behind it. Events come in the order
 * MULTIPART_PART, MULTIPART_DATA*, MULTIPART_PART_END for each part, then MULTIPART_END.
 *
 * A line that starts with the delimiter but does not end there is content. White space after a
 * delimiter is accepted, nested multiparts and transfer encodings that change bytes are not.
 */

#include <stddef.h>
#include <stdint.h>

#include "base/error.h"

#define MULTIPART_BOUNDARY_MAX 70           /* RFC 2046, 5.1.1 */
#define MULTIPART_PREAMBLE_MAX (8u * 1024)  /* bytes before the first delimiter, and after the last */
#define MULTIPART_HEAD_MAX (16u * 1024)     /* header lines of one part together */
#define MULTIPART_HEADERS_MAX 16
#define MULTIPART_PARTS_MAX 65536

struct multipart_part {
        const char *name;
        /* NULL: none was given. Quotes and line ends that browsers write as %22, %0D and %0A, and
         * backslash escapes, are decoded; other bytes are as sent: UTF-8 by convention, not
         * checked. May have slashes. Never has a NUL. */
        const char *filename;
        const char *filename_raw; /* with the percent triplets left as they are */
        const char *content_type; /* NULL: none was given */
};

enum multipart_event_type {
        MULTIPART_NEED_DATA, /* all input consumed */
        MULTIPART_PART,      /* ev.part, valid until MULTIPART_PART_END */
        MULTIPART_DATA,      /* ev.data, ev.n: borrowed until the next call */
        MULTIPART_PART_END,
        MULTIPART_END,       /* the closing delimiter was read; what follows it is dropped */
        MULTIPART_ERROR,     /* ev.reason; the parser is dead */
};

struct multipart_event {
        enum multipart_event_type type;
        const struct multipart_part *part;
        const uint8_t *data;
        size_t n;
        const char *reason;
};

struct multipart_parser;
/* content_type is the header of the whole message; -EINVAL: it isn't multipart/form-data with a
 * valid boundary. */
int multipart_new(const char *content_type, struct multipart_parser **ret, struct error *err);
void multipart_free(struct multipart_parser *p); /* NULL is fine */
/* Consumes from data as http1_parse() does: call again with the rest until MULTIPART_NEED_DATA. */
void multipart_parse(struct multipart_parser *p, const uint8_t *data, size_t n, size_t *used,
                     struct multipart_event *ev);
/* End of input: 0, or -EPROTO when the closing delimiter has not come. */
int multipart_eof(const struct multipart_parser *p);
