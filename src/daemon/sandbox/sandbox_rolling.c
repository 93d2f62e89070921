/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Checkpoints that a sandbox's rules ask for: of its disk, every so often while it runs, the newest of them kept.
 *
 * Whether there is anything to keep is the host's word: cspace-rootd tells when the file of the disk was last written
 * to. That time is noted once a checkpoint is taken and the guest writes again; when it is the same at the next
 * turn, and nobody has used the sandbox meanwhile, no checkpoint is taken. What the guest still holds back in its
 * memory is written within half a minute, and counts at the turn after that.
 *
 * Time counts while there is something to keep: one that was woken gets its next checkpoint when it is due, but not in its
 * first minute.
 *
 * Nothing of a turn that is lost (a restart, a guest that hangs, a full disk) is made up for: the next one comes.
 */

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "app.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/str.h"
#include "checkpoint.h"
#include "peers/rootd.h"
#include "sandbox_flow.h"
#include "store/op.h"

#define USAGE_TIMEOUT_MS 10000
#define BUSY_AGAIN_MS 1000
#define AFTER_WAKE_MS 60000

static int64_t every_ms(const struct sandbox *s) {
        return (int64_t) s->rules.checkpoint_every_s * 1000;
}

static const struct checkpoint *newest(const struct sandbox *s) {
        const struct checkpoint *found = NULL;
        for (const struct checkpoint *c = s->checkpoints; c; c = c->next)
                if (c->automatic)
                        found = c;
        return found;
}

/* From the newest one's time, whoever was cspaced then. */
static void begin(struct sandbox *s) {
        const struct checkpoint *c = newest(s);
        int64_t now = clock_real_ms();
        s->rolled_ms = c && c->created_ms < now ? c->created_ms : now; /* that may be of a clock that was ahead */
}

int64_t rolling_due_ms(struct sandbox *s) {
        if (!s->rules.checkpoint_every_s || s->state != SANDBOX_RUNNING || s->del || s->rolling)
                return 0;
        if (!s->rolled_ms)
                begin(s);
        return s->rolled_ms + every_ms(s);
}

void rolling_woken(struct sandbox *s) {
        int64_t now = clock_real_ms(), first = now + (every_ms(s) < AFTER_WAKE_MS ? every_ms(s) : AFTER_WAKE_MS);
        s->rolled_ns = 0;
        if (s->rolled_ms && s->rolled_ms + every_ms(s) < first)
                s->rolled_ms = first - every_ms(s);
}

/* ---- asking cspace-rootd --------------------------------------------------------------------- */

struct asking {
        struct app *app;
        struct sandbox *s; /* a reference */
        bool after;        /* one was taken: the time is noted, else compared */
};

static void take(struct app *app, struct sandbox *s) {
        const struct sandbox_change_params p = { .owner = "", .automatic = true };
        struct error e = ERROR_INIT;
        struct op *o;
        int r = sandbox_change_with(app, s, SANDBOX_CHECKPOINT, &p, NULL, NULL, &o, &e);
        if (r == -EBUSY)
                s->rolled_ms = clock_real_ms() - every_ms(s) + BUSY_AGAIN_MS;
        else if (r < 0)
                sandbox_log(app, s, "warn", "checkpoint", "none was taken by itself: %s", e.msg);
}

static void on_usage(void *arg, int err, const struct error *e, struct ipc_packet *p) {
        struct asking *a = arg;
        struct sandbox *s = a->s;
        struct ipc_usage_info m = { 0 };
        (void) e;
        s->rolling = false;
        bool known = err >= 0 && ipc_usage_info_decode(p->body, p->body_n, &m) >= 0 && m.written_ns > 0;
        if (a->after) {
                s->rolled_ns = known ? m.written_ns : 0;
        } else if (!a->app->stopping && s->state == SANDBOX_RUNNING && s->rules.checkpoint_every_s) {
                const struct checkpoint *c = newest(s);
                bool same = known && s->rolled_ns == m.written_ns && c && s->active_ms <= c->created_ms;
                if (!same)
                        take(a->app, s);
        }
        if (!a->app->stopping)
                expiry_changed(a->app);
        sandbox_unref(s);
        free(a);
}

static void ask(struct app *app, struct sandbox *s, bool after) {
        struct ipc_usage m = { 0 };
        uint8_t body[64];
        size_t n;
        struct asking *a = calloc(1, sizeof *a);
        (void) str_copy(m.id, sizeof m.id, s->id);
        if (!a)
                return;
        *a = (struct asking){ .app = app, .s = sandbox_ref(s), .after = after };
        if (ipc_usage_encode(&m, body, sizeof body, &n) < 0 ||
            rootd_call(app->rootd, IPC_USAGE, body, n, NULL, 0, USAGE_TIMEOUT_MS, on_usage, a, NULL) < 0) {
                sandbox_unref(s);
                free(a);
                return;
        }
        s->rolling = true;
}

/* ---- taking and removing them ------------------------------------------------------------------ */

void rolling_take(struct app *app, struct sandbox *s) {
        s->rolled_ms = clock_real_ms();
        ask(app, s, false);
}

void rolling_taken(struct app *app, struct sandbox *s) {
        rolling_prune(app, s);
        s->rolled_ns = 0;
        if (s->state == SANDBOX_RUNNING && !s->rolling)
                ask(app, s, true);
        expiry_changed(app);
}

struct pruning {
        struct app *app;
        size_t n;
        struct image_hold images[];
};

static void on_pruned(void *arg, int err, const struct error *e) {
        struct pruning *x = arg;
        if (err < 0)
                log_warn("checkpoints stay in the history for now: %s", e->msg);
        for (size_t i = 0; i < x->n; i++)
                image_unhold(x->app, &x->images[i]);
        for (size_t i = 0; i < x->n && err >= 0; i++)
                image_release(x->app, x->images[i].id);
        free(x);
}

static size_t surplus(const struct sandbox *s) {
        size_t n = 0;
        for (const struct checkpoint *c = s->checkpoints; c; c = c->next)
                n += c->automatic;
        return n > s->rules.checkpoint_keep ? n - (size_t) s->rules.checkpoint_keep : 0;
}

/* The oldest that has no name (all its own then) and that the sandbox does not go on from; its children become its parent's. */
static struct checkpoint *oldest(struct sandbox *s) {
        for (struct checkpoint *c = s->checkpoints; c; c = c->next)
                if (c->automatic && !c->name[0] && strcmp(c->id, s->head) != 0 && strcmp(c->id, s->image) != 0)
                        return c;
        return NULL;
}

void rolling_prune(struct app *app, struct sandbox *s) {
        size_t n = surplus(s);
        struct checkpoint *c;
        if (n == 0 || s->life || s->create || s->del)
                return; /* or the next one finds it so */
        struct pruning *x = malloc(sizeof *x + n * sizeof x->images[0]);
        struct db_batch *b = x ? db_batch_new() : NULL;
        if (!b) {
                free(x);
                return;
        }
        *x = (struct pruning){ .app = app };
        for (; x->n < n && (c = oldest(s)); x->n++) {
                image_hold(app, &x->images[x->n], c->id);
                checkpoint_remove(s, c, b);
        }
        struct error e = ERROR_INIT;
        int r = db_batch_submit(app->db, b, on_pruned, x);
        if (r < 0) /* the rows are there at the next start, and are found to be too many */
                on_pruned(x, error_errno(&e, r, "could not store the change"), &e);
}
