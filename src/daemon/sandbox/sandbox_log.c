/* SPDX-License-Identifier: Apache-2.0 */

/*
 * The lifecycle log of a sandbox: few lines, kept in the database with the sandbox. Bounded twice: at
 * most LOG_KEEP lines are kept, and LOG_RATE lines per minute written (a guest can make its own
 * warden report as often as it likes).
 */

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "app.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/str.h"
#include "sandbox_flow.h"
#include "store/db.h"

#define LOG_KEEP 1000
#define LOG_RATE 60

static bool rate_ok(struct sandbox *s) {
        int64_t now = clock_real_ms();
        if (now - s->log_window_ms > 60000 || now < s->log_window_ms) {
                s->log_window_ms = now;
                s->log_lines = 0;
        }
        return s->log_lines++ < LOG_RATE;
}

void sandbox_log(struct app *app, struct sandbox *s, const char *level, const char *event, const char *fmt, ...) {
        char message[ERROR_MSG_MAX];
        va_list ap;
        va_start(ap, fmt);
        (void) vsnprintf(message, sizeof message, fmt, ap);
        va_end(ap);
        str_make_utf8(message); /* a guest does not hide a line by what it has in it quoted */
        if (!rate_ok(s))
                return;
        log_debug("sandbox %s: %s: %s", s->id, event, message);
        struct db_batch *b = db_batch_new();
        db_batch_add(b, "INSERT INTO events (sandbox_id, time_ms, level, event, message) VALUES (?, ?, ?, ?, ?)", "sisss",
                     s->id, clock_real_ms(), level, event, message);
        db_batch_add(b,
                     "DELETE FROM events WHERE sandbox_id = ?1 AND id <= (SELECT id FROM events WHERE sandbox_id = ?1"
                     " ORDER BY id DESC LIMIT 1 OFFSET ?2)",
                     "si", s->id, (int64_t) LOG_KEEP);
        (void) db_batch_submit(app->db, b, NULL, NULL);
}

struct read {
        char id[ID_SIZE];
        int64_t since_ms;
        int64_t limit;
        json_t *entries;
        sandbox_log_cb cb;
        void *arg;
};

static int read_row(void *arg, struct db_row *row, struct error *err) {
        struct read *r = arg;
        char time[RFC3339_SIZE];
        clock_rfc3339(db_row_int(row, 0), time);
        json_t *e = json_pack("{s:s, s:s, s:s, s:s}", "time", time, "level", db_row_str(row, 1), "event",
                              db_row_str(row, 2), "message", db_row_str(row, 3));
        if (!e) /* a message that is not UTF-8 */
                return 0;
        return json_array_insert_new(r->entries, 0, e) < 0 ? error_set(err, -ENOMEM, "out of memory") : 0;
}

/* jansson is used by one thread at a time on this array: it is handed over with the job. */
static int read_work(struct db_conn *c, void *arg, struct error *err) {
        struct read *r = arg;
        return db_query(c, read_row, r, err,
                        "SELECT time_ms, level, event, message FROM events WHERE sandbox_id = ? AND time_ms > ?"
                        " ORDER BY id DESC LIMIT ?",
                        "sii", r->id, r->since_ms, r->limit);
}

static void read_done(void *arg, int err, const struct error *e) {
        (void) e;
        struct read *r = arg;
        r->cb(r->arg, err, err < 0 ? NULL : r->entries);
        json_decref(r->entries);
        free(r);
}

int sandbox_log_read(struct app *app, struct sandbox *s, int64_t since_ms, size_t limit, sandbox_log_cb cb,
                     void *arg) {
        struct read *r = calloc(1, sizeof *r);
        if (!r)
                return -ENOMEM;
        *r = (struct read){ .since_ms = since_ms, .limit = (int64_t) limit, .entries = json_array(), .cb = cb, .arg = arg };
        (void) str_copy(r->id, sizeof r->id, s->id);
        int rc = r->entries ? db_submit(app->db, read_work, read_done, r) : -ENOMEM;
        if (rc < 0) {
                json_decref(r->entries);
                free(r);
        }
        return rc;
}
