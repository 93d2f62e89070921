/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * SQLite behind a thread of its own, so that an fsync never holds the loop up. Jobs run in the
 * order of submission; those that wait together share one transaction and one fsync (group
 * commit), each in a savepoint, so that a job that fails undoes itself alone. done callbacks
 * come on the loop, in order, after the commit: err == 0 means durable.
 */

#include <stddef.h>
#include <stdint.h>
#include <uv.h>

#include "base/error.h"

struct db;
struct db_conn; /* the open database: the thread's alone once that was started */
struct db_row;

/* Opens or creates the file, brings the schema up to date. Jobs submitted from here on wait for db_start(). */
int db_open(uv_loop_t *loop, const char *path, struct db **ret, struct error *err);
/* Ends the loading: starts the thread. */
int db_start(struct db *db, struct error *err);
/* Runs what is queued, then closes. done callbacks not yet made are made from here. */
void db_close(struct db *db);
/* For loading state; NULL, which no function below takes, from db_start() on. */
struct db_conn *db_conn_of(struct db *db);

typedef int (*db_work_fn)(struct db_conn *c, void *arg, struct error *err); /* database thread */
typedef void (*db_done_fn)(void *arg, int err, const struct error *e);      /* loop thread */
/* done may be NULL; a failure is then logged. 0, -ENOMEM, -ENOBUFS (DB_QUEUE_MAX jobs wait). */
int db_submit(struct db *db, db_work_fn work, db_done_fn done, void *arg);

/*
 * A batch of statements with their parameters copied, run as one job. fmt has one letter per
 * parameter: 's' const char * (NULL is NULL), 'i' int64_t, 'j' json_t * (stored as compact text,
 * NULL is NULL). sql must be a string literal: statements are cached by its address. An error
 * while adding is kept and returned by db_batch_submit().
 */
struct db_batch;
struct db_batch *db_batch_new(void); /* NULL: no memory; the functions below take NULL */
void db_batch_add(struct db_batch *b, const char *sql, const char *fmt, ...);
/* Takes b. On an error return done is not called. */
int db_batch_submit(struct db *db, struct db_batch *b, db_done_fn done, void *arg);
void db_batch_free(struct db_batch *b);

/* Direct use, from work functions and while loading. */
int db_run(struct db_conn *c, struct error *err, const char *sql, const char *fmt, ...);
typedef int (*db_row_fn)(void *arg, struct db_row *row, struct error *err); /* <0 stops */
int db_query(struct db_conn *c, db_row_fn fn, void *arg, struct error *err, const char *sql, const char *fmt, ...);
const char *db_row_str(struct db_row *row, int col); /* NULL for NULL; valid during the call */
int64_t db_row_int(struct db_row *row, int col);

/* Several statements without parameters, outside of any transaction (setting up only). */
int db_script(struct db_conn *c, const char *sql, struct error *err);

/* For /metrics. */
struct db_stats {
        uint64_t jobs, commits, failures, queued;
};
void db_stats(struct db *db, struct db_stats *ret);
