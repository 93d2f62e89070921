/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * The history of a sandbox: checkpoints, a tree by `parent`. A checkpoint is a row and an image of the same id (the
 * id of the operation that made it). The flows that make them and go back to them are in sandbox_life.c.
 */

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"
#include "base/id.h"

#define CHECKPOINT_NAME_MAX 63
#define CHECKPOINT_CALLED_SIZE (CHECKPOINT_NAME_MAX + ID_SIZE + 4)
#define CHECKPOINTS_MAX 256 /* of one sandbox */

struct app;
struct sandbox;
struct db_batch;

struct checkpoint {
        char id[ID_SIZE];
        char parent[ID_SIZE]; /* what the sandbox went on from then; "" the template, or one that was removed */
        char name[CHECKPOINT_NAME_MAX + 1]; /* "" none; unique in its sandbox */
        bool full;       /* with memory */
        bool automatic;  /* taken by the sandbox's rules, and rolled away by them */
        bool consistent; /* full, or the guest's filesystem was frozen or at rest */
        int64_t created_ms;
        uint64_t written_bytes; /* of memory and devices */
        struct checkpoint *next;
};

int checkpoints_load(struct app *app, struct error *err); /* after the sandboxes */
/* Adds its row, and that it is the head, to b; then, when that is durable, it is put (malloc'd, taken) at the end
 * of s's list. */
void checkpoint_row_insert(const struct sandbox *s, const struct checkpoint *c, struct db_batch *b);
void checkpoint_add(struct sandbox *s, struct checkpoint *c);
/* By id or name; NULL. */
struct checkpoint *checkpoint_find(const struct sandbox *s, const char *id_or_name);
/* That of s with this id as its log names it: NAME (ID), or the id. Returns out. */
const char *checkpoint_called(const struct sandbox *s, const char *id, char out[CHECKPOINT_CALLED_SIZE]);
void checkpoint_remove(struct sandbox *s, struct checkpoint *c, struct db_batch *b);
void checkpoints_free(struct sandbox *s);
json_t *checkpoint_to_json(const struct checkpoint *c);
/* Whether some sandbox has image `id` as a checkpoint, as what it goes on from, or under work. */
bool image_known(struct app *app, const char *id);
/*
 * Keeps image `id` (may be "") known while the transaction by which nothing needs it any more is under way: should that be
 * lost, the rows still name it. h is the caller's, zeroed before, and free again after image_unhold(), which may come twice.
 */
struct image_hold {
        char id[ID_SIZE];
        struct image_hold *next;
};
void image_hold(struct app *app, struct image_hold *h, const char *id);
void image_unhold(struct app *app, struct image_hold *h);
/* Has image `id` removed unless it is. */
void image_release(struct app *app, const char *id);
