/* SPDX-License-Identifier: Apache-2.0 */

#include "wire/attach.h"

#include <errno.h>
#include <stddef.h>

int attach_write(struct buf *out, enum attach_type type, const void *a, size_t an, const void *b, size_t bn) {
        if (an > ATTACH_PAYLOAD_MAX || bn > ATTACH_PAYLOAD_MAX - an)
                return -EMSGSIZE;
        size_t n = an + bn;
        uint8_t *p;
        int r = buf_reserve(out, ATTACH_HEAD + n, &p);
        if (r < 0)
                return r;
        uint8_t head[ATTACH_HEAD] = {(uint8_t) type, (uint8_t) (n >> 24), (uint8_t) (n >> 16),
                                     (uint8_t) (n >> 8), (uint8_t) n};
        r = buf_append(out, head, sizeof head);
        if (r == 0 && an)
                r = buf_append(out, a, an);
        if (r == 0 && bn)
                r = buf_append(out, b, bn);
        return r;
}

static size_t announced(const uint8_t *p) {
        return (size_t) p[1] << 24 | (size_t) p[2] << 16 | (size_t) p[3] << 8 | p[4];
}

int attach_reader_peek(struct attach_reader *r, uint8_t *type, const uint8_t **data, size_t *n) {
        if (r->in.len < ATTACH_HEAD)
                return 0;
        const uint8_t *p = buf_data(&r->in);
        size_t len = announced(p);
        if (len > ATTACH_PAYLOAD_MAX)
                return -EMSGSIZE;
        if (r->in.len - ATTACH_HEAD < len)
                return 0;
        *type = p[0];
        *data = p + ATTACH_HEAD;
        *n = len;
        return 1;
}

void attach_reader_next(struct attach_reader *r) {
        if (r->in.len >= ATTACH_HEAD)
                buf_consume(&r->in, ATTACH_HEAD + announced(buf_data(&r->in)));
}
