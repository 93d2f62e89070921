/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * A growable byte queue with a hard limit: bytes are appended at the end and consumed at the
 * front. data[start .. start+len) is live. Growth beyond `max` fails with -ENOBUFS, so a peer that
 * controls the amount meets a named limit instead of the host's memory.
 */

#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

struct buf {
        uint8_t *data;
        size_t start, len, cap;
        size_t max; /* limit on len; 0 means SIZE_MAX / 2 */
};

#define BUF_INIT(limit) ((struct buf){ .max = (limit) })

void buf_done(struct buf *b);           /* frees; usable again */
void buf_clear(struct buf *b);          /* forgets the bytes, keeps the memory */
int buf_append(struct buf *b, const void *data, size_t n); /* 0, -ENOBUFS, -ENOMEM */
int buf_puts(struct buf *b, const char *s);
int buf_printf(struct buf *b, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
int buf_vprintf(struct buf *b, const char *fmt, va_list ap) __attribute__((format(printf, 2, 0)));
int buf_reserve(struct buf *b, size_t n, uint8_t **ret); /* room for n more; then buf_commit() */
void buf_commit(struct buf *b, size_t n);
void buf_consume(struct buf *b, size_t n);
const char *buf_str(struct buf *b);     /* NUL-terminated view, NULL on -ENOMEM; NUL not counted */

static inline const uint8_t *buf_data(const struct buf *b) {
        return b->data ? b->data + b->start : (const uint8_t *) "";
}

#define _cleanup_buf_ _cleanup_(buf_done)
