/* SPDX-License-Identifier: Apache-2.0 */
#include "audit_queue.h"

#include <stdlib.h>
#include <string.h>

#include "base/buf.h"

_Static_assert(AUDIT_LINE_MAX <= AUDIT_BATCH_MAX, "a batch has at least one line");

struct audit_queue {
        struct buf lines;
        size_t peeked;                    /* bytes handed out and not yet taken */
        uint64_t dropped, told, told_now; /* records; in earlier batches; with the one that is out */
        void (*notify)(void *arg);
        void *arg;
};

struct audit_queue *audit_queue_new(void) {
        struct audit_queue *q = calloc(1, sizeof *q);
        if (q)
                q->lines = BUF_INIT(AUDIT_QUEUE_MAX);
        return q;
}

void audit_queue_free(struct audit_queue *q) {
        if (!q)
                return;
        buf_done(&q->lines);
        free(q);
}

void audit_queue_notify(struct audit_queue *q, void (*cb)(void *arg), void *arg) {
        q->notify = cb;
        q->arg = arg;
}

void audit_queue_add(struct audit_queue *q, const struct audit *a) {
        struct buf line = BUF_INIT(AUDIT_LINE_MAX);
        bool was_empty = q->lines.len == 0;
        if (audit_json(a, &line) < 0 || buf_append(&q->lines, buf_data(&line), line.len) < 0)
                q->dropped++;
        buf_done(&line);
        if (was_empty && q->lines.len > 0 && q->notify)
                q->notify(q->arg);
}

bool audit_queue_peek(struct audit_queue *q, const char **ret_lines, size_t *ret_n, uint64_t *ret_dropped) {
        const uint8_t *lines = buf_data(&q->lines);
        size_t n = q->lines.len;
        if (n == 0)
                return false;
        if (n > AUDIT_BATCH_MAX)
                n = (size_t) ((const uint8_t *) memrchr(lines, '\n', AUDIT_BATCH_MAX) - lines) + 1;
        q->peeked = n;
        q->told_now = q->dropped;
        *ret_lines = (const char *) lines;
        *ret_n = n;
        *ret_dropped = q->dropped - q->told;
        return true;
}

void audit_queue_taken(struct audit_queue *q) {
        buf_consume(&q->lines, q->peeked);
        q->peeked = 0;
        q->told = q->told_now;
        if (q->lines.len == 0)
                buf_done(&q->lines); /* a gateway is idle most of its life */
}

uint64_t audit_queue_dropped(const struct audit_queue *q) {
        return q->dropped;
}

size_t audit_queue_bytes(const struct audit_queue *q) {
        return q->lines.len;
}
