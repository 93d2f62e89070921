/* SPDX-License-Identifier: Apache-2.0 */
#include "store/op.h"

#include "base/clock.h"
#include "fixture.h"

static struct op *make(struct fixture *f, const char *sandbox) {
        struct db_batch *b = db_batch_new();
        struct op *o = op_new(&f->app, b, OP_CREATE, sandbox, "base:latest", "");
        assert_non_null(o);
        assert_int_equal(fixture_commit(f, b), 0);
        return o;
}

static void ends_are_kept(void **state) {
        struct fixture *f = *state;
        char a[ID_SIZE], b[ID_SIZE], c[ID_SIZE];
        struct op *oa = make(f, "s1"), *ob = make(f, "s2"), *oc = make(f, "s3");
        memcpy(a, oa->id, sizeof a);
        memcpy(b, ob->id, sizeof b);
        memcpy(c, oc->id, sizeof c);
        struct db_batch *bt = db_batch_new();
        op_log_append(oa, "some\noutput \x1b[31m\xff", 16);
        op_succeed(&f->app, oa, bt, json_pack("{s:s}", "digest", "x"));
        op_fail(&f->app, ob, bt, API_STORAGE_FULL, "no room \xff");
        op_fail(&f->app, oa, bt, API_INTERNAL, "an end is final");
        assert_int_equal(fixture_commit(f, bt), 0);
        fixture_close(f);
        fixture_open(f);
        oa = op_find(&f->app, a);
        ob = op_find(&f->app, b);
        oc = op_find(&f->app, c);
        assert_int_equal(oa->state, OP_SUCCEEDED);
        assert_string_equal(json_string_value(json_object_get(oa->result, "digest")), "x");
        size_t n;
        uint64_t start;
        assert_memory_equal(op_log_text(oa, 0, &n, &start), "some\noutput ?[31m", 16);
        assert_int_equal(n, 16);
        assert_int_equal(ob->state, OP_FAILED);
        assert_int_equal(ob->code, API_STORAGE_FULL);
        assert_string_equal(ob->message, "no room ?");
        assert_int_equal(oc->state, OP_RUNNING);
        assert_ptr_equal(op_find_for(&f->app, OP_CREATE, "s2"), ob);
        assert_null(op_find_for(&f->app, OP_DELETE, "s2"));
}

struct waited {
        bool done;
        struct op *o;
        enum op_state state;
};

static void on_wait(void *arg, struct op *o) {
        struct waited *w = arg;
        w->done = true;
        w->o = o;
        w->state = o ? o->state : OP_STATE_MAX_;
}

static void waiting(void **state) {
        struct fixture *f = *state;
        struct op *o = make(f, "s");
        struct waited late = { 0 }, end[2] = { 0 }, gone = { 0 }, dropped = { 0 }, after = { 0 };
        assert_non_null(op_wait_start(&f->app, o, 1, on_wait, &late));
        fixture_run(f, &late.done);
        assert_int_equal(late.state, OP_RUNNING);

        assert_non_null(op_wait_start(&f->app, o, 60000, on_wait, &end[0]));
        struct op_wait *w = op_wait_start(&f->app, o, 60000, on_wait, &dropped);
        assert_non_null(op_wait_start(&f->app, o, 60000, on_wait, &end[1]));
        op_wait_cancel(w);
        struct db_batch *b = db_batch_new();
        op_succeed(&f->app, o, b, NULL);
        assert_false(end[0].done); /* later, from the loop */
        assert_int_equal(fixture_commit(f, b), 0);
        fixture_run(f, &end[0].done);
        fixture_run(f, &end[1].done);
        assert_int_equal(end[1].state, OP_SUCCEEDED);
        assert_false(dropped.done);
        assert_non_null(op_wait_start(&f->app, o, 60000, on_wait, &after));
        fixture_run(f, &after.done);

        o = make(f, "t");
        assert_non_null(op_wait_start(&f->app, o, 60000, on_wait, &gone));
        op_discard(&f->app, o);
        fixture_run(f, &gone.done);
        assert_null(gone.o);
}

static void the_log_is_bounded(void **state) {
        struct fixture *f = *state;
        struct op *o = make(f, "s");
        char line[101];
        size_t n;
        uint64_t start;
        for (unsigned i = 0; i < 5000; i++) {
                (void) snprintf(line, sizeof line, "%099u\n", i);
                op_log_append(o, line, 100);
        }
        const char *text = op_log_text(o, 0, &n, &start);
        assert_int_equal(n, OP_LOG_MAX);
        assert_int_equal(start, 500000 - OP_LOG_MAX);
        assert_memory_equal(text + n - 100, line, 100);
        (void) op_log_text(o, 499950, &n, &start);
        assert_int_equal(n, 50);
        assert_int_equal(start, 499950);
        (void) op_log_text(o, 1 << 30, &n, &start);
        assert_int_equal(n, 0);
        assert_int_equal(start, 500000);
}

/* Those that run and those that are waited for stay, however old. */
static void old_ones_go(void **state) {
        struct fixture *f = *state;
        struct op *running = make(f, "r"), *held = make(f, "h"), *old = make(f, "o");
        struct waited w = { 0 };
        char id[ID_SIZE];
        memcpy(id, old->id, sizeof id);
        struct db_batch *b = db_batch_new();
        op_succeed(&f->app, old, b, NULL);
        op_succeed(&f->app, held, b, NULL);
        old->finished_ms = held->finished_ms = clock_real_ms() - 25LL * 3600 * 1000;
        assert_int_equal(fixture_commit(f, b), 0);
        assert_non_null(op_wait_start(&f->app, held, 60000, on_wait, &w));
        struct op *newest = make(f, "n");
        assert_null(op_find(&f->app, id));
        assert_ptr_equal(op_newest(&f->app), newest);
        assert_ptr_equal(op_find(&f->app, running->id), running);
        assert_ptr_equal(op_find(&f->app, held->id), held);
        fixture_run(f, &w.done);
        (void) make(f, "m");
        assert_null(op_find_for(&f->app, OP_CREATE, "h"));
}

static void json(void **state) {
        struct fixture *f = *state;
        struct op *o = make(f, "s");
        op_progress(o, "half", 50, 7);
        json_t *j = op_to_json(o);
        assert_non_null(j);
        assert_string_equal(json_string_value(json_object_get(j, "state")), "running");
        assert_int_equal(json_integer_value(json_object_get(json_object_get(j, "progress"), "percent")), 50);
        assert_true(json_is_null(json_object_get(j, "error")));
        json_decref(j);
        op_progress(o, "not \xff utf-8", -1, -1);
        j = op_to_json(o);
        assert_non_null(j);
        assert_true(json_is_null(json_object_get(json_object_get(j, "progress"), "percent")));
        json_decref(j);
}

#define TEST(fn) cmocka_unit_test_setup_teardown(fn, fixture_setup, fixture_teardown)

int main(void) {
        const struct CMUnitTest tests[] = {
                TEST(ends_are_kept), TEST(waiting), TEST(the_log_is_bounded), TEST(old_ones_go), TEST(json),
        };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
