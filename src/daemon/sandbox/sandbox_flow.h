/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* What the flows of sandboxes (create, delete, loss, adoption, warm pool) share among themselves. */

#include "removal.h"
#include "sandbox.h"
#include "store/db.h"
#include "store/op.h"

struct warden;

/* ---- sandbox.c: table, state, rows --------------------------------------------------------- */

/* A struct with fresh id, token and creation time, not in the table. */
struct sandbox *sandbox_alloc(struct app *app);
int sandbox_new_token(struct sandbox *s); /* for those who had the one before it is over */
int sandbox_insert(struct app *app, struct sandbox *s);  /* the table holds a reference */
void sandbox_take_out(struct app *app, struct sandbox *s); /* drops it */
/* Any state, also POOLED and those being deleted. */
struct sandbox *sandbox_find_all(struct app *app, const char *id);
struct sandbox *sandbox_oldest(struct app *app); /* then ->next */
/* The one place where states change; -EPERM (logged) for a move that the table does not have. */
int sandbox_move(struct app *app, struct sandbox *s, enum sandbox_state to);
void sandbox_row_insert(const struct sandbox *s, struct db_batch *b);
void sandbox_row_update(const struct sandbox *s, struct db_batch *b);
void sandbox_row_delete(const struct sandbox *s, struct db_batch *b); /* with its log */
int sandbox_set_template(struct app *app, struct sandbox *s, struct tmpl *t); /* counts as a user */

/* ---- sandbox_watch.c: a running sandbox's warden ------------------------------------------- */

/* Takes over w (connected, identified), or connects itself when w is NULL. */
void sandbox_watch(struct app *app, struct sandbox *s, struct warden *w);
/* What its warden told while a move had the connection may say why it stands still: asks for it. */
void sandbox_watch_ask(struct sandbox *s);
void sandbox_unwatch(struct sandbox *s);
/* Gives the connection, NULL if there is none; that to its gateway stays. */
struct warden *sandbox_unwatch_keep(struct sandbox *s);
/* rootd says that a process of a sandbox ended ("vm", "warden"). */
void sandbox_vm_ended(struct app *app, const char *id, const char *what);
/* To FAILED: connections dropped, row written, placement removed, the disk of one that had run kept. */
void sandbox_fail(struct app *app, struct sandbox *s, const char *reason);

/* ---- sandbox_create.c ---------------------------------------------------------------------- */

/* After a restart: a CREATING sandbox goes on; placed: rootd has it. */
int create_resume(struct app *app, struct sandbox *s, bool placed);
/* Ends the flow; done comes once, maybe from inside. The sandbox keeps its state. */
void create_cancel(struct create *c, void (*done)(void *arg), void *arg);
/* The VM or warden of a sandbox under creation ended. */
void create_vm_ended(struct create *c, const char *reason);

/* cspaced ends: the flow is dropped, the next one goes on with it. */
void create_abandon(struct create *c);

/* ---- sandbox_life.c: pausing, suspending, stopping ----------------------------------------- */

/* After a restart: one in a state of these moves goes on. */
int life_resume(struct app *app, struct sandbox *s);
/* Makes an image of the disk of a FAILED one and removes the placement. */
void life_salvage(struct app *app, struct sandbox *s);
bool life_stores(const struct sandbox *s); /* that is under way; settle_stored() tells its end */
/* RESTORING or STARTING did not work: back to what it was, and the operation fails. */
void life_fall_back(struct app *app, struct sandbox *s, const char *op_id, enum api_code code, const char *why);
/* As those of create. */
void life_cancel(struct life *l, void (*done)(void *arg), void *arg);
void life_abandon(struct life *l);
void life_vm_ended(struct life *l, const char *reason);
/*
 * Image `image` (its id is the caller's) of the disk of one that has a VM, as a checkpoint takes it, for somebody else. cb comes
 * once, maybe from inside, and not when cspaced ends; why is NULL when the image is there. -EBUSY: why not now.
 */
typedef void (*life_image_cb)(void *arg, enum api_code code, const char *why);
int life_image(struct app *app, struct sandbox *s, const char *image, life_image_cb cb, void *arg, struct error *err);
/* The running operation of the move that s is in, or NULL. */
struct op *life_op_of(struct app *app, const struct sandbox *s);
/* Whether `state` is what an operation of this kind is for. */
bool life_reached(enum op_kind kind, enum sandbox_state state);
/* Whether a flow of s is making image `id`. */
bool life_owns_image(const struct sandbox *s, const char *id);

/* ---- sandbox_change.c: how these begin (sandbox.h has what others ask for) ------------------ */

/* Whether s can be forked without taking an image of it: it has no VM, or a checkpoint is used. -EBUSY: why not. */
int life_fork_check(struct app *app, const struct sandbox *s, bool checkpoint, struct error *err);

/* ---- sandbox_rolling.c: checkpoints that are taken by themselves ---------------------------- */

int64_t rolling_due_ms(struct sandbox *s); /* wall clock; 0 never */
/* It comes to run again. */
void rolling_woken(struct sandbox *s);
/* It is due. */
void rolling_take(struct app *app, struct sandbox *s);
/* One was taken. */
void rolling_taken(struct app *app, struct sandbox *s);
/* Removes those beyond its rules, unless it is under way. */
void rolling_prune(struct app *app, struct sandbox *s);

/* ---- sandbox_delete.c ---------------------------------------------------------------------- */

int delete_resume(struct app *app, struct sandbox *s);
void deletes_abandon(struct app *app); /* as create_abandon(), all of them */

/* ---- sandbox_expiry.c ---------------------------------------------------------------------- */

#define SANDBOX_FAILED_KEEP_MS (3600LL * 1000) /* a failed one is deleted after so long */

struct expiry;
int expiry_new(struct app *app, struct expiry **ret, struct error *err);
void expiry_free(struct expiry *e);
void expiry_changed(struct app *app); /* some expires_ms changed, or a sandbox came */
