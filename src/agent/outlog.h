/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * The journal of a command's output: bytes in the order in which they were read, each with its
 * offset and channel, kept until the client acknowledged them. Sans-I/O.
 *
 *        base                      end
 *   ------|=========================|
 *   acked |   kept, may be sent     | next byte read gets this offset
 *   or    |   again                 |
 *   dropped
 */

#include <stddef.h>
#include <stdint.h>

#define OUTLOG_MAX (8u * 1024 * 1024) /* kept bytes; then the command is held back */

struct outlog_chunk;

struct outlog {
        struct outlog_chunk *first, *last;
        uint64_t base, end;
        size_t chunks;
};

void outlog_done(struct outlog *l);
int outlog_append(struct outlog *l, uint8_t channel, const void *data, size_t n); /* 0 or -ENOMEM */
/* Forgets everything before off. */
void outlog_ack(struct outlog *l, uint64_t off);
/* A run of bytes of one channel that starts at off (base <= off <= end); 0 at the end. Borrowed. */
size_t outlog_peek(const struct outlog *l, uint64_t off, uint8_t *ret_channel, const uint8_t **ret_data);

static inline uint64_t outlog_kept(const struct outlog *l) {
        return l->end - l->base;
}
