/* SPDX-License-Identifier: Apache-2.0 */
#include "checkpoint.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "app.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "base/str.h"
#include "sandbox_flow.h"
#include "store/op.h"

void checkpoint_add(struct sandbox *s, struct checkpoint *c) {
        struct checkpoint **at = &s->checkpoints;
        while (*at)
                at = &(*at)->next;
        *at = c;
        memcpy(s->head, c->id, sizeof s->head);
}

void checkpoint_row_insert(const struct sandbox *s, const struct checkpoint *c, struct db_batch *b) {
        db_batch_add(b, "UPDATE sandboxes SET head = ? WHERE id = ?", "ss", c->id, s->id);
        db_batch_add(b,
                     "INSERT INTO checkpoints (id, sandbox_id, parent, name, kind, consistent, created_ms, written_bytes,"
                     " automatic) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
                     "sssssiiii", c->id, s->id, c->parent, c->name, c->full ? "full" : "disk", (int64_t) c->consistent,
                     c->created_ms, (int64_t) c->written_bytes, (int64_t) c->automatic);
}

struct checkpoint *checkpoint_find(const struct sandbox *s, const char *id_or_name) {
        struct checkpoint *named = NULL;
        for (struct checkpoint *c = s->checkpoints; c; c = c->next) {
                if (strcmp(c->id, id_or_name) == 0)
                        return c;
                if (c->name[0] && strcmp(c->name, id_or_name) == 0)
                        named = c;
        }
        return named;
}

const char *checkpoint_called(const struct sandbox *s, const char *id, char out[CHECKPOINT_CALLED_SIZE]) {
        const struct checkpoint *c = checkpoint_find(s, id);
        if (c && c->name[0])
                (void) sprintf(out, "%s (%s)", c->name, id);
        else
                (void) sprintf(out, "%s", id);
        return out;
}

/* Its children become its parent's. */
void checkpoint_remove(struct sandbox *s, struct checkpoint *c, struct db_batch *b) {
        for (struct checkpoint **at = &s->checkpoints; *at; at = &(*at)->next)
                if (*at == c) {
                        *at = c->next;
                        break;
                }
        for (struct checkpoint *child = s->checkpoints; child; child = child->next)
                if (strcmp(child->parent, c->id) == 0) {
                        memcpy(child->parent, c->parent, sizeof child->parent);
                        db_batch_add(b, "UPDATE checkpoints SET parent = ? WHERE id = ?", "ss", child->parent, child->id);
                }
        if (strcmp(s->head, c->id) == 0) {
                memcpy(s->head, c->parent, sizeof s->head);
                sandbox_row_update(s, b);
        }
        db_batch_add(b, "DELETE FROM checkpoints WHERE id = ?", "s", c->id);
        free(c);
}

void checkpoints_free(struct sandbox *s) {
        while (s->checkpoints) {
                struct checkpoint *c = s->checkpoints;
                s->checkpoints = c->next;
                free(c);
        }
}

static int load_row(void *arg, struct db_row *row, struct error *err) {
        struct app *app = arg;
        const char *sandbox_id = db_row_str(row, 1);
        struct sandbox *s = sandbox_id ? sandbox_find_all(app, sandbox_id) : NULL;
        struct checkpoint *c = s ? calloc(1, sizeof *c) : NULL;
        if (!s)
                return 0; /* its image belongs to nothing, and is removed */
        if (!c)
                return error_set(err, -ENOMEM, "out of memory");
        if (str_copy(c->id, sizeof c->id, db_row_str(row, 0)) < 0 ||
            str_copy(c->parent, sizeof c->parent, db_row_str(row, 2)) < 0 ||
            str_copy(c->name, sizeof c->name, db_row_str(row, 3)) < 0) {
                free(c);
                return error_set(err, -EBADMSG, "state.db: a checkpoint's row is damaged");
        }
        c->full = str_eq(db_row_str(row, 4), "full");
        c->consistent = db_row_int(row, 5) != 0;
        c->created_ms = db_row_int(row, 6);
        c->written_bytes = (uint64_t) db_row_int(row, 7);
        c->automatic = db_row_int(row, 8) != 0;
        struct checkpoint **at = &s->checkpoints;
        while (*at)
                at = &(*at)->next;
        *at = c;
        return 0;
}

int checkpoints_load(struct app *app, struct error *err) {
        return db_query(db_conn_of(app->db), load_row, app, err,
                        "SELECT id, sandbox_id, parent, name, kind, consistent, created_ms, written_bytes, automatic FROM checkpoints"
                        " ORDER BY created_ms, id",
                        "");
}

json_t *checkpoint_to_json(const struct checkpoint *c) {
        char created[RFC3339_SIZE];
        clock_rfc3339(c->created_ms, created);
        return json_pack("{s:s, s:s?, s:s, s:b, s:b, s:s?, s:s, s:I}", "id", c->id, "name", c->name[0] ? c->name : NULL, "kind",
                         c->full ? "full" : "disk", "automatic", c->automatic, "consistent", c->consistent, "parent", c->parent[0] ? c->parent : NULL,
                         "created_at", created, "written_bytes", (json_int_t) c->written_bytes);
}

void image_hold(struct app *app, struct image_hold *h, const char *id) {
        (void) str_copy(h->id, sizeof h->id, id);
        h->next = app->image_holds;
        app->image_holds = h;
}

void image_unhold(struct app *app, struct image_hold *h) {
        for (struct image_hold **at = &app->image_holds; *at; at = &(*at)->next)
                if (*at == h) {
                        *at = h->next;
                        return;
                }
}

bool image_known(struct app *app, const char *id) {
        for (const struct image_hold *h = app->image_holds; h; h = h->next)
                if (strcmp(h->id, id) == 0)
                        return true;
        const struct op *o = op_find(app, id); /* one that is being made has its operation's id */
        if (o && o->state == OP_RUNNING)
                return true;
        for (const struct sandbox *s = sandbox_oldest(app); s; s = s->next) {
                if (strcmp(s->image, id) == 0 || life_owns_image(s, id))
                        return true;
                for (const struct checkpoint *c = s->checkpoints; c; c = c->next)
                        if (strcmp(c->id, id) == 0)
                                return true;
        }
        return publish_uses(app, id);
}

void image_release(struct app *app, const char *id) {
        if (id[0] && !app->stopping && !image_known(app, id))
                (void) removal_start(app, REMOVAL_IMAGE, id, NULL, NULL);
}
