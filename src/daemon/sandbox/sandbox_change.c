/* SPDX-License-Identifier: Apache-2.0 */

/*
 * How a change of a sandbox begins: whether it may, and its row and operation in one transaction. Its steps come then
 * (sandbox_life.c).
 */

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "app.h"
#include "base/clock.h"
#include "base/str.h"
#include "checkpoint.h"
#include "create.h"
#include "fork.h"
#include "life_internal.h"
#include "peers/rootd.h"
#include "sandbox_flow.h"
#include "settle.h"
#include "store/idem.h"
#include "store/op.h"

const struct life_verb life_verbs[SANDBOX_VERB_MAX_] = {
        [SANDBOX_PAUSE] = { "pause", OP_PAUSE, SANDBOX_BIT(SANDBOX_RUNNING), SANDBOX_PAUSING, SANDBOX_PAUSED },
        [SANDBOX_RESUME] = { "resume", OP_RESUME, SANDBOX_BIT(SANDBOX_PAUSED), SANDBOX_RESUMING, SANDBOX_RUNNING },
        [SANDBOX_SUSPEND] = { "suspend", OP_SUSPEND, SANDBOX_HAS_VM,
                              SANDBOX_SUSPENDING, SANDBOX_SUSPENDED },
        [SANDBOX_RESTORE] = { "restore", OP_RESTORE, SANDBOX_BIT(SANDBOX_SUSPENDED), SANDBOX_RESTORING,
                              SANDBOX_RUNNING },
        [SANDBOX_STOP] = { "stop", OP_STOP,
                           SANDBOX_HAS_VM | SANDBOX_BIT(SANDBOX_SUSPENDED),
                           SANDBOX_STOPPING, SANDBOX_STOPPED },
        [SANDBOX_START] = { "start", OP_START, SANDBOX_BIT(SANDBOX_STOPPED) | SANDBOX_BIT(SANDBOX_FAILED),
                            SANDBOX_STARTING, SANDBOX_RUNNING },
        [SANDBOX_CHECKPOINT] = { "be checkpointed", OP_CHECKPOINT, SANDBOX_HAS_VM | SANDBOX_AT_REST, SANDBOX_STATE_MAX_, SANDBOX_STATE_MAX_ },
        [SANDBOX_FORK] = { "be forked", OP_FORK, SANDBOX_HAS_VM, SANDBOX_STATE_MAX_, SANDBOX_STATE_MAX_ },
        [SANDBOX_ROLLBACK] = { "roll back", OP_ROLLBACK, SANDBOX_HAS_VM | SANDBOX_AT_REST, SANDBOX_ROLLING_BACK, SANDBOX_RUNNING },
};

struct begin {
        struct app *app;
        struct sandbox *s; /* a reference */
        enum sandbox_verb verb;
        enum sandbox_state from;
        char op_id[ID_SIZE];
        char image[ID_SIZE], head[ID_SIZE]; /* of before a rollback */
        struct image_hold hold;             /* of that image */
        char *idem;
        sandbox_durable_cb cb;
        void *arg;
};

static void begin_free(struct begin *g) {
        if (!g)
                return;
        image_unhold(g->app, &g->hold);
        sandbox_unref(g->s);
        free(g->idem);
        free(g);
}

static void go_on(struct begin *g) {
        struct sandbox *s = g->s;
        struct life *l = s->life;
        if (l && l->canceled) {
                l->asked = false;
                life_end_canceled(l);
        } else if (s->state == SANDBOX_RESTORING || s->state == SANDBOX_STARTING) {
                if (l)
                        life_free(l);
                if (create_start(g->app, s, g->op_id, clock_mono_us(), NULL) < 0)
                        life_fall_back(g->app, s, g->op_id, API_INTERNAL, "out of memory");
        } else if (l) {
                l->asked = false;
                if (l->lost)
                        life_end_lost(l, l->why);
                else
                        life_first_step(l);
        }
}

static void on_durable(void *arg, int err, const struct error *e) {
        struct begin *g = arg;
        struct sandbox *s = g->s;
        struct life *l = s->life;
        idem_settle(g->app, g->idem, err >= 0);
        if (g->app->stopping) {
                if (l)
                        life_free(l);
        } else if (err < 0) {
                op_discard(g->app, op_find(g->app, g->op_id));
                if (l && l->canceled) {
                        l->op_id[0] = 0;
                        life_end_canceled(l);
                } else if (l) {
                        s->state = g->from; /* as if nobody had asked */
                        memcpy(s->image, g->image, sizeof s->image);
                        memcpy(s->head, g->head, sizeof s->head);
                        bool lost = l->lost;
                        life_free(l);
                        if (lost)
                                sandbox_fail(g->app, s, "the VM ended");
                }
        } else {
                char name[CHECKPOINT_CALLED_SIZE];
                if (g->verb == SANDBOX_ROLLBACK && !(l && l->canceled))
                        sandbox_log(g->app, s, "info", "rollback", "to checkpoint %s", checkpoint_called(s, s->head, name));
                go_on(g);
                image_unhold(g->app, &g->hold);
                if (g->verb == SANDBOX_ROLLBACK)
                        image_release(g->app, g->image);
        }
        if (g->cb)
                g->cb(g->arg, err, e);
        begin_free(g);
}

static enum sandbox_verb wake_verb(const struct sandbox *s) {
        return s->state == SANDBOX_PAUSED ? SANDBOX_RESUME : s->state == SANDBOX_SUSPENDED ? SANDBOX_RESTORE : SANDBOX_START;
}

static int judge(struct app *app, const struct sandbox *s, const struct life_verb *v, const char *name, struct error *err) {
        if (s->life && life_copies(s->life))
                return error_set(err, -EBUSY, "sandbox \"%s\" is %s and being %s: it cannot %s now", s->id, sandbox_state_name(s->state),
                                 s->life->verb == SANDBOX_FORK ? "forked" : "checkpointed", name);
        if (s->life && s->life->verb == SALVAGE)
                return error_set(err, -EBUSY, "sandbox \"%s\" is failed and its disk is being stored: it can %s in a moment, not yet", s->id,
                                 name);
        if (s->fork)
                return error_set(err, -EBUSY, "sandbox \"%s\" is %s and its fork has not ended: it cannot %s now",
                                 s->id, sandbox_state_name(s->state), name);
        if (!s->life && !s->create && !s->del && !(v->from & SANDBOX_BIT(s->state)) && s->state == v->to)
                return error_set(err, -EBUSY, "sandbox \"%s\" is %s already", s->id, sandbox_state_name(s->state));
        if (s->life || s->create || s->del || !(v->from & SANDBOX_BIT(s->state)))
                return error_set(err, -EBUSY, "sandbox \"%s\" is %s: it cannot %s now", s->id, sandbox_state_name(s->state), name);
        bool at_rest = SANDBOX_BIT(s->state) & SANDBOX_AT_REST;
        if (s->state == SANDBOX_FAILED && s->started_ms && !s->image[0] && !rootd_connected(app->rootd))
                return error_set(err, -ENOTCONN, "cspace-rootd is not reachable, and the disk of sandbox \"%s\" is stored when it is: it"
                                 " can %s then", s->id, name);
        if (v->kind != OP_ROLLBACK && at_rest && !s->image[0])
                return error_set(err, -EBUSY, "the sandbox is %s and has nothing that it could be started from",
                                 sandbox_state_name(s->state));
        if (v->to == SANDBOX_RUNNING && at_rest &&
            sandbox_count(app, SANDBOX_ALIVE) >= app->conf.max_sandboxes)
                return error_set(err, -EAGAIN, "this host has its %u sandboxes (configuration: [sandbox] max)",
                                 app->conf.max_sandboxes);
        return 0;
}

int life_check(struct app *app, const struct sandbox *s, const struct life_verb *v, const char *name, struct error *err) {
        struct error e = ERROR_INIT;
        int r = judge(app, s, v, name, &e);
        if (r == -EBUSY && !settle_known(app->settle)) /* what the row says may not be true any more */
                return error_set(err, -ENOTCONN, "cspace-rootd is not reachable, and what became of sandbox \"%s\" is not known before it is:"
                                 " it cannot %s yet", s->id, name);
        if (r < 0 && err)
                *err = e;
        return r;
}

static int new_checkpoint(struct sandbox *s, const struct sandbox_change_params *p, const char *id, struct checkpoint **ret,
                          struct error *err) {
        unsigned n = 0;
        for (const struct checkpoint *c = s->checkpoints; c; c = c->next)
                n++;
        if (n >= CHECKPOINTS_MAX)
                return error_set(err, -EAGAIN, "the sandbox has %u checkpoints: remove some first", n);
        if (p->name && checkpoint_find(s, p->name))
                return error_set(err, -EEXIST, "the sandbox has a checkpoint \"%s\"", p->name);
        if (p->full && !(SANDBOX_BIT(s->state) & SANDBOX_HAS_VM) && s->state != SANDBOX_SUSPENDED)
                return error_set(err, -EBUSY, "the sandbox is %s: it has no memory to keep", sandbox_state_name(s->state));
        struct checkpoint *c = calloc(1, sizeof *c);
        if (!c)
                return error_set(err, -ENOMEM, "out of memory");
        (void) str_copy(c->id, sizeof c->id, id);
        (void) str_copy(c->parent, sizeof c->parent, s->head);
        (void) str_copy(c->name, sizeof c->name, p->name ? p->name : "");
        c->full = p->full;
        c->automatic = p->automatic;
        c->created_ms = clock_real_ms();
        *ret = c;
        return 0;
}

static int new_fork(const struct sandbox_change_params *p, struct life *l, struct error *err) {
        l->checkpoint = calloc(1, sizeof *l->checkpoint);
        if (!l->checkpoint)
                return error_set(err, -ENOMEM, "out of memory");
        l->checkpoint->full = true;
        l->fork = p->fork;
        return 0;
}

static void undo_begin(struct begin *g, struct op *o, struct life *l) {
        op_discard(g->app, o);
        if (l) {
                g->s->state = g->from;
                memcpy(g->s->image, g->image, sizeof g->image);
                memcpy(g->s->head, g->head, sizeof g->head);
                l->fork = NULL; /* still the caller's */
                life_free(l);
        }
        begin_free(g);
}

int sandbox_change_with(struct app *app, struct sandbox *s, enum sandbox_verb verb, const struct sandbox_change_params *p,
                        sandbox_durable_cb durable, void *arg, struct op **ret_op, struct error *err) {
        bool wake = verb == SANDBOX_WAKE;
        if (wake)
                verb = wake_verb(s);
        const struct life_verb *v = &life_verbs[verb];
        int r = life_check(app, s, v, wake ? "wake" : v->name, err);
        if (r < 0)
                return r;
        s->publish_wake = 0; /* somebody wants something else */
        struct db_batch *b = db_batch_new();
        struct begin *g = calloc(1, sizeof *g);
        if (!b || !g) {
                db_batch_free(b);
                free(g);
                return error_set(err, -ENOMEM, "out of memory");
        }
        *g = (struct begin){ .app = app, .s = sandbox_ref(s), .verb = verb, .from = s->state, .cb = durable, .arg = arg };
        memcpy(g->image, s->image, sizeof g->image);
        memcpy(g->head, s->head, sizeof g->head);
        struct op *o = op_new(app, b, wake ? OP_WAKE : v->kind, s->id, s->template_ref, p->owner);
        struct life *l = o ? life_new(app, s, verb, o->id) : NULL;
        r = !l || (p->idem && !(g->idem = strdup(p->idem))) ? error_set(err, -ENOMEM, "out of memory") : 0;
        if (r >= 0 && verb == SANDBOX_CHECKPOINT)
                r = new_checkpoint(s, p, o->id, &l->checkpoint, err);
        if (r >= 0 && verb == SANDBOX_FORK)
                r = new_fork(p, l, err);
        if (r < 0) {
                db_batch_free(b);
                undo_begin(g, o, l);
                return r;
        }
        memcpy(g->op_id, o->id, sizeof g->op_id);
        l->asked = true;
        if (verb == SANDBOX_ROLLBACK) {
                image_hold(app, &g->hold, g->image);
                memcpy(s->image, p->checkpoint->id, sizeof s->image);
                memcpy(s->head, p->checkpoint->id, sizeof s->head);
        }
        if (v->via != SANDBOX_STATE_MAX_)
                (void) sandbox_move(app, s, v->via);
        op_progress(o, sandbox_state_name(s->state), -1, -1);
        sandbox_row_update(s, b);
        idem_bind_op(app, p->idem, o->id, b);
        r = db_batch_submit(app->db, b, on_durable, g);
        if (r < 0) {
                idem_settle(app, p->idem, false);
                undo_begin(g, o, l);
                return error_errno(err, r, "could not store the change");
        }
        *ret_op = o;
        return 0;
}

int sandbox_change(struct app *app, struct sandbox *s, enum sandbox_verb verb, const char *owner, const char *idem,
                   sandbox_durable_cb durable, void *arg, struct op **ret_op, struct error *err) {
        const struct sandbox_change_params p = { .owner = owner, .idem = idem };
        return sandbox_change_with(app, s, verb, &p, durable, arg, ret_op, err);
}

int life_fork_check(struct app *app, const struct sandbox *s, bool checkpoint, struct error *err) {
        static const struct life_verb v = { "be forked", OP_FORK, SANDBOX_AT_REST | SANDBOX_BIT(SANDBOX_SNAPSHOT),
                                       SANDBOX_STATE_MAX_, SANDBOX_STATE_MAX_ };
        if (!checkpoint)
                return life_check(app, s, &v, v.name, err);
        return s->state != SANDBOX_DELETING && !s->del ? 0 : error_set(err, -EBUSY, "the sandbox is being deleted");
}
