/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * Audit records on disk: one folder for each sandbox, named by its id, with segments "0000000001.jsonl" and so on,
 * each of whole lines. The newest one grows; the oldest go when the sandbox has more than its share, and when all
 * together have more than the host's, those of who has most. So the size is bounded, and a noisy sandbox
 * costs itself its history before it costs another one's.
 *
 * One thread writes (the functions of struct audit_log); any may read beside it (audit_read.h), because a
 * segment only ever grows by whole lines, and is never renamed.
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"

#define AUDIT_SEGMENTS 16               /* of one sandbox, at its limit */
#define AUDIT_SEGMENT_MIN (16u * 1024)  /* whatever the limit is */
#define AUDIT_SEGMENT_NAME_SIZE 20      /* "0000000001.jsonl" */
#define AUDIT_SEGMENT_LAST 9999999999ULL

struct audit_log;

/* Makes the folder if need be, and looks at what is there. */
int audit_log_open(const char *path, uint64_t sandbox_bytes, uint64_t total_bytes, struct audit_log **ret,
                   struct error *err);
void audit_log_free(struct audit_log *l); /* NULL is fine */
int audit_log_dirfd(const struct audit_log *l); /* for readers */

/* Whole lines, to the end of id's log; on disk after audit_log_sync(), of which the result counts. All or nothing. */
int audit_log_append(struct audit_log *l, const char *id, const void *lines, size_t n, struct error *err);
int audit_log_sync(struct audit_log *l, const char *id, struct error *err);

/* Its sandbox is gone: the time from which it is kept. */
void audit_log_retire(struct audit_log *l, const char *id);
/* Removes each log that was written or retired last before `before_ms` and that `wanted` does not know; returns how many. */
size_t audit_log_sweep(struct audit_log *l, int64_t before_ms, bool (*wanted)(void *arg, const char *id), void *arg);

uint64_t audit_log_bytes(const struct audit_log *l); /* of all together */
