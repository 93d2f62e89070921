/* SPDX-License-Identifier: Apache-2.0 */
#include "output.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/fd.h"
#include "base/json.h"
#include "base/str.h"

#define CHUNK_BYTES (256u * 1024)
#define KEY_MAX 64

void output_init(struct output *o, int fd) {
        *o = (struct output){ .fd = fd, .pending = BUF_INIT(0) };
}

void output_done(struct output *o) {
        buf_done(&o->pending);
}

int output_flush(struct output *o, struct error *err) {
        int r = fd_write_all(o->fd, buf_data(&o->pending), o->pending.len, err);

        buf_clear(&o->pending);
        return r;
}

int output_bytes(struct output *o, const void *data, size_t n, struct error *err) {
        int r = 0;

        if (o->pending.len + n > CHUNK_BYTES)
                r = output_flush(o, err);
        if (r == 0 && n > CHUNK_BYTES)
                return fd_write_all(o->fd, data, n, err);
        if (r == 0) {
                r = buf_append(&o->pending, data, n);
                if (r < 0)
                        error_set(err, r, "out of memory");
        }
        return r;
}

int output_zeros(struct output *o, uint64_t n, struct error *err) {
        static const uint8_t zeros[65536];
        int r = 0;

        while (r == 0 && n > 0) {
                size_t part = n < sizeof zeros ? (size_t) n : sizeof zeros;
                r = output_bytes(o, zeros, part, err);
                n -= part;
        }
        return r;
}

int output_line(struct output *o, json_t *line, struct error *err) {
        _cleanup_json_ json_t *owned = line;
        _cleanup_free_ char *text = owned ? json_to_str(owned) : NULL;

        if (!text)
                return error_set(err, -ENOMEM, "out of memory");
        int r = output_bytes(o, text, strlen(text), err);
        return r < 0 ? r : output_bytes(o, "\n", 1, err);
}

/* Length of the well-formed character at p, 0 when there is none. */
static size_t character(const char *p, size_t n) {
        for (size_t k = 1; k <= 4 && k <= n; k++)
                if (str_is_utf8(p, k))
                        return k;
        return 0;
}

static json_t *readable(const char *bytes, size_t n) {
        _cleanup_buf_ struct buf b = BUF_INIT(0);

        for (size_t i = 0; i < n;) {
                size_t k = character(bytes + i, n - i);
                if ((k ? buf_append(&b, bytes + i, k) : buf_append(&b, "\xef\xbf\xbd", 3)) < 0)
                        return NULL;
                i += k ? k : 1;
        }
        return json_stringn((const char *) buf_data(&b), b.len);
}

int output_set_name(json_t *obj, const char *key, const char *bytes, size_t n) {
        char exact[KEY_MAX];

        if (str_is_utf8(bytes, n))
                return json_object_set_new(obj, key, json_stringn(bytes, n)) < 0 ? -ENOMEM : 0;
        _cleanup_free_ char *b64 = malloc(base64_encoded_len(n) + 1);
        if (!b64)
                return -ENOMEM;
        base64_encode(bytes, n, b64);
        snprintf(exact, sizeof exact, "%s_b64", key);
        if (json_object_set_new(obj, key, readable(bytes, n)) < 0 || json_object_set_new(obj, exact, json_string(b64)) < 0)
                return -ENOMEM;
        return 0;
}
