/* SPDX-License-Identifier: Apache-2.0 */

#include "op.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "app.h"
#include "base/buf.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "base/fault.h"
#include "base/json.h"
#include "base/str.h"
#include "db.h"
#include "map.h"
#include "timer.h"

#define OP_KEEP_MS (24LL * 3600 * 1000)

static const char *const state_names[] = { "running", "succeeded", "failed" };
static_assert(ARRAY_SIZE(state_names) == OP_STATE_MAX_);
static const char *const kind_names[] = { "create",  "delete",  "build", "pause", "resume",
                                         "suspend", "restore", "stop",  "start", "wake",  "checkpoint", "rollback", "fork", "publish" };
static_assert(ARRAY_SIZE(kind_names) == OP_KIND_MAX_);

struct op_log {
        struct buf text;
        uint64_t start; /* bytes dropped from the front */
};

struct op_wait {
        struct app *app;
        struct op *op; /* NULL: discarded */
        struct timer *timer;
        op_wait_cb cb;
        void *arg;
        struct op_wait *next;
};

struct ops {
        struct map *by_id;
        struct op *oldest, *newest;
};

const char *op_state_name(enum op_state s) {
        return s < OP_STATE_MAX_ ? state_names[s] : "?";
}

const char *op_kind_name(enum op_kind k) {
        return k < OP_KIND_MAX_ ? kind_names[k] : "?";
}

static int name_index(const char *const *names, size_t n, const char *s) {
        for (size_t i = 0; s && i < n; i++)
                if (strcmp(names[i], s) == 0)
                        return (int) i;
        return -EINVAL;
}

/* ---- table --------------------------------------------------------------------------------- */

static void op_free(struct op *o) {
        if (!o)
                return;
        free(o->message);
        json_decref(o->result);
        if (o->log)
                buf_done(&o->log->text);
        free(o->log);
        free(o);
}

static int add(struct ops *all, struct op *o) {
        int r = map_put(all->by_id, o->id, o);
        if (r < 0)
                return r;
        o->prev = all->newest;
        *(all->newest ? &all->newest->next : &all->oldest) = o;
        all->newest = o;
        return 0;
}

static void take_out(struct ops *all, struct op *o) {
        (void) map_remove(all->by_id, o->id);
        *(o->prev ? &o->prev->next : &all->oldest) = o->next;
        *(o->next ? &o->next->prev : &all->newest) = o->prev;
}

static int load_row(void *arg, struct db_row *row, struct error *err) {
        struct op *o = calloc(1, sizeof *o);
        if (!o)
                return error_set(err, -ENOMEM, "out of memory");
        o->percent = o->eta_s = -1;
        int kind = name_index(kind_names, OP_KIND_MAX_, db_row_str(row, 1));
        int state = name_index(state_names, OP_STATE_MAX_, db_row_str(row, 2));
        int r = kind < 0 || state < 0 ? -EBADMSG : 0;
        if (r == 0 && (str_copy(o->id, sizeof o->id, db_row_str(row, 0)) < 0 ||
                       str_copy(o->sandbox_id, sizeof o->sandbox_id, db_row_str(row, 3)) < 0 ||
                       str_copy(o->subject, sizeof o->subject, db_row_str(row, 4)) < 0 ||
                       str_copy(o->owner, sizeof o->owner, db_row_str(row, 5)) < 0))
                r = -EBADMSG;
        if (r == 0) {
                o->kind = (enum op_kind) kind;
                o->state = (enum op_state) state;
                o->created_ms = db_row_int(row, 6);
                o->finished_ms = db_row_int(row, 7);
                o->code = api_code_from_name(db_row_str(row, 8));
                const char *message = db_row_str(row, 9), *result = db_row_str(row, 10), *log = db_row_str(row, 11);
                if (message)
                        o->message = strdup(message);
                if (result)
                        r = json_parse(result, strlen(result), LIMIT_JSON_BODY, &o->result, NULL);
                if (log)
                        op_log_append(o, log, strlen(log));
        }
        if (r == 0)
                r = add(arg, o);
        if (r < 0) {
                op_free(o);
                return error_errno(err, r, "state.db: an operation's row is damaged");
        }
        return 0;
}

int ops_load(struct app *app, struct ops **ret, struct error *err) {
        struct ops *all = calloc(1, sizeof *all);
        if (all)
                all->by_id = map_new();
        if (!all || !all->by_id) {
                free(all);
                return error_set(err, -ENOMEM, "out of memory");
        }
        struct db_conn *c = db_conn_of(app->db);
        int r = db_run(c, err, "DELETE FROM operations WHERE state <> 'running' AND finished_ms < ?", "i",
                       clock_real_ms() - OP_KEEP_MS);
        if (r >= 0)
                r = db_query(c, load_row, all, err,
                             "SELECT id, kind, state, sandbox_id, subject, owner, created_ms, finished_ms, code,"
                             " message, result, log FROM operations ORDER BY created_ms, id",
                             "");
        if (r < 0) {
                app->ops = all;
                ops_free(app, all);
                app->ops = NULL;
                return r;
        }
        *ret = all;
        return 0;
}

void ops_free(struct app *app, struct ops *all) {
        (void) app;
        if (!all)
                return;
        while (all->oldest) {
                struct op *o = all->oldest;
                take_out(all, o);
                while (o->waits)
                        op_wait_cancel(o->waits);
                op_free(o);
        }
        map_free(all->by_id);
        free(all);
}

/* Drops what has been kept long enough; a few at a time, as others come. */
static void prune(struct app *app, struct db_batch *b) {
        struct ops *all = app->ops;
        int64_t before = clock_real_ms() - OP_KEEP_MS;
        struct op *o = all->oldest;
        for (int n = 0; n < 16 && o; n++) {
                struct op *next = o->next;
                bool due = o->finished_ms < before || map_count(all->by_id) > OP_KEEP_MAX;
                if (o->state != OP_RUNNING && !o->waits && due) {
                        db_batch_add(b, "DELETE FROM operations WHERE id = ?", "s", o->id);
                        take_out(all, o);
                        op_free(o);
                }
                o = next;
        }
}

struct op *op_new(struct app *app, struct db_batch *b, enum op_kind kind, const char *sandbox_id,
                  const char *subject, const char *owner) {
        struct op *o = calloc(1, sizeof *o);
        if (!o || id_new(o->id) < 0) {
                free(o);
                return NULL;
        }
        o->kind = kind;
        o->percent = o->eta_s = -1;
        o->created_ms = clock_real_ms();
        (void) str_copy(o->sandbox_id, sizeof o->sandbox_id, sandbox_id ? sandbox_id : "");
        (void) str_copy(o->subject, sizeof o->subject, subject ? subject : "");
        (void) str_copy(o->owner, sizeof o->owner, owner ? owner : "");
        if (add(app->ops, o) < 0) {
                op_free(o);
                return NULL;
        }
        db_batch_add(b,
                     "INSERT INTO operations (id, kind, state, sandbox_id, subject, owner, created_ms, finished_ms)"
                     " VALUES (?, ?, ?, ?, ?, ?, ?, 0)",
                     "ssssssi", o->id, op_kind_name(kind), op_state_name(o->state), o->sandbox_id, o->subject, o->owner,
                     o->created_ms);
        prune(app, b);
        fault_begin(op_kind_name(kind));
        return o;
}

struct op *op_find(struct app *app, const char *id) {
        return map_get(app->ops->by_id, id);
}

struct op *op_find_for(struct app *app, enum op_kind kind, const char *sandbox_id) {
        for (struct op *o = app->ops->newest; o; o = o->prev)
                if (o->kind == kind && strcmp(o->sandbox_id, sandbox_id) == 0)
                        return o;
        return NULL;
}

struct op *op_newest(struct app *app) {
        return app->ops->newest;
}

/* ---- progress and log ---------------------------------------------------------------------- */

void op_progress(struct op *o, const char *step, int percent, int eta_s) {
        if (o->state != OP_RUNNING)
                return;
        size_t n = strnlen(step, sizeof o->step - 1);
        memmove(o->step, step, n);
        o->step[n] = 0;
        if (!str_is_utf8(o->step, n))
                o->step[0] = 0;
        o->percent = percent;
        o->eta_s = eta_s;
}

void op_log_append(struct op *o, const char *text, size_t n) {
        if (!o->log) {
                o->log = calloc(1, sizeof *o->log);
                if (!o->log)
                        return;
                o->log->text = BUF_INIT(2 * OP_LOG_MAX);
        }
        struct op_log *l = o->log;
        if (n > OP_LOG_MAX) {
                l->start += n - OP_LOG_MAX;
                text += n - OP_LOG_MAX;
                n = OP_LOG_MAX;
        }
        uint8_t *out;
        if (buf_reserve(&l->text, n, &out) < 0)
                return;
        /* It comes from programs that ran in a build and ends on terminals. */
        for (size_t i = 0; i < n; i++)
                out[i] = (uint8_t) (text[i] == '\n' || text[i] == '\t' || (text[i] >= 0x20 && text[i] < 0x7f) ? text[i] : '?');
        buf_commit(&l->text, n);
        if (l->text.len > OP_LOG_MAX) {
                l->start += l->text.len - OP_LOG_MAX;
                buf_consume(&l->text, l->text.len - OP_LOG_MAX);
        }
}

const char *op_log_text(const struct op *o, uint64_t offset, size_t *ret_n, uint64_t *ret_start) {
        if (!o->log) {
                *ret_n = 0;
                *ret_start = 0;
                return "";
        }
        uint64_t end = o->log->start + o->log->text.len;
        uint64_t at = offset < o->log->start ? o->log->start : offset > end ? end : offset;
        *ret_n = (size_t) (end - at);
        *ret_start = at;
        return (const char *) buf_data(&o->log->text) + (at - o->log->start);
}

/* ---- waiting ------------------------------------------------------------------------------- */

static void wait_unlink(struct op_wait *w) {
        if (!w->op)
                return;
        for (struct op_wait **at = &w->op->waits; *at; at = &(*at)->next)
                if (*at == w) {
                        *at = w->next;
                        break;
                }
}

static void on_wait_timer(void *arg) {
        struct op_wait *w = arg;
        wait_unlink(w);
        op_wait_cb cb = w->cb;
        void *cb_arg = w->arg;
        struct op *o = w->op;
        free(w);
        cb(cb_arg, o);
}

struct op_wait *op_wait_start(struct app *app, struct op *o, uint64_t timeout_ms, op_wait_cb cb, void *arg) {
        struct op_wait *w = calloc(1, sizeof *w);
        if (!w)
                return NULL;
        *w = (struct op_wait){ .app = app, .op = o, .cb = cb, .arg = arg, .next = o->waits };
        w->timer = timer_start(app->loop, o->state == OP_RUNNING ? timeout_ms : 0, on_wait_timer, w);
        if (!w->timer) {
                free(w);
                return NULL;
        }
        o->waits = w;
        return w;
}

void op_wait_cancel(struct op_wait *w) {
        if (!w)
                return;
        wait_unlink(w);
        timer_cancel(w->timer);
        free(w);
}

/* The callbacks come from the loop, not from within the flow that ended the operation. */
static void wake(struct op *o, bool gone) {
        for (struct op_wait *w = o->waits; w; w = w->next) {
                struct timer *now = timer_start(w->app->loop, 0, on_wait_timer, w);
                if (!now)
                        continue; /* its own time-out will come */
                timer_cancel(w->timer);
                w->timer = now;
        }
        if (!gone)
                return;
        while (o->waits) {
                struct op_wait *w = o->waits;
                o->waits = w->next;
                w->next = NULL;
                w->op = NULL;
        }
}

/* ---- end ----------------------------------------------------------------------------------- */

static void end_row(struct op *o, struct db_batch *b) {
        size_t n = 0;
        uint64_t start;
        const char *text = op_log_text(o, 0, &n, &start);
        char *log = n > 0 ? strndup(text, n) : NULL;
        db_batch_add(b,
                     "UPDATE operations SET state = ?, finished_ms = ?, code = ?, message = ?, result = ?, log = ?"
                     " WHERE id = ?",
                     "sissjss", op_state_name(o->state), o->finished_ms,
                     o->state == OP_FAILED ? api_code_name(o->code) : NULL, o->message, o->result, log, o->id);
        free(log);
}

void op_succeed(struct app *app, struct op *o, struct db_batch *b, json_t *result) {
        (void) app;
        if (!o || o->state != OP_RUNNING) {
                json_decref(result);
                return;
        }
        o->state = OP_SUCCEEDED;
        json_decref(o->result);
        o->result = result;
        o->finished_ms = clock_real_ms();
        o->percent = 100;
        o->eta_s = 0;
        end_row(o, b);
        wake(o, false);
}

void op_fail(struct app *app, struct op *o, struct db_batch *b, enum api_code code, const char *message) {
        (void) app;
        if (!o || o->state != OP_RUNNING)
                return;
        o->state = OP_FAILED;
        o->code = code;
        o->message = strdup(message);
        if (o->message)
                str_make_utf8(o->message);
        o->finished_ms = clock_real_ms();
        o->eta_s = -1;
        end_row(o, b);
        wake(o, false);
}

void op_write_end(struct op *o, struct db_batch *b) {
        if (o->state != OP_RUNNING)
                end_row(o, b);
}

void op_discard(struct app *app, struct op *o) {
        if (!o)
                return;
        wake(o, true);
        take_out(app->ops, o);
        op_free(o);
}

json_t *op_to_json(const struct op *o) {
        char created[RFC3339_SIZE], finished[RFC3339_SIZE];
        clock_rfc3339(o->created_ms, created);
        clock_rfc3339(o->finished_ms, finished);
        json_t *percent = o->percent < 0 ? json_null() : json_integer(o->percent);
        json_t *eta = o->eta_s < 0 ? json_null() : json_integer(o->eta_s);
        json_t *error = o->state == OP_FAILED ? api_error_json(o->code, o->message ? o->message : "unknown") : json_null();
        return json_pack("{s:s, s:s, s:s, s:s?, s:s?, s:s, s:s?, s:{s:s, s:o, s:o}, s:o, s:O?}", "id", o->id, "kind",
                         op_kind_name(o->kind), "state", op_state_name(o->state), "sandbox_id",
                         o->sandbox_id[0] ? o->sandbox_id : NULL, "subject", o->subject[0] ? o->subject : NULL,
                         "created_at", created, "finished_at", o->finished_ms ? finished : NULL, "progress", "step",
                         o->step, "percent", percent, "eta_s", eta, "error", error, "result", o->result);
}
