/* SPDX-License-Identifier: Apache-2.0 */

/* Codes: https://connectrpc.com/docs/protocol, "Error codes". Two of the project's codes map to
 * HTTP 400 there; cancellation is 499, which has no name in HTTP. */

#include "wire/connect.h"

#include <assert.h>
#include <errno.h>
#include <stddef.h>

#include "base/str.h"

static const struct {
        const char *name;
        int http;
} codes[] = {
        [CONNECT_OK] = { "ok", 200 },
        [CONNECT_CANCELED] = { "canceled", 499 },
        [CONNECT_UNKNOWN] = { "unknown", 500 },
        [CONNECT_INVALID_ARGUMENT] = { "invalid_argument", 400 },
        [CONNECT_DEADLINE_EXCEEDED] = { "deadline_exceeded", 504 },
        [CONNECT_NOT_FOUND] = { "not_found", 404 },
        [CONNECT_ALREADY_EXISTS] = { "already_exists", 409 },
        [CONNECT_PERMISSION_DENIED] = { "permission_denied", 403 },
        [CONNECT_RESOURCE_EXHAUSTED] = { "resource_exhausted", 429 },
        [CONNECT_FAILED_PRECONDITION] = { "failed_precondition", 400 },
        [CONNECT_ABORTED] = { "aborted", 409 },
        [CONNECT_UNIMPLEMENTED] = { "unimplemented", 501 },
        [CONNECT_INTERNAL] = { "internal", 500 },
        [CONNECT_UNAVAILABLE] = { "unavailable", 503 },
        [CONNECT_UNAUTHENTICATED] = { "unauthenticated", 401 },
};
static_assert(sizeof codes / sizeof codes[0] == CONNECT_CODE_MAX_);

const char *connect_code_name(enum connect_code c) {
        return c < CONNECT_CODE_MAX_ ? codes[c].name : codes[CONNECT_UNKNOWN].name;
}

int connect_code_http(enum connect_code c) {
        return c < CONNECT_CODE_MAX_ ? codes[c].http : codes[CONNECT_UNKNOWN].http;
}

enum connect_code connect_code_from_name(const char *s) {
        for (unsigned i = CONNECT_OK + 1; i < CONNECT_CODE_MAX_; i++)
                if (str_eq(codes[i].name, s))
                        return (enum connect_code) i;
        return CONNECT_UNKNOWN;
}

int connect_write_frame(struct buf *out, uint8_t flags, const void *data, size_t n) {
        if (n > UINT32_MAX)
                return -EMSGSIZE;
        uint8_t *p;
        int r = buf_reserve(out, CONNECT_FRAME_HEAD + n, &p);
        if (r < 0)
                return r;
        uint8_t head[CONNECT_FRAME_HEAD] = {flags, (uint8_t) (n >> 24), (uint8_t) (n >> 16),
                                            (uint8_t) (n >> 8), (uint8_t) n};
        r = buf_append(out, head, sizeof head);
        return r < 0 || n == 0 ? r : buf_append(out, data, n);
}

static size_t announced(const uint8_t *p) {
        return (size_t) p[1] << 24 | (size_t) p[2] << 16 | (size_t) p[3] << 8 | p[4];
}

int connect_reader_peek(struct connect_reader *r, uint8_t *flags, const uint8_t **data, size_t *n) {
        if (r->in.len < CONNECT_FRAME_HEAD)
                return 0;
        const uint8_t *p = buf_data(&r->in);
        size_t len = announced(p);
        if (len > r->max)
                return -EMSGSIZE;
        if (r->in.len - CONNECT_FRAME_HEAD < len)
                return 0;
        *flags = p[0];
        *data = p + CONNECT_FRAME_HEAD;
        *n = len;
        return 1;
}

void connect_reader_next(struct connect_reader *r) {
        if (r->in.len >= CONNECT_FRAME_HEAD)
                buf_consume(&r->in, CONNECT_FRAME_HEAD + announced(buf_data(&r->in)));
}
