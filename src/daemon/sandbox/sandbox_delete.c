/* SPDX-License-Identifier: Apache-2.0 */

/*
 * The flow of a delete. The row says "deleting" before anything else counts: from then on it is
 * finished by this cspaced or by the next. Nothing is asked of guest, VM or warden.
 *
 *   streams are dropped; what is under way with it ends; beside that
 *   state DELETING, row and operation written      -> acknowledged
 *   cspace-rootd removes the placement and the image, for as long as that takes
 *   row gone, operation done
 *
 * If the first write fails (a full disk), the client is told so and there is no operation, but the
 * sandbox is removed all the same. It is shown as "deleting" until its row is gone, so that nothing
 * seems to be done that a restart would not know of.
 */

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "app.h"
#include "audit/audit_store.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/str.h"
#include "checkpoint.h"
#include "fork.h"
#include "proxy/proxy.h"
#include "sandbox_flow.h"
#include "store/idem.h"
#include "store/op.h"
#include "timer.h"

#define LAST_WRITE_RETRY_MS 2000

struct ack {
        struct ack *next;
        sandbox_durable_cb cb;
        void *arg;
};

struct del {
        struct app *app;
        struct sandbox *s; /* a reference */
        char op_id[ID_SIZE];
        char *idem;
        struct ack *acks; /* waiting for the first write */
        bool written, apart;
        bool unrecorded; /* the first write failed */
        bool writing;    /* the database owes an answer */
        struct timer *timer;
        struct del *prev, *next; /* of app->deletes */
};

static void last_write(void *arg);

static struct del *del_new(struct app *app, struct sandbox *s) {
        struct del *d = calloc(1, sizeof *d);
        if (!d)
                return NULL;
        d->app = app;
        d->s = sandbox_ref(s);
        d->next = app->deletes;
        if (d->next)
                d->next->prev = d;
        app->deletes = d;
        return d;
}

static void del_free(struct del *d) {
        *(d->prev ? &d->prev->next : &d->app->deletes) = d->next;
        if (d->next)
                d->next->prev = d->prev;
        timer_cancel(d->timer);
        while (d->acks) {
                struct ack *a = d->acks;
                d->acks = a->next;
                free(a);
        }
        if (d->s->del == d)
                d->s->del = NULL;
        sandbox_unref(d->s);
        free(d->idem);
        free(d);
}

static void take_out(struct del *d) {
        struct sandbox *s = d->s;
        (void) sandbox_move(d->app, s, SANDBOX_DELETED);
        d->app->counters.deletes++;
        s->del = NULL;
        audit_store_retire(d->app, s->id);
        fork_member_gone(d->app, s);
        sandbox_take_out(d->app, s);
}

/* Out of memory for the timer: the next cspaced finds the row and goes on. */
static void later(struct del *d, uint64_t ms, void (*fn)(void *arg)) {
        if (!d->app->stopping)
                d->timer = timer_start(d->app->loop, ms, fn, d);
        if (!d->timer)
                del_free(d);
}

static void on_last_write(void *arg, int err, const struct error *e) {
        struct del *d = arg;
        d->writing = false;
        if (err < 0 && !d->app->stopping) {
                log_error("sandbox %s is gone, but its row is not: %s", d->s->id, e->msg);
                later(d, LAST_WRITE_RETRY_MS, last_write);
                return;
        }
        if (d->unrecorded && !d->app->stopping)
                take_out(d);
        del_free(d);
}

static void last_write(void *arg) {
        struct del *d = arg;
        d->timer = NULL;
        struct db_batch *b = db_batch_new();
        struct op *o = op_find(d->app, d->op_id);
        sandbox_row_delete(d->s, b);
        if (o && o->state == OP_RUNNING)
                op_succeed(d->app, o, b, NULL);
        else if (o)
                op_write_end(o, b);
        d->writing = db_batch_submit(d->app->db, b, on_last_write, d) >= 0;
        if (!d->writing)
                later(d, LAST_WRITE_RETRY_MS, last_write);
}

static void on_removed(void *arg) {
        struct del *d = arg;
        if (!d->unrecorded)
                take_out(d);
        last_write(d);
}

/* Images that others use stay. Those of its checkpoints go beside it: once the rows are gone, nothing knows them, and
 * should this cspaced end before, the next one removes them. */
static void remove_images(void *arg) {
        struct del *d = arg;
        struct sandbox *s = d->s;
        char image[ID_SIZE];
        memcpy(image, s->image, sizeof image);
        s->image[0] = 0;
        struct checkpoint *history = STEAL(s->checkpoints);
        image_release(d->app, image);
        for (const struct checkpoint *c = history; c; c = c->next)
                image_release(d->app, c->id);
        s->checkpoints = history;
        on_removed(d);
}

static void remove_placement(void *arg) {
        struct del *d = arg;
        d->timer = NULL;
        if (removal_start(d->app, REMOVAL_PLACEMENT, d->s->id, remove_images, d) < 0)
                later(d, 1000, remove_placement);
}

/* What was under way with it has ended. Not before the row says so is anything removed: until then a restart would bring
 * the sandbox back. */
static void on_apart(void *arg) {
        struct del *d = arg;
        d->apart = true;
        if (d->written)
                remove_placement(d);
}

static void unrecorded(struct del *d) {
        d->unrecorded = true;
        op_discard(d->app, op_find(d->app, d->op_id));
        d->op_id[0] = 0;
}

static void on_written(void *arg, int err, const struct error *e) {
        struct del *d = arg;
        d->written = true;
        d->writing = false;
        idem_settle(d->app, d->idem, err >= 0);
        if (err < 0)
                unrecorded(d);
        while (d->acks) {
                struct ack *a = d->acks;
                d->acks = a->next;
                a->cb(a->arg, err, e);
                free(a);
        }
        if (d->app->stopping)
                del_free(d);
        else if (d->apart)
                remove_placement(d);
}

static int add_ack(struct del *d, sandbox_durable_cb cb, void *arg) {
        struct ack *a = calloc(1, sizeof *a);
        if (!a)
                return -ENOMEM;
        *a = (struct ack){ .next = d->acks, .cb = cb, .arg = arg };
        d->acks = a;
        return 0;
}

struct late {
        struct app *app;
        sandbox_durable_cb cb;
        void *arg;
};

static void on_late(void *arg) {
        struct late *l = arg;
        const struct error e = { .code = -ECANCELED, .msg = "cspaced is stopping" };
        bool over = l->app->stopping; /* the loop turns once more after the parts are gone */
        l->cb(l->arg, over ? e.code : 0, over ? &e : NULL);
        free(l);
}

/* Someone else's delete is under way: its acknowledgement is this one's too. */
static int join(struct app *app, struct del *d, sandbox_durable_cb durable, void *arg, struct op **ret_op,
                struct error *err) {
        *ret_op = op_find(app, d->op_id);
        if (!*ret_op)
                return error_set(err, -EBUSY, "the sandbox is being deleted");
        if (!durable)
                return 0;
        if (!d->written)
                return add_ack(d, durable, arg) < 0 ? error_set(err, -ENOMEM, "out of memory") : 0;
        struct late *l = calloc(1, sizeof *l);
        if (!l || !timer_start(app->loop, 0, on_late, l)) {
                free(l);
                return error_set(err, -ENOMEM, "out of memory");
        }
        *l = (struct late){ .app = app, .cb = durable, .arg = arg };
        return 0;
}

static void take_apart(struct del *d) {
        struct app *app = d->app;
        proxy_drop(app->proxy, d->s->id);
        sandbox_unwatch(d->s);
        if (d->s->create)
                create_cancel(d->s->create, on_apart, d);
        else if (d->s->life)
                life_cancel(d->s->life, on_apart, d);
        else
                on_apart(d);
}

int sandbox_delete(struct app *app, struct sandbox *s, const char *why, const char *owner, const char *idem,
                   sandbox_durable_cb durable, void *arg, struct op **ret_op, struct error *err) {
        fork_member_deleted(app, s); /* which may begin it */
        if (s->del)
                return join(app, s->del, durable, arg, ret_op, err);
        if (s->state == SANDBOX_DELETED)
                return error_set(err, -ENOENT, "the sandbox is gone");
        struct db_batch *b = db_batch_new();
        struct del *d = del_new(app, s);
        struct op *o = b && d ? op_new(app, b, OP_DELETE, s->id, s->template_ref, owner) : NULL;
        if (!o || (idem && !(d->idem = strdup(idem))) || (durable && add_ack(d, durable, arg) < 0)) {
                op_discard(app, o);
                db_batch_free(b);
                if (d)
                        del_free(d);
                return error_set(err, -ENOMEM, "out of memory");
        }
        sandbox_log(app, s, "info", "deleting", "%s", why);
        memcpy(d->op_id, o->id, sizeof d->op_id);
        s->del = d;
        (void) sandbox_move(app, s, SANDBOX_DELETING);
        op_progress(o, "removing", -1, -1);
        sandbox_row_update(s, b);
        idem_bind_op(app, idem, o->id, b);
        *ret_op = o;
        d->writing = true;
        take_apart(d);
        int r = db_batch_submit(app->db, b, on_written, d);
        if (r < 0) {
                d->writing = false;
                while (d->acks) {
                        struct ack *a = d->acks;
                        d->acks = a->next;
                        free(a);
                }
                idem_settle(app, idem, false);
                d->written = true;
                unrecorded(d);
                if (d->apart)
                        remove_placement(d);
                return error_errno(err, r, "the sandbox is being deleted, but this could not be stored");
        }
        return 0;
}

int delete_resume(struct app *app, struct sandbox *s) {
        struct op *o = op_find_for(app, OP_DELETE, s->id);
        struct del *d = del_new(app, s);
        if (!d)
                return -ENOMEM;
        d->written = true;
        if (o)
                memcpy(d->op_id, o->id, sizeof d->op_id);
        s->del = d;
        take_apart(d);
        return 0;
}

/* Those that wait for the database are freed by its answer (db_close() makes it). */
void deletes_abandon(struct app *app) {
        for (struct del *d = app->deletes, *next; d; d = next) {
                next = d->next;
                if (!d->writing)
                        del_free(d);
        }
}
