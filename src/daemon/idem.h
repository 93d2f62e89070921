/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * Idempotency-Key. The first request with a key claims it together with what it does (in the
 * same transaction); a later one with the same key of the same caller gets the same operation or
 * the same answer, or 422 when its method, target or body differ. Kept for a day.
 */

#include "api.h"

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
 * Looks at r's Idempotency-Key. *ret_scope is NULL when it has none, else a string that lives as
 * long as the request and stands for caller and key. Returns 0: go on; 1: the request has been
 * answered (replay, mismatch, in progress, bad key).
 */
int idem_begin(struct api_req *r, const char **ret_scope);
/* The same, when the earlier request made an operation: *ret_op is it and the caller answers. */
int idem_begin_op(struct api_req *r, const char **ret_scope, struct op **ret_op);

/* Binds the scope to an operation, in the transaction that makes it. scope NULL: nothing. */
void idem_bind_op(struct app *app, const char *scope, const char *op_id, struct db_batch *b);
/* Binds the scope to a finished answer. */
void idem_bind_reply(struct app *app, const char *scope, int status, const json_t *body, struct db_batch *b);
/* The request failed: the key may be used again. */
void idem_release(struct app *app, const char *scope);
