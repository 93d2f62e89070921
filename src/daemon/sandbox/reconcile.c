/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Reconciliation. Three parties may have died at any point: cspaced, cspace-rootd, the host. The
 * database says what was promised, cspace-rootd what is there:
 *
 *   there, not in the table                    removed
 *   CREATING without a flow                    goes on: adopted if its VM has its identity
 *   RUNNING or PAUSED, not there               failed, with the reason
 *   RUNNING or PAUSED, there, no connection    its warden is asked
 *   a move under way without a flow            goes on
 *   SUSPENDED or STOPPED, there                its placement is removed
 *   POOLED                                     back into the pool, or gone
 *   FAILED, there                              its disk is kept, its placement removed
 *   images that no sandbox and no flow has     removed
 *   folders of builds that have ended          removed
 *   DELETING without a flow                    goes on
 */

#include "reconcile.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "app.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "base/log.h"
#include "checkpoint.h"
#include "fork.h"
#include "map.h"
#include "peers/rootd.h"
#include "sandbox_flow.h"
#include "settle.h"
#include "store/op.h"
#include "template/template_internal.h"
#include "template/variant.h"
#include "timer.h"
#include "warm.h"

#define LIST_TIMEOUT_MS 60000
#define LIST_RETRY_MS 2000

struct pass {
        struct app *app;
        int64_t asked_ms;
};

static void ask(void *arg);

/* Splits the list into ids, in place; those that are not ids are left out. */
static int index_ids(char *text, struct map *ids) {
        char *save = NULL;
        for (char *id = strtok_r(text, "\n", &save); id; id = strtok_r(NULL, "\n", &save)) {
                int r = id_valid(id) ? map_put(ids, id, id) : 0;
                if (r < 0 && r != -EEXIST)
                        return r;
        }
        return 0;
}

static void remove_unknown(struct app *app, const struct map *there) {
        size_t pos = 0;
        const char *id;
        while ((id = map_next(there, &pos))) {
                if (sandbox_find_all(app, id) || variant_owns(app, id) || removal_active(app, REMOVAL_PLACEMENT, id))
                        continue;
                log_warn("sandbox %s is on this host but not in the database, removing it", id);
                (void) removal_start(app, REMOVAL_PLACEMENT, id, NULL, NULL);
        }
}

static void settle(struct pass *p, struct sandbox *s, bool there) {
        struct app *app = p->app;
        switch (s->state) {
        case SANDBOX_POOLED:
                if (warm_busy(app, s))
                        break;
                if (there)
                        warm_adopt(app, s);
                else
                        warm_lost(app, s, "its VM was not there any more");
                break;
        case SANDBOX_CREATING:
        case SANDBOX_RESTORING:
        case SANDBOX_STARTING:
                if (s->life)
                        break; /* falling back */
                if (!s->create && create_resume(app, s, there) < 0)
                        sandbox_fail(app, s, "out of memory");
                break;
        case SANDBOX_PAUSING:
        case SANDBOX_RESUMING:
        case SANDBOX_SUSPENDING:
        case SANDBOX_STOPPING:
        case SANDBOX_ROLLING_BACK:
                if (!s->life && life_resume(app, s) < 0)
                        log_error("sandbox %s: out of memory, it stays %s", s->id, sandbox_state_name(s->state));
                break;
        case SANDBOX_SNAPSHOT:
        case SANDBOX_SUSPENDED:
        case SANDBOX_STOPPED:
                if (there)
                        (void) removal_start(app, REMOVAL_PLACEMENT, s->id, NULL, NULL);
                else
                        publish_wake(app, s);
                break;
        case SANDBOX_RUNNING:
        case SANDBOX_PAUSED:
                if (s->life)
                        break;
                if (s->started_ms >= p->asked_ms)
                        break; /* younger than the list */
                if (!there)
                        sandbox_fail(app, s, "its VM was not there any more when cspaced looked");
                else if (!s->watch)
                        sandbox_watch(app, s, NULL);
                break;
        case SANDBOX_FAILED:
                if (there && s->started_ms && !s->image[0])
                        life_salvage(app, s);
                else if (there)
                        (void) removal_start(app, REMOVAL_PLACEMENT, s->id, NULL, NULL);
                break;
        case SANDBOX_DELETING:
                if (!s->del && delete_resume(app, s) < 0)
                        log_error("sandbox %s: out of memory, its deletion waits", s->id);
                break;
        case SANDBOX_DELETED:
        case SANDBOX_STATE_MAX_:
                break;
        }
}

/* ---- images, and what is left of builds ------------------------------------------------------- */

static void on_images(void *arg, int err, const struct error *e, struct ipc_packet *pk);

static void on_builds(void *arg, int err, const struct error *e, struct ipc_packet *pk) {
        struct app *app = arg;
        struct ipc_placement_list m;
        (void) e;
        char *text = err >= 0 && ipc_placement_list_decode(pk->body, pk->body_n, &m) >= 0 ? strndup(m.ids, m.ids_n) : NULL;
        char *save = NULL;
        for (char *id = text ? strtok_r(text, "\n", &save) : NULL; id; id = strtok_r(NULL, "\n", &save)) {
                if (!id_valid(id) || template_build_known(app, id))
                        continue;
                log_info("build %s has ended, removing its folder", id);
                (void) removal_start(app, REMOVAL_BUILD, id, NULL, NULL);
        }
        free(text);
}

/* More than a page of them there are not: each pass removes one. */
static void ask_builds(struct app *app) {
        struct ipc_images m = { .what = "builds" };
        uint8_t body[64];
        size_t n;
        if (ipc_images_encode(&m, body, sizeof body, &n) >= 0)
                (void) rootd_call(app->rootd, IPC_IMAGES, body, n, NULL, 0, LIST_TIMEOUT_MS, on_builds, app, NULL);
}

static void ask_images(struct app *app, const char *after) {
        struct ipc_images m = { 0 };
        uint8_t body[64];
        size_t n;
        (void) snprintf(m.after, sizeof m.after, "%s", after);
        if (ipc_images_encode(&m, body, sizeof body, &n) < 0 ||
            rootd_call(app->rootd, IPC_IMAGES, body, n, NULL, 0, LIST_TIMEOUT_MS, on_images, app, NULL) < 0)
                log_warn("cspace-rootd was not asked for its images");
}

static void on_images(void *arg, int err, const struct error *e, struct ipc_packet *pk) {
        struct app *app = arg;
        struct ipc_placement_list m;
        if (err < 0) {
                if (err != -ECANCELED && err != -ECONNRESET)
                        log_warn("cspace-rootd did not say which images it has: %s", e->msg);
                return;
        }
        char *text = ipc_placement_list_decode(pk->body, pk->body_n, &m) >= 0 ? strndup(m.ids, m.ids_n) : NULL;
        char *save = NULL, last[ID_SIZE] = "";
        unsigned n = 0;
        for (char *id = text ? strtok_r(text, "\n", &save) : NULL; id; id = strtok_r(NULL, "\n", &save)) {
                if (!id_valid(id))
                        continue;
                n++;
                memcpy(last, id, ID_SIZE);
                if (image_known(app, id))
                        continue;
                log_info("image %s belongs to nothing, removing it", id);
                (void) removal_start(app, REMOVAL_IMAGE, id, NULL, NULL);
        }
        free(text);
        if (n >= IPC_IMAGES_PAGE)
                ask_images(app, last);
}

static void apply(struct pass *p, char *text) {
        struct map *there = map_new();
        if (!there || index_ids(text, there) < 0) {
                log_error("reconciling: out of memory");
                map_free(there);
                return;
        }
        remove_unknown(p->app, there);
        for (struct sandbox *s = sandbox_oldest(p->app), *next; s; s = next) {
                /* A step may take s out of the table, never another one. */
                next = s->next;
                settle(p, s, map_get(there, s->id) != NULL);
        }
        map_free(there);
        forks_resume(p->app);
        settle_done(p->app->settle);
        ask_images(p->app, "");
        ask_builds(p->app);
        warm_check(p->app);
}

static void on_list(void *arg, int err, const struct error *e, struct ipc_packet *pk) {
        struct pass *p = arg;
        struct ipc_placement_list m;
        if (err == -ETIMEDOUT) {
                log_warn("cspace-rootd did not say what it has: %s, asking again", e->msg);
                if (timer_start(p->app->loop, LIST_RETRY_MS, ask, p))
                        return;
        } else if (err >= 0 && ipc_placement_list_decode(pk->body, pk->body_n, &m) >= 0) {
                char *text = strndup(m.ids, m.ids_n);
                if (text)
                        apply(p, text);
                free(text);
        } else if (err >= 0) {
                log_error("cspace-rootd's list cannot be read");
        }
        free(p); /* connection lost: the next connect starts another pass */
}

static void ask(void *arg) {
        struct pass *p = arg;
        p->asked_ms = clock_real_ms();
        if (p->app->stopping || rootd_call(p->app->rootd, IPC_LIST, NULL, 0, NULL, 0, LIST_TIMEOUT_MS, on_list, p, NULL) < 0)
                free(p);
}

void reconcile_start(struct app *app) {
        struct pass *p = calloc(1, sizeof *p);
        if (!p) {
                log_error("reconciling: out of memory");
                return;
        }
        p->app = app;
        ask(p);
}

/* ---- rows alone ---------------------------------------------------------------------------- */

/* One that was half made has no name, by which it would be found later. */
static void forget_image(struct app *app, const struct op *o) {
        (void) removal_start(app, REMOVAL_IMAGE, o->id, NULL, NULL);
}

/* Where the rows alone say how it ended: the operation's own end may be lost with a crash, or its row. */
static void settle_op(struct app *app, struct op *o, struct db_batch *b) {
        const struct sandbox *s = sandbox_find_all(app, o->sandbox_id);
        if (o->kind == OP_BUILD || o->kind == OP_PUBLISH)
                return; /* template_builds_interrupted() */
        if (o->kind == OP_DELETE) {
                if (!s)
                        op_succeed(app, o, b, NULL);
                return;
        }
        if (o->kind == OP_FORK) {
                if (!fork_running(app, o->id)) {
                        op_fail(app, o, b, API_INTERRUPTED, "cspaced was restarted; nothing was forked");
                        forget_image(app, o);
                }
                return;
        }
        if (!s || s->state == SANDBOX_DELETING)
                op_fail(app, o, b, API_CANCELED, "the sandbox was deleted meanwhile");
        else if (s->state == SANDBOX_FAILED)
                op_fail(app, o, b, o->kind == OP_CREATE ? API_CREATE_FAILED : API_CHANGE_FAILED, s->reason);
        else if (o->kind == OP_CREATE ? s->state == SANDBOX_RUNNING : life_reached(o->kind, s->state))
                op_succeed(app, o, b, NULL);
        else if (o->kind == OP_CHECKPOINT && checkpoint_find(s, o->id))
                op_succeed(app, o, b, json_pack("{s:s}", "checkpoint", o->id));
        else if (o->kind == OP_CHECKPOINT) {
                op_fail(app, o, b, API_INTERRUPTED, "cspaced was restarted; the checkpoint was not made");
                forget_image(app, o);
        }
        else if (o->kind != OP_CREATE && o != life_op_of(app, s))
                op_fail(app, o, b, API_INTERRUPTED, "cspaced was restarted, and this was undone");
}

void reconcile_rows(struct app *app) {
        struct db_batch *b = db_batch_new();
        for (struct op *o = op_newest(app); o; o = o->prev)
                if (o->state == OP_RUNNING)
                        settle_op(app, o, b);
        db_batch_add(b, "DELETE FROM events WHERE sandbox_id NOT IN (SELECT id FROM sandboxes)", "");
        (void) db_batch_submit(app->db, b, NULL, NULL);
        template_builds_interrupted(app);
        templates_collect(app);
        variants_collect(app);
}
