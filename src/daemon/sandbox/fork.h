/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * Forks: copies of one sandbox that run. All of them come about or none. The flow is in fork.c; the part of it that takes
 * the image of a running sandbox is in sandbox_life.c. A snapshot is one copy that does not run but is kept, to be forked again; it
 * lives on when the sandbox is deleted.
 */

#include <jansson.h>
#include <stdbool.h>

#include "base/error.h"
#include "sandbox.h"
#include "store/db.h"

#define FORK_MAX 64    /* copies of one request */
#define FORK_AT_ONCE 8 /* of these being placed at a time */
#define SNAPSHOTS_MAX 1000 /* on this host */

struct app;
struct checkpoint;
struct fork;
struct op;
struct ipc_image_info;

struct fork_params {
        unsigned n;                          /* 1 to FORK_MAX */
        const char *name;                    /* of one copy; of several NAME-1 and so on; NULL none */
        const struct checkpoint *checkpoint; /* NULL: what it is now */
        bool snapshot;                       /* n is 1 */
        struct sandbox_copy copy;            /* `name` is not used; `owner` owns the operation too */
        const char *idem;
};
/*
 * Makes the operation and starts; durable as with sandbox_create(). The operation's result has the ids, as "sandboxes" (of a snapshot
 * "snapshot"); when it has failed there is none of them. < 0: *ret_code says what is wrong.
 */
int sandbox_fork(struct app *app, struct sandbox *of, const struct fork_params *p, sandbox_durable_cb durable, void *arg,
                 struct op **ret_op, enum api_code *ret_code, struct error *err);

/* After sandboxes and operations: those that were under way. */
int forks_load(struct app *app, struct error *err);
void forks_free(struct app *app); /* after the database's last callback */
/* In each reconciliation, when its sandboxes have gone on: decides about what a restart left. */
void forks_resume(struct app *app);
bool fork_running(struct app *app, const char *op_id);

/* ---- for the flow that takes the image ------------------------------------------------------- */

/* Image `image` is there: its copies get their rows, in b, and are in the table. fleeting: it may not be there after a
 * reboot of the host, or be damaged. < 0: they are not. */
int fork_enter(struct fork *f, const char *op_id, const char *image, bool full, bool fleeting, struct db_batch *b, struct error *err);
/* Whether the image has to be there after the host's power was cut: copies that are being made have to not. */
bool fork_keeps(const struct fork *f);
/* Those rows are durable: the copies are started, and f goes its own way. info may be NULL. */
void fork_go(struct fork *f, const struct ipc_image_info *info);
/* It does not come about; entered or not. NULL is fine. */
void fork_drop(struct fork *f);

/* ---- what becomes of its copies; nothing happens for sandboxes that are no part of one ------- */

void fork_member_made(struct app *app, struct sandbox *s);
void fork_member_failed(struct app *app, struct sandbox *s, enum api_code code, const char *why);
void fork_member_deleted(struct app *app, struct sandbox *s); /* its deletion begins */
void fork_member_gone(struct app *app, struct sandbox *s);    /* nothing is left of it */
