/* SPDX-License-Identifier: Apache-2.0 */
#include "base/buf.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define BUF_MIN_CAP 256

void buf_done(struct buf *b) {
        if (!b)
                return;
        free(b->data);
        b->data = NULL;
        b->start = b->len = b->cap = 0;
}

void buf_clear(struct buf *b) {
        b->start = b->len = 0;
}

static size_t limit_of(const struct buf *b) {
        return b->max ? b->max : SIZE_MAX / 2;
}

/* Makes room for n bytes after the live ones, moving them to the front before growing. */
static int make_room(struct buf *b, size_t n) {
        if (n <= b->cap - b->start - b->len)
                return 0;
        if (b->start > 0 && n <= b->cap - b->len && b->start >= b->len) {
                memmove(b->data, b->data + b->start, b->len);
                b->start = 0;
                return 0;
        }
        size_t need = b->len + n, cap = b->cap < BUF_MIN_CAP ? BUF_MIN_CAP : b->cap;
        while (cap < need)
                cap *= 2;
        uint8_t *data = malloc(cap);
        if (!data)
                return -ENOMEM;
        if (b->len > 0)
                memcpy(data, b->data + b->start, b->len);
        free(b->data);
        b->data = data;
        b->cap = cap;
        b->start = 0;
        return 0;
}

int buf_reserve(struct buf *b, size_t n, uint8_t **ret) {
        if (n > limit_of(b) || b->len > limit_of(b) - n)
                return -ENOBUFS;
        int r = make_room(b, n);
        if (r < 0)
                return r;
        *ret = b->data ? b->data + b->start + b->len : NULL; /* nothing asked of an empty one */
        return 0;
}

void buf_commit(struct buf *b, size_t n) {
        b->len += n;
}

int buf_append(struct buf *b, const void *data, size_t n) {
        if (n == 0)
                return 0;
        uint8_t *to;
        int r = buf_reserve(b, n, &to);
        if (r < 0)
                return r;
        memcpy(to, data, n);
        buf_commit(b, n);
        return 0;
}

int buf_puts(struct buf *b, const char *s) {
        return buf_append(b, s, strlen(s));
}

int buf_vprintf(struct buf *b, const char *fmt, va_list ap) {
        va_list again;
        va_copy(again, ap);
        int n = vsnprintf(NULL, 0, fmt, again);
        va_end(again);
        if (n < 0)
                return -EINVAL;
        uint8_t *to;
        int r = buf_reserve(b, (size_t) n + 1, &to); /* vsnprintf writes a NUL too */
        if (r < 0)
                return r;
        (void) vsnprintf((char *) to, (size_t) n + 1, fmt, ap);
        buf_commit(b, (size_t) n);
        return 0;
}

int buf_printf(struct buf *b, const char *fmt, ...) {
        va_list ap;
        va_start(ap, fmt);
        int r = buf_vprintf(b, fmt, ap);
        va_end(ap);
        return r;
}

void buf_consume(struct buf *b, size_t n) {
        if (n >= b->len) {
                buf_clear(b);
                return;
        }
        b->start += n;
        b->len -= n;
}

const char *buf_str(struct buf *b) {
        if (make_room(b, 1) < 0)
                return NULL;
        b->data[b->start + b->len] = '\0';
        return (const char *) b->data + b->start;
}
