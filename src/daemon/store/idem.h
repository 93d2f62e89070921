/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * Idempotency-Key. The first request with a key claims it, and binds it to what it does in the same
 * transaction; a later one with the same key of the same caller gets the same operation or the
 * same answer, or 422 when its method, target or body differ. Kept for a day.
 *
 * CLAIMED  by a request that has done nothing yet; free again when the request ends. BOUND
 * BOUND    the transaction is on its way to the disk; others get 409. KEPT, or free if it failed
 * KEPT     durable
 */

#include "api/api.h"

#define IDEM_KEY_MAX 255
#define IDEM_MAX 100000
#define IDEM_KEEP_MS (24LL * 3600 * 1000)

struct app;
struct op;
struct db_batch;
struct idems;

int idems_load(struct app *app, struct idems **ret, struct error *err);
void idems_free(struct idems *i);

/*
 * Looks at r's Idempotency-Key and claims it; r->idem_scope stands for caller and key then (NULL
 * when there is no key). 0: go on. 1: r has been answered (replay, mismatch, in progress, bad
 * key). 2: an earlier request made *ret_op; the caller answers with that. ret_op is NULL in
 * handlers that make no operations.
 */
int idem_begin(struct api_req *r, struct op **ret_op);
/* By api_req_unref(): frees the key unless it was bound. */
void idem_release(struct app *app, const char *scope);

/* Bind scope in the transaction b; NULL: nothing happens. */
void idem_bind_op(struct app *app, const char *scope, const char *op_id, struct db_batch *b);
void idem_bind_reply(struct app *app, const char *scope, int status, const json_t *body, struct db_batch *b);
/* That transaction has ended. */
void idem_settle(struct app *app, const char *scope, bool durable);
