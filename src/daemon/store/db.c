/* SPDX-License-Identifier: Apache-2.0 */

/*
 * The database thread. It takes all jobs that wait as one group:
 *
 *   BEGIN IMMEDIATE; for each job: SAVEPOINT job, work, RELEASE (or ROLLBACK TO and RELEASE); COMMIT
 *
 * and hands the group to the loop by an async handle. With synchronous=FULL a commit in WAL mode is
 * one fsync. If the commit fails, every job of the group has failed.
 *
 * The connection is opened without SQLite's own lock: it has one user at a time, which is whoever
 * loads until db_start() and the thread from then on.
 */

#include "db.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/fs.h>
#include <sqlite3.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/fault.h"
#include "base/fd.h"
#include "base/json.h"
#include "base/log.h"
#include "db_schema.h"

#define DB_QUEUE_MAX 16384
#define DB_GROUP_MAX 256
#define DB_STMTS_MAX 128
#define DB_PARAMS_MAX 24
#define DB_RESERVE_BYTES (8 << 20) /* SQLite begins its log again at 4 MiB */

struct stmt {
        const char *sql;
        sqlite3_stmt *st;
};

struct db_conn {
        sqlite3 *sql;
        struct stmt stmts[DB_STMTS_MAX];
        size_t n_stmts;
};

struct db_row {
        sqlite3_stmt *st;
};

struct job {
        struct job *next;
        db_work_fn work;
        db_done_fn done;
        void *arg;
        int err;
        struct error e;
};

struct job_list {
        struct job *first, **end;
};

struct db {
        struct db_conn conn;
        uv_async_t async;
        uv_thread_t thread;
        uv_mutex_t lock; /* guards all below */
        uv_cond_t wake;
        struct job_list waiting, finished;
        size_t n_waiting;
        bool stop;
        struct db_stats stats;
        bool started; /* of the loop: the thread was made, and conn is its own */
};

/* ---- statements ---------------------------------------------------------------------------- */

static int to_errno(int rc) {
        switch (rc & 0xff) {
        case SQLITE_FULL:
                return -ENOSPC;
        case SQLITE_BUSY:
        case SQLITE_LOCKED:
                return -EBUSY;
        case SQLITE_CONSTRAINT:
                return -EEXIST;
        case SQLITE_NOMEM:
                return -ENOMEM;
        case SQLITE_CORRUPT:
        case SQLITE_NOTADB:
                return -EBADMSG;
        case SQLITE_READONLY:
        case SQLITE_PERM:
                return -EROFS;
        case SQLITE_CANTOPEN:
                return -EACCES;
        default:
                return -EIO;
        }
}

static int fail(struct db_conn *c, int rc, struct error *err) {
        return error_set(err, to_errno(rc), "database: %s", c->sql ? sqlite3_errmsg(c->sql) : sqlite3_errstr(rc));
}

int db_script(struct db_conn *c, const char *sql, struct error *err) {
        int rc = sqlite3_exec(c->sql, sql, NULL, NULL, NULL);
        return rc == SQLITE_OK ? 0 : fail(c, rc, err);
}

static int prepare(struct db_conn *c, const char *sql, sqlite3_stmt **ret, struct error *err) {
        for (size_t i = 0; i < c->n_stmts; i++)
                if (c->stmts[i].sql == sql) {
                        *ret = c->stmts[i].st;
                        return 0;
                }
        if (c->n_stmts == DB_STMTS_MAX)
                return error_set(err, -ENOBUFS, "database: too many different statements");
        sqlite3_stmt *st;
        int rc = sqlite3_prepare_v3(c->sql, sql, -1, SQLITE_PREPARE_PERSISTENT, &st, NULL);
        if (rc != SQLITE_OK)
                return fail(c, rc, err);
        c->stmts[c->n_stmts++] = (struct stmt){ .sql = sql, .st = st };
        *ret = st;
        return 0;
}

struct param {
        bool is_text;
        int64_t i;
        char *text; /* NULL with is_text: NULL */
};

static int bind_all(struct db_conn *c, sqlite3_stmt *st, const struct param *p, size_t n, struct error *err) {
        if (sqlite3_bind_parameter_count(st) != (int) n)
                return error_set(err, -EINVAL, "database: statement has %d parameters, not %zu",
                                 sqlite3_bind_parameter_count(st), n);
        for (size_t i = 0; i < n; i++) {
                int at = (int) i + 1, rc;
                if (!p[i].is_text)
                        rc = sqlite3_bind_int64(st, at, p[i].i);
                else if (!p[i].text)
                        rc = sqlite3_bind_null(st, at);
                else
                        rc = sqlite3_bind_text(st, at, p[i].text, -1, SQLITE_STATIC);
                if (rc != SQLITE_OK)
                        return fail(c, rc, err);
        }
        return 0;
}

static int run(struct db_conn *c, const char *sql, const struct param *p, size_t n, db_row_fn fn, void *arg,
               struct error *err) {
        sqlite3_stmt *st = NULL;
        if (!c)
                return error_set(err, -EPERM, "database: it was used outside of its thread");
        int r = prepare(c, sql, &st, err);
        if (r >= 0)
                r = bind_all(c, st, p, n, err);
        while (r >= 0) {
                int rc = sqlite3_step(st);
                if (rc == SQLITE_DONE)
                        break;
                if (rc != SQLITE_ROW)
                        r = fail(c, rc, err);
                else if (fn)
                        r = fn(arg, &(struct db_row){ .st = st }, err);
        }
        if (st) {
                (void) sqlite3_reset(st);
                (void) sqlite3_clear_bindings(st);
        }
        return r < 0 ? r : 0;
}

static void params_done(struct param *p, size_t n) {
        for (size_t i = 0; i < n; i++)
                free(p[i].text);
}

/* Copies the parameters. -EINVAL for an unknown letter, -E2BIG, -ENOMEM. */
static int params_read(struct param *p, size_t *ret_n, const char *fmt, va_list ap) {
        size_t n = 0;
        int r = 0;
        for (; *fmt && r == 0; fmt++) {
                if (n == DB_PARAMS_MAX) {
                        r = -E2BIG;
                        break;
                }
                struct param *q = &p[n++];
                *q = (struct param){ .is_text = *fmt != 'i' };
                if (*fmt == 'i') {
                        q->i = va_arg(ap, int64_t);
                } else if (*fmt == 's') {
                        const char *s = va_arg(ap, const char *);
                        q->text = s ? strdup(s) : NULL;
                        r = s && !q->text ? -ENOMEM : 0;
                } else if (*fmt == 'j') {
                        const json_t *j = va_arg(ap, const json_t *);
                        q->text = j ? json_to_str(j) : NULL;
                        r = j && !q->text ? -ENOMEM : 0;
                } else {
                        r = -EINVAL;
                }
        }
        if (r < 0) {
                params_done(p, n);
                return r;
        }
        *ret_n = n;
        return 0;
}

static int run_va(struct db_conn *c, db_row_fn fn, void *arg, struct error *err, const char *sql, const char *fmt,
                  va_list ap) {
        struct param p[DB_PARAMS_MAX];
        size_t n = 0;
        int r = params_read(p, &n, fmt, ap);
        if (r < 0)
                return error_errno(err, r, "database");
        r = run(c, sql, p, n, fn, arg, err);
        params_done(p, n);
        return r;
}

int db_run(struct db_conn *c, struct error *err, const char *sql, const char *fmt, ...) {
        va_list ap;
        va_start(ap, fmt);
        int r = run_va(c, NULL, NULL, err, sql, fmt, ap);
        va_end(ap);
        return r;
}

int db_query(struct db_conn *c, db_row_fn fn, void *arg, struct error *err, const char *sql, const char *fmt, ...) {
        va_list ap;
        va_start(ap, fmt);
        int r = run_va(c, fn, arg, err, sql, fmt, ap);
        va_end(ap);
        return r;
}

const char *db_row_str(struct db_row *row, int col) {
        return (const char *) sqlite3_column_text(row->st, col);
}

int64_t db_row_int(struct db_row *row, int col) {
        return sqlite3_column_int64(row->st, col);
}

/* ---- thread -------------------------------------------------------------------------------- */

static void list_add(struct job_list *l, struct job *j) {
        j->next = NULL;
        *l->end = j;
        l->end = &j->next;
}

static void list_init(struct job_list *l) {
        l->first = NULL;
        l->end = &l->first;
}

static void run_job(struct db_conn *c, struct job *j) {
        j->err = db_script(c, "SAVEPOINT job", &j->e);
        if (j->err < 0)
                return;
        j->err = j->work(c, j->arg, &j->e);
        if (j->err < 0) {
                if (!j->e.code)
                        (void) error_set(&j->e, j->err, "database: the change was refused");
                (void) db_script(c, "ROLLBACK TO job", NULL);
        }
        int r = db_script(c, "RELEASE job", j->err < 0 ? NULL : &j->e);
        if (j->err >= 0 && r < 0)
                j->err = r;
}

static void run_group(struct db_conn *c, struct job_list *group) {
        struct error e = ERROR_INIT;
        int r = db_script(c, "BEGIN IMMEDIATE", &e);
        if (r >= 0) {
                for (struct job *j = group->first; j; j = j->next)
                        run_job(c, j);
                fault_point("before a commit");
                r = db_script(c, "COMMIT", &e);
                fault_point("after a commit");
                if (r < 0)
                        (void) db_script(c, "ROLLBACK", NULL);
        }
        for (struct job *j = group->first; r < 0 && j; j = j->next)
                if (j->err >= 0) {
                        j->err = r;
                        j->e = e;
                }
}

static void take_group(struct db *db, struct job_list *ret) {
        list_init(ret);
        for (size_t n = 0; n < DB_GROUP_MAX && db->waiting.first; n++) {
                struct job *j = db->waiting.first;
                db->waiting.first = j->next;
                db->n_waiting--;
                list_add(ret, j);
        }
        if (!db->waiting.first)
                db->waiting.end = &db->waiting.first;
}

static void finish_group(struct db *db, struct job_list *group) {
        db->stats.commits++;
        while (group->first) {
                struct job *j = group->first;
                group->first = j->next;
                db->stats.jobs++;
                db->stats.failures += j->err < 0;
                list_add(&db->finished, j);
        }
}

static void thread_main(void *arg) {
        struct db *db = arg;
        uv_mutex_lock(&db->lock);
        for (;;) {
                while (!db->waiting.first && !db->stop)
                        uv_cond_wait(&db->wake, &db->lock);
                if (!db->waiting.first)
                        break;
                struct job_list group;
                take_group(db, &group);
                uv_mutex_unlock(&db->lock);
                run_group(&db->conn, &group);
                uv_mutex_lock(&db->lock);
                finish_group(db, &group);
                (void) uv_async_send(&db->async);
        }
        uv_mutex_unlock(&db->lock);
}

static void deliver(struct db *db) {
        uv_mutex_lock(&db->lock);
        struct job *j = db->finished.first;
        list_init(&db->finished);
        uv_mutex_unlock(&db->lock);
        while (j) {
                struct job *next = j->next;
                if (j->done)
                        j->done(j->arg, j->err, j->err < 0 ? &j->e : NULL);
                else if (j->err < 0)
                        log_error("a change was not stored: %s", j->e.msg);
                free(j);
                j = next;
        }
}

static void on_async(uv_async_t *a) {
        deliver(a->data);
}

int db_submit(struct db *db, db_work_fn work, db_done_fn done, void *arg) {
        struct job *j = malloc(sizeof *j);
        if (!j)
                return -ENOMEM;
        fault_point("before the database");
        j->work = work;
        j->done = done;
        j->arg = arg;
        j->err = 0;
        j->e.code = 0;
        j->e.msg[0] = 0;
        uv_mutex_lock(&db->lock);
        bool room = db->n_waiting < DB_QUEUE_MAX && !db->stop;
        if (room) {
                list_add(&db->waiting, j);
                db->n_waiting++;
                uv_cond_signal(&db->wake);
        }
        uv_mutex_unlock(&db->lock);
        if (room)
                return 0;
        free(j);
        return -ENOBUFS;
}

/* ---- batches ------------------------------------------------------------------------------- */

struct batch_item {
        struct batch_item *next;
        const char *sql;
        size_t n;
        struct param p[];
};

struct db_batch {
        struct batch_item *first, **end;
        int err;
        db_done_fn done;
        void *arg;
};

struct db_batch *db_batch_new(void) {
        struct db_batch *b = calloc(1, sizeof *b);
        if (b)
                b->end = &b->first;
        return b;
}

void db_batch_free(struct db_batch *b) {
        if (!b)
                return;
        while (b->first) {
                struct batch_item *i = b->first;
                b->first = i->next;
                params_done(i->p, i->n);
                free(i);
        }
        free(b);
}

void db_batch_add(struct db_batch *b, const char *sql, const char *fmt, ...) {
        if (!b || b->err < 0)
                return;
        struct param p[DB_PARAMS_MAX];
        size_t n = 0;
        va_list ap;
        va_start(ap, fmt);
        b->err = params_read(p, &n, fmt, ap);
        va_end(ap);
        if (b->err < 0)
                return;
        struct batch_item *i = malloc(sizeof *i + n * sizeof *p);
        if (!i) {
                params_done(p, n);
                b->err = -ENOMEM;
                return;
        }
        *i = (struct batch_item){ .sql = sql, .n = n };
        memcpy(i->p, p, n * sizeof *p);
        *b->end = i;
        b->end = &i->next;
}

static int batch_work(struct db_conn *c, void *arg, struct error *err) {
        struct db_batch *b = arg;
        for (const struct batch_item *i = b->first; i; i = i->next) {
                int r = run(c, i->sql, i->p, i->n, NULL, NULL, err);
                if (r < 0)
                        return r;
        }
        return 0;
}

static void batch_done(void *arg, int err, const struct error *e) {
        struct db_batch *b = arg;
        if (b->done)
                b->done(b->arg, err, e);
        else if (err < 0)
                log_error("a change was not stored: %s", e->msg);
        db_batch_free(b);
}

int db_batch_submit(struct db *db, struct db_batch *b, db_done_fn done, void *arg) {
        if (!b)
                return -ENOMEM;
        b->done = done;
        b->arg = arg;
        int r = b->err < 0 ? b->err : db_submit(db, batch_work, batch_done, b);
        if (r < 0)
                db_batch_free(b);
        return r;
}

/* ---- open and close ------------------------------------------------------------------------ */

static void conn_close(struct db_conn *c) {
        for (size_t i = 0; i < c->n_stmts; i++)
                (void) sqlite3_finalize(c->stmts[i].st);
        (void) sqlite3_close(c->sql);
}

/*
 * Room for the rows by which room is made: on a full disk sandboxes can still be deleted. What is written goes to the log
 * first, so the log has its blocks beforehand, and keeps them when they are written again (FS_NOCOW_FL, on btrfs). Where
 * that cannot be had, a full disk is one for the database too.
 */
static void reserve(const char *path) {
        char log[PATH_MAX];
        struct stat st;
        int flags = 0, n = snprintf(log, sizeof log, "%s-wal", path);
        _cleanup_fd_ int fd = n > 0 && (size_t) n < sizeof log ? open(log, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600) : -EBADF;
        if (fd < 0 || fstat(fd, &st) < 0)
                return;
        if (st.st_size == 0 && ioctl(fd, FS_IOC_GETFLAGS, &flags) == 0) {
                flags |= FS_NOCOW_FL;
                (void) ioctl(fd, FS_IOC_SETFLAGS, &flags);
        }
        if (fallocate(fd, FALLOC_FL_KEEP_SIZE, 0, DB_RESERVE_BYTES) < 0)
                log_info("no room is kept for the database: %s", strerror(errno));
}

static int conn_open(struct db_conn *c, const char *path, struct error *err) {
        int rc = sqlite3_open_v2(path, &c->sql, SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE | SQLITE_OPEN_NOMUTEX, NULL);
        if (rc != SQLITE_OK)
                return fail(c, rc, err);
        (void) sqlite3_extended_result_codes(c->sql, 1);
        (void) sqlite3_busy_timeout(c->sql, 2000); /* the daemon before us may just be ending */
        /* Exclusive: a second cspaced on the same data is refused here. */
        static const char setup[] = "PRAGMA locking_mode = EXCLUSIVE; PRAGMA journal_mode = WAL;"
                                    "PRAGMA synchronous = FULL; PRAGMA foreign_keys = ON;"
                                    "PRAGMA secure_delete = ON;" /* tokens and environments go with their sandbox */
                                    "PRAGMA journal_size_limit = 16777216; BEGIN EXCLUSIVE; COMMIT";
        int r = db_script(c, setup, err);
        if (r < 0)
                return r;
        return db_migrate(c, err);
}

static void on_async_closed(uv_handle_t *h) {
        free(h->data);
}

int db_open(uv_loop_t *loop, const char *path, struct db **ret, struct error *err) {
        struct db *db = calloc(1, sizeof *db);
        if (!db)
                return error_set(err, -ENOMEM, "out of memory");
        list_init(&db->waiting);
        list_init(&db->finished);
        int r = 0;
        if (access(path, F_OK) < 0) { /* SQLite removes the log of an empty database */
                r = conn_open(&db->conn, path, err);
                conn_close(&db->conn);
                db->conn = (struct db_conn){ .sql = NULL };
        }
        if (r >= 0) {
                reserve(path);
                r = conn_open(&db->conn, path, err);
        }
        if (r < 0) {
                conn_close(&db->conn);
                free(db);
                return error_wrap(err, "\"%s\"", path);
        }
        (void) uv_mutex_init(&db->lock);
        (void) uv_cond_init(&db->wake);
        r = uv_async_init(loop, &db->async, on_async);
        if (r < 0) {
                uv_mutex_destroy(&db->lock);
                uv_cond_destroy(&db->wake);
                conn_close(&db->conn);
                free(db);
                return error_errno(err, r, "could not start the database");
        }
        db->async.data = db;
        *ret = db;
        return 0;
}

int db_start(struct db *db, struct error *err) {
        int r = uv_thread_create(&db->thread, thread_main, db);
        if (r < 0)
                return error_errno(err, r, "could not start the database thread");
        db->started = true;
        return 0;
}

void db_close(struct db *db) {
        if (!db)
                return;
        uv_mutex_lock(&db->lock);
        db->stop = true;
        uv_cond_signal(&db->wake);
        uv_mutex_unlock(&db->lock);
        if (db->started)
                (void) uv_thread_join(&db->thread);
        else
                thread_main(db);
        deliver(db);
        conn_close(&db->conn);
        uv_mutex_destroy(&db->lock);
        uv_cond_destroy(&db->wake);
        uv_close((uv_handle_t *) &db->async, on_async_closed);
}

struct db_conn *db_conn_of(struct db *db) {
        return db->started ? NULL : &db->conn;
}

void db_stats(struct db *db, struct db_stats *ret) {
        uv_mutex_lock(&db->lock);
        *ret = db->stats;
        ret->queued = db->n_waiting;
        uv_mutex_unlock(&db->lock);
}
