/* SPDX-License-Identifier: Apache-2.0 */
#include "store/db.h"

#include <errno.h>
#include <sqlite3.h>

#include "fixture.h"

static int count_row(void *arg, struct db_row *row, struct error *err) {
        (void) err;
        *(int64_t *) arg = db_row_int(row, 0);
        return 0;
}

struct count {
        int64_t n;
        struct fixture_result r;
};

static int count_work(struct db_conn *c, void *arg, struct error *err) {
        return db_query(c, count_row, arg, err, "SELECT count(*) FROM keys", "");
}

static void count_done(void *arg, int err, const struct error *e) {
        struct count *c = arg;
        fixture_done(&c->r, err, e);
}

static int64_t count(struct fixture *f) {
        struct count c = { 0 };
        assert_int_equal(db_submit(f->app.db, count_work, count_done, &c), 0);
        fixture_run(f, &c.r.done);
        assert_int_equal(c.r.err, 0);
        return c.n;
}

static struct db_batch *key_row(const char *id, const char *hash) {
        struct db_batch *b = db_batch_new();
        db_batch_add(b, "INSERT INTO keys (id, hash, name, prefix, created_ms) VALUES (?, ?, ?, ?, ?)", "ssssi", id, hash, "n",
                     "p", (int64_t) 1);
        return b;
}

static void is_durable(void **state) {
        struct fixture *f = *state;
        assert_int_equal(fixture_commit(f, key_row("a", "1")), 0);
        assert_int_equal(count(f), 1);
        fixture_close(f);
        fixture_open(f);
        assert_int_equal(count(f), 1);
        assert_non_null(key_find(&f->app, "a"));
}

/* Of jobs in one group, the one that fails takes nothing of the others along, and all of itself. */
static void a_failure_is_alone(void **state) {
        struct fixture *f = *state;
        struct fixture_result r[30] = { 0 };
        for (int i = 0; i < 30; i++) {
                char id[16];
                (void) snprintf(id, sizeof id, "id%d", i);
                struct db_batch *b = key_row(id, i % 3 == 2 ? "same" : id);
                if (i % 3 == 2)
                        db_batch_add(b, "INSERT INTO keys (id, hash, name, prefix, created_ms) VALUES (?, 'same', '', '', 1)", "s",
                                     "second");
                assert_int_equal(db_batch_submit(f->app.db, b, fixture_done, &r[i]), 0);
        }
        for (int i = 0; i < 30; i++) {
                fixture_run(f, &r[i].done);
                assert_int_equal(r[i].err, i % 3 == 2 ? -EEXIST : 0);
        }
        assert_int_equal(count(f), 20);
}

struct order {
        struct fixture_result r;
        int *next;
        int mine;
};

static void in_order(void *arg, int err, const struct error *e) {
        struct order *o = arg;
        fixture_done(&o->r, err, e);
        assert_int_equal(o->mine, (*o->next)++);
}

static void answers_in_order(void **state) {
        struct fixture *f = *state;
        static struct order o[1000];
        int next = 0;
        for (int i = 0; i < 1000; i++) {
                o[i] = (struct order){ .next = &next, .mine = i };
                struct db_batch *b = db_batch_new();
                db_batch_add(b, "DELETE FROM keys WHERE id = ?", "s", "none");
                assert_int_equal(db_batch_submit(f->app.db, b, in_order, &o[i]), 0);
        }
        fixture_run(f, &o[999].r.done);
        struct db_stats s;
        db_stats(f->app.db, &s);
        assert_int_equal(s.jobs, 1000);
        assert_true(s.commits < 1000); /* groups */
}

static void bad_statements(void **state) {
        struct fixture *f = *state;
        struct db_batch *b = db_batch_new();
        db_batch_add(b, "NOT SQL", "");
        assert_int_equal(fixture_commit(f, b), -EIO);
        b = db_batch_new();
        db_batch_add(b, "DELETE FROM keys WHERE id = ?", "");
        assert_int_equal(fixture_commit(f, b), -EINVAL);
        b = db_batch_new();
        db_batch_add(b, "DELETE FROM keys WHERE id = ?", "x", 1);
        assert_int_equal(db_batch_submit(f->app.db, b, NULL, NULL), -EINVAL);
        assert_int_equal(db_batch_submit(f->app.db, NULL, NULL, NULL), -ENOMEM);
        db_batch_free(NULL);
}

/* What was submitted before the close is done, and told. */
static void close_finishes(void **state) {
        struct fixture *f = *state;
        struct fixture_result r = { 0 };
        assert_int_equal(db_batch_submit(f->app.db, key_row("a", "1"), fixture_done, &r), 0);
        fixture_close(f);
        assert_true(r.done);
        assert_int_equal(r.err, 0);
        fixture_open(f);
        assert_int_equal(count(f), 1);
}

/* The connection has one user at a time: what is submitted while state is loaded waits, and nobody gets at it after. */
static void jobs_wait_for_the_start(void **state) {
        struct fixture *f = *state;
        char path[96];
        struct error e = ERROR_INIT;
        struct fixture_result r = { 0 };
        struct db *db = NULL;
        struct db_stats s;
        int64_t n = -1;
        (void) snprintf(path, sizeof path, "%s/other.db", f->dir);
        for (int start = 1; start >= 0; start--) {
                r.done = false;
                assert_int_equal(db_open(&f->loop, path, &db, &e), 0);
                assert_int_equal(db_batch_submit(db, key_row(start ? "a" : "b", start ? "1" : "2"), fixture_done, &r), 0);
                for (int i = 0; i < 2000; i++) {
                        assert_int_equal(db_query(db_conn_of(db), count_row, &n, &e, "SELECT count(*) FROM keys", ""), 0);
                        assert_int_equal(n, !start);
                }
                db_stats(db, &s);
                assert_int_equal(s.queued, 1);
                if (start) {
                        assert_int_equal(db_start(db, &e), 0);
                        assert_null(db_conn_of(db));
                        assert_int_equal(db_run(db_conn_of(db), &e, "DELETE FROM keys", ""), -EPERM);
                        fixture_run(f, &r.done);
                }
                db_close(db); /* also of one that was never started */
                assert_true(r.done);
                assert_int_equal(r.err, 0);
        }
}

static void newer_schema_is_refused(void **state) {
        struct fixture *f = *state;
        char path[96];
        sqlite3 *s;
        struct error e = ERROR_INIT;
        struct db *db = NULL;
        fixture_close(f);
        (void) snprintf(path, sizeof path, "%s/state.db", f->dir);
        assert_int_equal(sqlite3_open(path, &s), SQLITE_OK);
        assert_int_equal(sqlite3_exec(s, "PRAGMA user_version = 1000", NULL, NULL, NULL), SQLITE_OK);
        assert_int_equal(uv_loop_init(&f->loop), 0);
        (void) sqlite3_close(s);
        assert_int_equal(db_open(&f->loop, path, &db, &e), -ENOTSUP);
        assert_non_null(strstr(e.msg, "version 1000"));
        assert_int_equal(uv_loop_close(&f->loop), 0);
        assert_int_equal(remove(path), 0);
        fixture_open(f);
}

static void damaged_file_is_refused(void **state) {
        struct fixture *f = *state;
        char path[96];
        struct error e = ERROR_INIT;
        struct db *db = NULL;
        fixture_close(f);
        (void) snprintf(path, sizeof path, "%s/state.db", f->dir);
        FILE *out = fopen(path, "wb");
        assert_non_null(out);
        for (int i = 0; i < 10000; i++)
                (void) fputs("no database", out);
        (void) fclose(out);
        assert_int_equal(uv_loop_init(&f->loop), 0);
        assert_int_equal(db_open(&f->loop, path, &db, &e), -EBADMSG);
        assert_int_equal(uv_loop_close(&f->loop), 0);
        assert_int_equal(remove(path), 0);
        fixture_open(f);
}

#define TEST(fn) cmocka_unit_test_setup_teardown(fn, fixture_setup, fixture_teardown)

int main(void) {
        const struct CMUnitTest tests[] = {
                TEST(is_durable),     TEST(a_failure_is_alone), TEST(answers_in_order),        TEST(bad_statements),
                TEST(close_finishes), TEST(newer_schema_is_refused), TEST(damaged_file_is_refused),
                TEST(jobs_wait_for_the_start),
        };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
