/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * Operations: the record of one asynchronous change. An operation is made together with the row
 * it changes, in one transaction; its end is written when its effect is in place. Those that
 * ended are kept for a day, at most OP_KEEP_MAX of them.
 */

#include <stdbool.h>
#include <stdint.h>
#include <jansson.h>

#include "api/api.h"
#include "base/error.h"
#include "base/id.h"

#define OP_KEEP_MAX 10000
#define OP_LOG_MAX (256u * 1024) /* bytes of build log kept per operation */
#define OP_STEP_MAX 128

struct app;
struct db_batch;

/*
 * OP_RUNNING    may become either of the others, by its flow or by reconciliation after a restart
 * OP_SUCCEEDED  final
 * OP_FAILED     final; code and message say why
 */
enum op_state { OP_RUNNING, OP_SUCCEEDED, OP_FAILED, OP_STATE_MAX_ };
enum op_kind {
        OP_CREATE,
        OP_DELETE,
        OP_BUILD,
        OP_PAUSE,
        OP_RESUME,
        OP_SUSPEND,
        OP_RESTORE,
        OP_STOP,
        OP_START,
        OP_WAKE,
        OP_CHECKPOINT,
        OP_ROLLBACK,
        OP_FORK,
        OP_PUBLISH,
        OP_KIND_MAX_,
};
const char *op_state_name(enum op_state s);
const char *op_kind_name(enum op_kind k);

struct op_wait;
struct op {
        char id[ID_SIZE];
        enum op_kind kind;
        enum op_state state;
        char sandbox_id[ID_SIZE];               /* "" if none */
        char subject[2 * TEMPLATE_NAME_MAX + 2]; /* template of a build: "name:tag" */
        char owner[ID_SIZE];                    /* key id, "" for a local admin */
        int64_t created_ms, finished_ms;
        /* progress */
        char step[OP_STEP_MAX];
        int percent;                            /* -1: unknown */
        int eta_s;                              /* -1: unknown */
        /* failure */
        enum api_code code;
        char *message;                          /* NULL none */
        json_t *result;                         /* e.g. {"digest": ...}; NULL */
        struct op_log *log;                     /* builds only */
        struct op_wait *waits;
        struct op *prev, *next;                 /* by creation */
};

struct ops;
int ops_load(struct app *app, struct ops **ret, struct error *err);
void ops_free(struct app *app, struct ops *o);

/* Makes one in memory and adds its row to b. NULL: no memory or no randomness. */
struct op *op_new(struct app *app, struct db_batch *b, enum op_kind kind, const char *sandbox_id,
                  const char *subject, const char *owner);
struct op *op_find(struct app *app, const char *id);
/* The newest operation of a kind for a sandbox or NULL. */
struct op *op_find_for(struct app *app, enum op_kind kind, const char *sandbox_id);
struct op *op_newest(struct app *app); /* then ->prev */

void op_progress(struct op *o, const char *step, int percent, int eta_s); /* memory only */
void op_log_append(struct op *o, const char *text, size_t n);
/* What is kept of the log from offset on; *ret_start is where it begins, in bytes ever written. */
const char *op_log_text(const struct op *o, uint64_t offset, size_t *ret_n, uint64_t *ret_start);

/* Ends it and wakes the waiters (later, from the loop); adds the row's change to b (its submission is the caller's). */
void op_succeed(struct app *app, struct op *o, struct db_batch *b, json_t *result /* taken, or NULL */);
void op_fail(struct app *app, struct op *o, struct db_batch *b, enum api_code code, const char *message);
/* The end once more, after a transaction with it failed. */
void op_write_end(struct op *o, struct db_batch *b);
/* Forgets one that was never written (its batch failed). */
void op_discard(struct app *app, struct op *o);

/* cb comes once: the operation has ended, or timeout_ms went by (look at o->state), or o == NULL:
 * the operation was discarded. Never from inside op_wait_start(). */
typedef void (*op_wait_cb)(void *arg, struct op *o);
struct op_wait *op_wait_start(struct app *app, struct op *o, uint64_t timeout_ms, op_wait_cb cb, void *arg);
void op_wait_cancel(struct op_wait *w);

json_t *op_to_json(const struct op *o);
