/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * Audit records on their way to cspaced: JSON lines in a bounded queue, handed out in batches. What does
 * not fit is counted, never waited for, and the number is told with the next batch.
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "policy/audit.h"

#define AUDIT_QUEUE_MAX (4u * 1024 * 1024)
#define AUDIT_BATCH_MAX (128u * 1024)

struct audit_queue;
struct audit_queue *audit_queue_new(void); /* NULL: no memory */
void audit_queue_free(struct audit_queue *q);
/* Called for a record that came into an empty queue. */
void audit_queue_notify(struct audit_queue *q, void (*cb)(void *arg), void *arg);
void audit_queue_add(struct audit_queue *q, const struct audit *a);

/* The next batch: whole lines, at most AUDIT_BATCH_MAX bytes, borrowed until the queue is next changed. False:
 * nothing. */
bool audit_queue_peek(struct audit_queue *q, const char **ret_lines, size_t *ret_n, uint64_t *ret_dropped);
void audit_queue_taken(struct audit_queue *q); /* the batch has arrived: forget it */
uint64_t audit_queue_dropped(const struct audit_queue *q); /* since the start */
size_t audit_queue_bytes(const struct audit_queue *q);
