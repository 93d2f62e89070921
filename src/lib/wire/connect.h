/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * Connect protocol, streaming framing in JSON: 1 flag byte, 4 bytes big-endian length, payload.
 * Flag 0 is a message; flag 2 ends the stream with {} or {"error":{"code","message"}}.
 */

#include <stdint.h>

#include "base/buf.h"

#define CONNECT_FLAG_COMPRESSED 0x01
#define CONNECT_FLAG_END 0x02
#define CONNECT_FRAME_HEAD 5

enum connect_code {
        CONNECT_OK = 0,
        CONNECT_CANCELED,
        CONNECT_UNKNOWN,
        CONNECT_INVALID_ARGUMENT,
        CONNECT_DEADLINE_EXCEEDED,
        CONNECT_NOT_FOUND,
        CONNECT_ALREADY_EXISTS,
        CONNECT_PERMISSION_DENIED,
        CONNECT_RESOURCE_EXHAUSTED,
        CONNECT_FAILED_PRECONDITION,
        CONNECT_ABORTED,
        CONNECT_UNIMPLEMENTED,
        CONNECT_INTERNAL,
        CONNECT_UNAVAILABLE,
        CONNECT_UNAUTHENTICATED,
        CONNECT_CODE_MAX_,
};
const char *connect_code_name(enum connect_code c); /* "not_found" */
int connect_code_http(enum connect_code c);         /* 404 */
enum connect_code connect_code_from_name(const char *s); /* CONNECT_UNKNOWN if not one */

int connect_write_frame(struct buf *out, uint8_t flags, const void *data, size_t n);

/* Reader: feed bytes, take whole frames. A frame over max is an error before it is buffered. */
struct connect_reader {
        struct buf in;
        size_t max;
};
/* 1: *flags, *data, *n are one frame (borrowed; drop it with connect_reader_next()); 0: more is
 * needed; -EMSGSIZE: the announced length is over max. */
int connect_reader_peek(struct connect_reader *r, uint8_t *flags, const uint8_t **data, size_t *n);
void connect_reader_next(struct connect_reader *r);
