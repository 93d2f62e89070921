/* SPDX-License-Identifier: Apache-2.0 */

/*
 * The flow of a fork:
 *
 *   of a VM        its image is taken as that of a full checkpoint (sandbox_life.c), under the operation's id; it goes on
 *   of anything else the image is there: what a sandbox without a VM goes on from, or a checkpoint's
 *   ENTER          rows of all copies, RESTORING or STARTING from that image, and of the fork itself, in one transaction
 *   MAKE           each copy is restored or started (sandbox_create.c), FORK_AT_ONCE at a time
 *   end            the operation has succeeded when all of them run; the row of the fork goes in the same transaction
 *
 * The copies map the one image's memory privately and have reflinks of its disk. It is theirs like anybody's
 * (image_release()), and goes when the last of them runs.
 *
 * All or nothing: when one cannot be made, or is deleted before the end, all are deleted, and the operation fails when
 * nothing is left of them. A restart of cspaced before ENTER is durable finds an operation without a fork: it has failed,
 * and the image belongs to nothing. After it the copies go on like anything that is being restored; if not all of them
 * are there any more, it was being undone, and that goes on.
 *
 * The image of a VM is not made durable for its copies, which would not outlive the host's power themselves: its row names the boot
 * that it was made in, and in another one the fork is undone.
 */
#include "fork.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "app.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "base/fd.h"
#include "base/json.h"
#include "base/log.h"
#include "base/str.h"
#include "checkpoint.h"
#include "create.h"
#include "egress/egress.h"
#include "proxy/proxy.h"
#include "sandbox_flow.h"
#include "store/idem.h"
#include "store/op.h"
#include "timer.h"

#define RETRY_MS 1000
#define BOOT_ID_SIZE 37 /* a UUID's text */

/*
 * waiting -> started -> made, or gone from any of them
 */
struct member {
        struct sandbox *s; /* a reference; NULL: gone */
        bool started, made;
};

struct fork {
        struct app *app;
        char op_id[ID_SIZE];
        struct sandbox *of; /* a reference, until the copies are entered */
        struct member *members;
        unsigned n;
        bool entered, undoing, broken;
        bool snapshot;
        enum api_code code; /* undoing: why */
        char why[ERROR_MSG_MAX];
        struct timer *retry;
        json_t *image; /* what taking it took, for the result; NULL */
        struct fork *prev, *next; /* of app->forks, once entered */
};

static void undo(struct fork *f, enum api_code code, const char *why);

/* ---- life of the struct ------------------------------------------------------------------------ */

static struct fork *fork_new(struct app *app, unsigned n) {
        struct fork *f = calloc(1, sizeof *f);
        if (!f)
                return NULL;
        f->app = app;
        f->members = calloc(n, sizeof *f->members);
        if (!f->members) {
                free(f);
                return NULL;
        }
        f->n = n;
        return f;
}

static void link_in(struct fork *f) {
        f->entered = true;
        f->next = f->app->forks;
        if (f->next)
                f->next->prev = f;
        f->app->forks = f;
}

static void unlink_from(struct fork *f) {
        if (!f->entered)
                return;
        *(f->prev ? &f->prev->next : &f->app->forks) = f->next;
        if (f->next)
                f->next->prev = f->prev;
        f->prev = f->next = NULL;
        f->entered = false;
}

static void fork_free(struct fork *f) {
        bool entered = f->entered;
        unlink_from(f);
        timer_cancel(f->retry);
        for (unsigned i = 0; i < f->n; i++) {
                struct sandbox *s = f->members[i].s;
                if (s)
                        s->fork = NULL;
                if (entered)
                        sandbox_unref(s);
                else
                        sandbox_copy_free(f->app, s);
        }
        sandbox_unref(f->of);
        json_decref(f->image);
        free(f->members);
        free(f);
}

/* Out of the table again: nobody has heard of them. */
static void take_back(struct fork *f, unsigned n) {
        for (unsigned i = 0; i < n; i++) {
                struct sandbox *s = f->members[i].s;
                if (!s)
                        continue;
                s->fork = NULL;
                s->state = SANDBOX_DELETED;
                sandbox_take_out(f->app, s);
        }
}

void fork_drop(struct fork *f) {
        if (!f || (f->entered && f->app->stopping)) /* forks_free() */
                return;
        if (f->entered)
                take_back(f, f->n);
        fork_free(f);
}

void forks_free(struct app *app) {
        while (app->forks)
                fork_free(app->forks);
}

bool fork_running(struct app *app, const char *op_id) {
        for (const struct fork *f = app->forks; f; f = f->next)
                if (strcmp(f->op_id, op_id) == 0)
                        return true;
        return false;
}

static struct member *member_of(struct sandbox *s) {
        for (unsigned i = 0; s->fork && i < s->fork->n; i++)
                if (s->fork->members[i].s == s)
                        return &s->fork->members[i];
        return NULL;
}

/* ---- ends -------------------------------------------------------------------------------------- */

struct ended {
        struct app *app;
        char op_id[ID_SIZE];
};

static void on_ended(void *arg, int err, const struct error *e) {
        struct ended *x = arg;
        if (err < 0)
                log_error("the end of fork %s could not be stored: %s", x->op_id, e->msg);
        else
                image_release(x->app, x->op_id);
        free(x);
}

/* b has the operation's end. */
static void end(struct fork *f, struct db_batch *b) {
        struct ended *x = calloc(1, sizeof *x);
        db_batch_add(b, "DELETE FROM forks WHERE op_id = ?", "s", f->op_id);
        if (x) {
                x->app = f->app;
                memcpy(x->op_id, f->op_id, sizeof x->op_id);
        }
        if (db_batch_submit(f->app->db, b, x ? on_ended : NULL, x) < 0)
                free(x); /* the next reconciliation finds what is left */
        fork_free(f);
}

static json_t *result_of(const struct fork *f) {
        json_t *ids = json_array(), *all = f->image ? json_incref(f->image) : json_object();
        if (f->snapshot)
                (void) json_object_set_new(all, "snapshot", json_string(f->members[0].s->id));
        for (unsigned i = 0; i < f->n; i++)
                (void) json_array_append_new(ids, json_string(f->members[i].s->id));
        if (!f->snapshot)
                (void) json_object_set(all, "sandboxes", ids);
        json_decref(ids);
        return all;
}

static void end_good(struct fork *f) {
        struct db_batch *b = db_batch_new();
        op_succeed(f->app, op_find(f->app, f->op_id), b, result_of(f));
        end(f, b);
}

static void end_bad(struct fork *f) {
        struct db_batch *b = db_batch_new();
        op_fail(f->app, op_find(f->app, f->op_id), b, f->code, f->why);
        end(f, b);
}

/* ---- undoing ----------------------------------------------------------------------------------- */

static void delete_all(void *arg) {
        struct fork *f = arg;
        bool again = false;
        f->retry = NULL;
        for (unsigned i = 0; i < f->n; i++) {
                struct sandbox *s = f->members[i].s;
                struct error e = ERROR_INIT;
                struct op *o;
                if (!s || s->del || s->state == SANDBOX_DELETING)
                        continue;
                if (sandbox_delete(f->app, s, "the fork that it was made by failed", "", NULL, NULL, NULL, &o, &e) < 0 && !s->del) {
                        log_error("sandbox %s of a fork that failed: %s", s->id, e.msg);
                        again = true;
                }
        }
        if (again)
                f->retry = timer_start(f->app->loop, RETRY_MS, delete_all, f);
}

/* f is gone afterwards if nothing was left to delete. */
static void undo(struct fork *f, enum api_code code, const char *why) {
        if (f->undoing)
                return;
        f->undoing = true;
        f->code = code;
        (void) snprintf(f->why, sizeof f->why, "%s", why);
        struct op *o = op_find(f->app, f->op_id);
        if (o)
                op_progress(o, "undoing", -1, -1);
        bool any = false;
        for (unsigned i = 0; i < f->n; i++)
                any = any || f->members[i].s;
        if (any)
                delete_all(f);
        else
                end_bad(f);
}

void fork_member_failed(struct app *app, struct sandbox *s, enum api_code code, const char *why) {
        char text[ERROR_MSG_MAX];
        (void) app;
        if (!s->fork)
                return;
        (void) snprintf(text, sizeof text, "copy %s could not be made: %s", s->name[0] ? s->name : s->id, why);
        undo(s->fork, code, text);
}

/* s goes already; the others go with it. */
void fork_member_deleted(struct app *app, struct sandbox *s) {
        char text[ERROR_MSG_MAX];
        struct fork *f = s->fork;
        (void) app;
        if (!f || f->undoing)
                return;
        (void) snprintf(text, sizeof text, "copy %s was deleted before all of them ran", s->name[0] ? s->name : s->id);
        undo(f, API_CANCELED, text);
}

void fork_member_gone(struct app *app, struct sandbox *s) {
        struct member *m = member_of(s);
        struct fork *f = s->fork;
        (void) app;
        if (!m)
                return;
        s->fork = NULL;
        m->s = NULL;
        sandbox_unref(s);
        for (unsigned i = 0; i < f->n; i++)
                if (f->members[i].s)
                        return;
        end_bad(f);
}

/* ---- making ------------------------------------------------------------------------------------ */

static void progress(struct fork *f, unsigned made) {
        struct op *o = op_find(f->app, f->op_id);
        char step[OP_STEP_MAX];
        (void) snprintf(step, sizeof step, "%u of %u run", made, f->n);
        if (o)
                op_progress(o, step, (int) (20 + 80 * made / f->n), -1);
}

/* Starts as many as may be on their way. */
static void pump(struct fork *f) {
        unsigned busy = 0, made = 0;
        for (unsigned i = 0; i < f->n; i++) {
                f->members[i].made = f->members[i].made || f->snapshot; /* nothing is to be made */
                made += f->members[i].made;
                busy += f->members[i].started && !f->members[i].made;
        }
        if (made == f->n) {
                end_good(f);
                return;
        }
        progress(f, made);
        for (unsigned i = 0; i < f->n && busy < FORK_AT_ONCE && !f->undoing; i++) {
                struct member *m = &f->members[i];
                if (m->started)
                        continue;
                m->started = true;
                busy++;
                if (!m->s->create && create_start(f->app, m->s, "", clock_mono_us(), NULL) < 0)
                        fork_member_failed(f->app, m->s, API_INTERNAL, "out of memory");
        }
}

void fork_member_made(struct app *app, struct sandbox *s) {
        struct member *m = member_of(s);
        (void) app;
        if (!m)
                return;
        m->started = m->made = true;
        if (!s->fork->undoing)
                pump(s->fork);
}

void fork_go(struct fork *f, const struct ipc_image_info *info) {
        if (info)
                f->image = json_pack("{s:I, s:I, s:I}", "private_bytes", (json_int_t) info->private_bytes, "written_bytes",
                                     (json_int_t) info->written_bytes, "image_us", (json_int_t) info->took_us);
        expiry_changed(f->app);
        pump(f);
}

/* ---- entering ---------------------------------------------------------------------------------- */

bool fork_keeps(const struct fork *f) {
        return f->snapshot;
}

static int host_boot(char out[BOOT_ID_SIZE]) {
        _cleanup_fd_ int fd = open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC);
        ssize_t n = fd < 0 ? -1 : read(fd, out, BOOT_ID_SIZE - 1);
        out[n < 0 ? 0 : n] = 0;
        return n == BOOT_ID_SIZE - 1 ? 0 : -EIO;
}

static int check_room(struct app *app, unsigned n, bool snapshot, struct error *err) {
        if (snapshot) {
                unsigned have = 0;
                for (const struct sandbox *s = sandbox_oldest(app); s; s = s->next)
                        have += s->state == SANDBOX_SNAPSHOT;
                return have < SNAPSHOTS_MAX ? 0 : error_set(err, -EAGAIN, "this host has %u snapshots: delete some first", have);
        }
        size_t there = sandbox_count(app, SANDBOX_ALIVE), max = app->conf.max_sandboxes;
        if (there + n > max)
                return error_set(err, -EAGAIN, "this host has %zu of its %zu sandboxes, %u more %s too many (configuration: [sandbox] max)",
                                 there, max, n, n == 1 ? "is" : "are");
        return 0;
}

/* Whether there is memory in it. */
static int snapshot_note(struct sandbox *s, bool full) {
        if (!s->ext)
                s->ext = json_object();
        return json_object_set_new(s->ext, "snapshotFull", json_boolean(full));
}

static bool is_full(const struct sandbox *of) {
        return of->state == SANDBOX_SUSPENDED ||
               (of->state == SANDBOX_SNAPSHOT && json_is_true(json_object_get(of->ext, "snapshotFull")));
}

int fork_enter(struct fork *f, const char *op_id, const char *image, bool full, bool fleeting, struct db_batch *b, struct error *err) {
        char boot[BOOT_ID_SIZE] = "";
        int r = check_room(f->app, f->n, f->snapshot, err); /* again: taking the image took a while */
        if (r < 0)
                return r;
        if (fleeting && (r = host_boot(boot)) < 0)
                return error_errno(err, r, "the host's boot id");
        json_t *ids = json_array();
        for (unsigned i = 0; i < f->n; i++) {
                struct sandbox *s = f->members[i].s;
                s->state = f->snapshot ? SANDBOX_SNAPSHOT : full ? SANDBOX_RESTORING : SANDBOX_STARTING;
                if (f->snapshot && snapshot_note(s, full) < 0)
                        return error_set(err, -ENOMEM, "out of memory");
                memcpy(s->image, image, sizeof s->image);
                egress_fork_names(s, f->of);
                r = sandbox_insert(f->app, s);
                if (r < 0) {
                        json_decref(ids);
                        take_back(f, i);
                        return r == -EEXIST ? error_set(err, r, "a sandbox named \"%s\" exists", s->name)
                                            : error_set(err, r, "out of memory");
                }
                s->fork = f;
                sandbox_row_insert(s, b);
                (void) json_array_append_new(ids, json_string(s->id));
        }
        memcpy(f->op_id, op_id, sizeof f->op_id);
        db_batch_add(b, "INSERT INTO forks (op_id, members, boot) VALUES (?, ?, ?)", "sjs", op_id, ids, boot);
        json_decref(ids);
        link_in(f);
        sandbox_unref(f->of);
        f->of = NULL;
        return 0;
}

/* ---- entry ------------------------------------------------------------------------------------- */

static int member_name(const struct fork_params *p, unsigned i, char out[SANDBOX_NAME_MAX + 16], struct error *err) {
        int n = p->n == 1 ? snprintf(out, SANDBOX_NAME_MAX + 16, "%s", p->name)
                          : snprintf(out, SANDBOX_NAME_MAX + 16, "%s-%u", p->name, i + 1);
        return n > SANDBOX_NAME_MAX ? error_set(err, -EINVAL, "the name \"%.80s\" is too long for a copy's", p->name) : 0;
}

static int make_members(struct app *app, struct fork *f, const struct sandbox *of, const struct fork_params *p,
                        enum api_code *ret_code, struct error *err) {
        char name[SANDBOX_NAME_MAX + 16];
        struct sandbox_copy copy = p->copy;
        for (unsigned i = 0; i < f->n; i++) {
                int r = p->name ? member_name(p, i, name, err) : 0;
                *ret_code = API_INVALID_ARGUMENT;
                copy.name = p->name ? name : NULL;
                if (r >= 0)
                        r = sandbox_copy(app, of, &copy, &f->members[i].s, ret_code, err);
                if (r < 0)
                        return r;
        }
        return 0;
}

struct begin {
        struct app *app;
        struct fork *fork;
        char op_id[ID_SIZE];
        char *idem;
        sandbox_durable_cb cb;
        void *arg;
};

static void on_durable(void *arg, int err, const struct error *e) {
        struct begin *g = arg;
        idem_settle(g->app, g->idem, err >= 0);
        if (err < 0) {
                op_discard(g->app, op_find(g->app, g->op_id));
                fork_drop(g->fork);
        }
        if (g->cb)
                g->cb(g->arg, err, e);
        if (err >= 0 && !g->app->stopping)
                fork_go(g->fork, NULL);
        free(g->idem);
        free(g);
}

/* From an image that is there: rows at once. Takes f. */
static int begin(struct app *app, struct sandbox *of, struct fork *f, const struct fork_params *p, bool full, const char *image,
                 sandbox_durable_cb durable, void *arg, struct op **ret_op, struct error *err) {
        struct db_batch *b = db_batch_new();
        struct begin *g = calloc(1, sizeof *g);
        struct op *o = b && g ? op_new(app, b, OP_FORK, of->id, of->template_ref, p->copy.owner) : NULL;
        int r = !o || (p->idem && !(g->idem = strdup(p->idem))) ? error_set(err, -ENOMEM, "out of memory") : 0;
        if (r >= 0)
                r = fork_enter(f, o->id, image, full, false, b, err);
        if (r >= 0) {
                *g = (struct begin){ .app = app, .fork = f, .idem = g->idem, .cb = durable, .arg = arg };
                memcpy(g->op_id, o->id, sizeof g->op_id);
                idem_bind_op(app, p->idem, o->id, b);
                r = db_batch_submit(app->db, STEAL(b), on_durable, g);
                if (r < 0) {
                        idem_settle(app, p->idem, false);
                        (void) error_errno(err, r, "could not store the fork");
                }
        }
        if (r < 0) {
                db_batch_free(b);
                op_discard(app, o);
                fork_drop(f);
                if (g)
                        free(g->idem);
                free(g);
                return r;
        }
        *ret_op = o;
        return 0;
}

int sandbox_fork(struct app *app, struct sandbox *of, const struct fork_params *p, sandbox_durable_cb durable, void *arg,
                 struct op **ret_op, enum api_code *ret_code, struct error *err) {
        bool vm = !p->checkpoint && (of->state == SANDBOX_RUNNING || of->state == SANDBOX_PAUSED);
        int r = vm ? 0 : life_fork_check(app, of, p->checkpoint != NULL, err);
        if (r >= 0)
                r = check_room(app, p->n, p->snapshot, err);
        *ret_code = r == -EAGAIN ? API_TOO_MANY : r == -EBUSY ? API_CONFLICT : API_INTERNAL;
        struct fork *f = r >= 0 ? fork_new(app, p->n) : NULL;
        if (!f)
                return r < 0 ? r : error_set(err, -ENOMEM, "out of memory");
        f->of = sandbox_ref(of);
        f->snapshot = p->snapshot;
        r = make_members(app, f, of, p, ret_code, err);
        if (r < 0) {
                fork_free(f);
                return r;
        }
        if (vm) {
                const struct sandbox_change_params change = { .owner = p->copy.owner, .idem = p->idem, .fork = f };
                r = sandbox_change_with(app, of, SANDBOX_FORK, &change, durable, arg, ret_op, err);
                if (r < 0)
                        fork_free(f);
        } else {
                bool full = p->checkpoint ? p->checkpoint->full : is_full(of);
                r = begin(app, of, f, p, full, p->checkpoint ? p->checkpoint->id : of->image, durable, arg, ret_op, err);
        }
        *ret_code = r == -EAGAIN ? API_TOO_MANY : r == -EEXIST ? API_NAME_TAKEN : api_code_from_errno(r);
        return r;
}

/* ---- after a restart --------------------------------------------------------------------------- */

static void load_member(struct fork *f, unsigned i, const char *id) {
        struct member *m = &f->members[i];
        struct sandbox *s = id ? sandbox_find_all(f->app, id) : NULL;
        if (!s || s->state == SANDBOX_DELETING || (s->state == SANDBOX_FAILED && !s->started_ms))
                f->broken = true;
        if (!s)
                return;
        m->s = sandbox_ref(s);
        s->fork = f;
        m->started = true; /* reconciliation has it go on */
        m->made = s->started_ms != 0 || s->state == SANDBOX_SNAPSHOT;
        f->snapshot = s->state == SANDBOX_SNAPSHOT;
}

static int load_row(void *arg, struct db_row *row, struct error *err) {
        struct app *app = arg;
        const char *op_id = db_row_str(row, 0), *text = db_row_str(row, 1), *boot = db_row_str(row, 2);
        char now[BOOT_ID_SIZE];
        _cleanup_json_ json_t *ids = NULL;
        const struct op *o = op_find(app, op_id);
        if (!o || o->state != OP_RUNNING)
                return 0;
        if (json_parse(text, strlen(text), LIMIT_JSON_BODY, &ids, NULL) < 0 || json_array_size(ids) == 0)
                return error_set(err, -EBADMSG, "state.db: a fork's row is damaged");
        struct fork *f = fork_new(app, (unsigned) json_array_size(ids));
        if (!f)
                return error_set(err, -ENOMEM, "out of memory");
        memcpy(f->op_id, o->id, sizeof f->op_id);
        f->broken = boot[0] && (host_boot(now) < 0 || strcmp(boot, now) != 0);
        link_in(f);
        for (unsigned i = 0; i < f->n; i++)
                load_member(f, i, json_string_value(json_array_get(ids, i)));
        return 0;
}

int forks_load(struct app *app, struct error *err) {
        struct db_conn *c = db_conn_of(app->db);
        int r = db_query(c, load_row, app, err, "SELECT op_id, members, boot FROM forks", "");
        return r < 0 ? r : db_run(c, err, "DELETE FROM forks WHERE op_id NOT IN (SELECT id FROM operations WHERE state = 'running')", "");
}

void forks_resume(struct app *app) {
        for (struct fork *f = app->forks, *next; f; f = next) {
                next = f->next;
                if (f->undoing)
                        continue;
                if (f->broken)
                        undo(f, API_INTERRUPTED, "the host or cspaced was restarted before all of them ran");
                else
                        pump(f);
        }
}
