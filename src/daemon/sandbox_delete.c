/* SPDX-License-Identifier: Apache-2.0 */

/*
 * The flow of a delete. The row says "deleting" before anything else counts: from then on it is
 * finished by this cspaced or by the next. Nothing is asked of guest, VM or warden.
 *
 *   state DELETING, row and operation written      -> acknowledged
 *   a create under way ends; streams are dropped
 *   cspace-rootd removes the placement, for as long as that takes
 *   row gone, operation done
 *
 * If the row cannot be written (a full disk), the sandbox is removed all the same.
 */

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "app.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/str.h"
#include "idem.h"
#include "op.h"
#include "proxy.h"
#include "sandbox_flow.h"
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
        bool written, removed;
};

static void last_write(void *arg);

static void del_free(struct del *d) {
        sandbox_unref(d->s);
        free(d->idem);
        free(d);
}

static void on_last_write(void *arg, int err, const struct error *e) {
        struct del *d = arg;
        if (err >= 0 || d->app->stopping) {
                del_free(d);
                return;
        }
        log_error("sandbox %s is gone, but its row is not: %s", d->s->id, e->msg);
        if (!timer_start(d->app->loop, LAST_WRITE_RETRY_MS, last_write, d))
                del_free(d);
}

static void last_write(void *arg) {
        struct del *d = arg;
        struct db_batch *b = db_batch_new();
        struct op *o = op_find(d->app, d->op_id);
        sandbox_row_delete(d->s, b);
        if (o && o->state == OP_RUNNING)
                op_succeed(d->app, o, b, NULL);
        else if (o)
                op_write_end(o, b);
        if (db_batch_submit(d->app->db, b, on_last_write, d) < 0 &&
            (d->app->stopping || !timer_start(d->app->loop, LAST_WRITE_RETRY_MS, last_write, d)))
                del_free(d);
}

static void step(struct del *d) {
        if (!d->written || !d->removed)
                return;
        struct sandbox *s = d->s;
        (void) sandbox_move(d->app, s, SANDBOX_DELETED);
        d->app->counters.deletes++;
        s->del = NULL;
        sandbox_take_out(d->app, s);
        last_write(d);
}

static void on_removed(void *arg) {
        struct del *d = arg;
        d->removed = true;
        step(d);
}

static void remove_placement(void *arg) {
        struct del *d = arg;
        if (removal_start(d->app, REMOVAL_PLACEMENT, d->s->id, on_removed, d) < 0 && !timer_start(d->app->loop, 1000, remove_placement, d))
                log_error("sandbox %s: out of memory, it stays until cspaced is restarted", d->s->id);
}

static void on_written(void *arg, int err, const struct error *e) {
        struct del *d = arg;
        d->written = true;
        idem_settle(d->app, d->idem, err >= 0);
        while (d->acks) {
                struct ack *a = d->acks;
                d->acks = a->next;
                a->cb(a->arg, err, e);
                free(a);
        }
        if (d->app->stopping)
                del_free(d);
        else
                step(d);
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
        l->cb(l->arg, 0, NULL);
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
                create_cancel(d->s->create, remove_placement, d);
        else
                remove_placement(d);
}

int sandbox_delete(struct app *app, struct sandbox *s, const char *why, const char *owner, const char *idem,
                   sandbox_durable_cb durable, void *arg, struct op **ret_op, struct error *err) {
        if (s->del)
                return join(app, s->del, durable, arg, ret_op, err);
        if (s->state == SANDBOX_DELETED)
                return error_set(err, -ENOENT, "the sandbox is gone");
        struct db_batch *b = db_batch_new();
        struct del *d = calloc(1, sizeof *d);
        struct op *o = b && d ? op_new(app, b, OP_DELETE, s->id, s->template_ref, owner) : NULL;
        if (!o || (idem && !(d->idem = strdup(idem))) || (durable && add_ack(d, durable, arg) < 0)) {
                op_discard(app, o);
                db_batch_free(b);
                if (d)
                        free(d->idem);
                free(d);
                return error_set(err, -ENOMEM, "out of memory");
        }
        sandbox_log(app, s, "info", "deleting", "%s", why);
        d->app = app;
        d->s = sandbox_ref(s);
        memcpy(d->op_id, o->id, sizeof d->op_id);
        s->del = d;
        (void) sandbox_move(app, s, SANDBOX_DELETING);
        op_progress(o, "removing", -1, -1);
        sandbox_row_update(s, b);
        idem_bind_op(app, idem, o->id, b);
        *ret_op = o;
        take_apart(d);
        int r = db_batch_submit(app->db, b, on_written, d);
        if (r < 0) {
                while (d->acks) {
                        struct ack *a = d->acks;
                        d->acks = a->next;
                        free(a);
                }
                idem_settle(app, idem, false);
                d->written = true;
                step(d);
                return error_errno(err, r, "the sandbox is being deleted, but this could not be stored");
        }
        return 0;
}

int delete_resume(struct app *app, struct sandbox *s) {
        struct op *o = op_find_for(app, OP_DELETE, s->id);
        struct del *d = calloc(1, sizeof *d);
        if (!d)
                return -ENOMEM;
        d->app = app;
        d->s = sandbox_ref(s);
        d->written = true;
        if (o)
                memcpy(d->op_id, o->id, sizeof d->op_id);
        s->del = d;
        take_apart(d);
        return 0;
}

/* One that still waits for its first write is freed by that write's callback (db_close() makes it). */
void delete_abandon(struct del *d) {
        d->s->del = NULL;
        if (d->written)
                del_free(d);
}
