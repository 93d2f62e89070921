/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * Variants: a template's snapshot for one engine and size. Made at the first use, once however
 * many wait for it, and kept. Making one boots the template's kernel (again when that hangs), runs
 * what agents run first, so that it is in the snapshot's memory, and snapshots.
 *
 * A template has at most VARIANTS_MAX: for another size, the one makes way that no sandbox is of and that was used
 * least recently.
 */

#include <jansson.h>

#include "base/error.h"
#include "manifest/variant.h"
#include "template.h"

#define VARIANTS_MAX 8 /* of one template: each holds a guest's memory and disk */

struct app;
struct variants;
struct db_batch;

int variants_load(struct app *app, struct variants **ret, struct error *err);
void variants_abandon(struct app *app); /* cspaced ends: nothing goes on; freed after the database's last answer */
void variants_free(struct variants *v);

struct variant_wait;
struct variant_waiter {
        void (*on_progress)(void *arg, const char *step, int percent, int eta_s); /* may be NULL */
        void (*on_done)(void *arg, int err, const struct error *e);               /* once */
        void (*on_log)(void *arg, const char *text, size_t n);                    /* may be NULL */
};
/* 1: it is there; 0: being made, *ret is the waiting; negative: cannot be made now. No callback
 * comes from inside. */
int variant_ensure(struct app *app, struct tmpl *t, uint32_t memory_mb, uint32_t cpus,
                   const struct variant_waiter *w, void *arg, struct variant_wait **ret, struct error *err);
/* The making ends when nobody waits for it any more; NULL is fine. */
void variant_wait_cancel(struct variant_wait *w);
/* The one variant of a template that was published with its memory is there already; its row in b. */
int variant_adopt(struct app *app, const struct tmpl *t, uint32_t memory_mb, uint32_t cpus, struct db_batch *b);
/* At start, when rows may be written: rows of what cannot be used any more go, and their files. */
void variants_collect(struct app *app);
/* cspace-rootd says that it does not have it. */
void variant_forget(struct app *app, const char *digest, uint32_t memory_mb, uint32_t cpus);
/* From the image of its process nothing starts, from its snapshot it does: it is made anew at its next use. */
void variant_damaged(struct app *app, const char *digest, uint32_t memory_mb, uint32_t cpus);
/* The template goes. */
void variants_forget_all(struct app *app, const char *digest, struct db_batch *b);
bool variant_known(struct app *app, const char *digest, uint32_t memory_mb, uint32_t cpus);
/* Whether a placement belongs to a making under way. */
bool variant_owns(struct app *app, const char *id);
void variant_vm_ended(struct app *app, const char *id);
json_t *variants_to_json(struct app *app, const char *digest);
