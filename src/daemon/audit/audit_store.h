/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * The audit log of all sandboxes: audit_log.h behind a thread of its own, so that neither an fsync nor the judging of what
 * gateways say holds the loop up. What waits together is synced together. Reading is done on libuv's workers.
 *
 * Every line is read as a record (policy/audit.h) and written anew, with the id of the sandbox whose gateway sent it:
 * a gateway that was taken over can lie about its own sandbox, but neither about another one nor out of form.
 */

#include <stddef.h>
#include <stdint.h>

#include "audit_read.h"
#include "base/error.h"
#include "policy/audit.h"

struct app;
struct audit_store;

#define AUDIT_QUEUE_BYTES (64u * 1024 * 1024) /* that wait for the thread */
#define AUDIT_WATCHERS_MAX 256
#define AUDIT_USES_MAX 64 /* BINDINGS_MAX */
#define AUDIT_SWEEP_MS (10 * 60 * 1000)

int audit_store_new(struct app *app, struct audit_store **ret, struct error *err);
void audit_store_free(struct audit_store *a); /* writes what waits, then answers it; NULL is fine */

/* Lines from a gateway; dropped: records that it had no room for. cb when they are on disk, or not.
 * -ENOBUFS: too much waits. */
typedef void (*audit_done_cb)(void *arg, int err, const struct error *e);
int audit_store_append(struct app *app, const char *id, const void *lines, size_t n, uint64_t dropped, audit_done_cb cb,
                       void *arg);
/* The sandbox is deleted: watchers are told, and the log goes after [audit] keep. */
void audit_store_retire(struct app *app, const char *id);

/* cb once, on the loop, with a page (borrowed) or an error; -ECANCELED while cspaced stops, perhaps after its other parts
 * have gone. q stays the caller's, and must last until then. */
typedef void (*audit_read_cb)(void *arg, int err, const struct error *e, struct audit_page *page);
int audit_store_read(struct app *app, const char *id, const struct audit_query *q, struct audit_place from, size_t limit,
                     audit_read_cb cb, void *arg);

/* fn whenever lines were added to the log of id; ended: the sandbox is deleted, and no more will come. */
struct audit_watch;
int audit_store_watch(struct app *app, const char *id, void (*fn)(void *arg, bool ended), void *arg, struct audit_watch **ret);
void audit_store_unwatch(struct audit_watch *w); /* NULL is fine */

/* What records say, for /metrics; a gateway may lie about its own. */
struct audit_tally {
        uint64_t verdicts[N_AUDIT_KINDS][2]; /* denied, allowed; repeated ones too */
        uint64_t denied[N_POLICY_REASONS];
        uint64_t bytes_out, bytes_in;        /* of connections */
};

struct audit_stats {
        uint64_t records, bad, bytes; /* written; refused for their form; on disk */
        uint64_t lost;                /* for which gateways had no room */
        struct audit_tally tally;
};
void audit_store_stats(struct app *app, struct audit_stats *ret);

/* How often bindings were used, by the records of one batch. */
struct audit_uses {
        struct {
                char binding[AUDIT_BINDING_MAX + 1];
                uint64_t n;
        } at[AUDIT_USES_MAX];
        size_t n;
        struct audit_tally tally; /* of the same records */
};

/* For tests: what is written for lines that a gateway sent. Returns how many were bad. */
size_t audit_normalise(const char *id, const void *lines, size_t n, struct buf *out, size_t *ret_good, struct audit_uses *uses);
