/* SPDX-License-Identifier: Apache-2.0 */
#include "sandbox/sandbox.h"

#include <errno.h>

#include "fixture.h"
#include "peers/agent_call.h"

static struct sandbox *make(struct fixture *f, int64_t created_ms, enum sandbox_state st) {
        struct sandbox *s = sandbox_alloc(&f->app);
        assert_non_null(s);
        s->created_ms = created_ms;
        s->state = st;
        (void) snprintf(s->digest, sizeof s->digest, "%064d", 1);
        assert_int_equal(sandbox_insert(&f->app, s), 0);
        sandbox_unref(s);
        return s;
}

/* The whole table of moves, written out once more. */
static void legal_moves(void **state) {
        struct fixture *f = *state;
        static const char *const legal[SANDBOX_STATE_MAX_] = {
                /* POOLED SNAPSHOT CREATING RUNNING PAUSING PAUSED RESUMING SUSPENDING SUSPENDED RESTORING STOPPING
                 * STOPPED STARTING ROLLING_BACK FAILED DELETING DELETED */
                [SANDBOX_POOLED] = "...............D.",    [SANDBOX_SNAPSHOT] = "...............D.",
                [SANDBOX_CREATING] = "...R..........FD.",
                [SANDBOX_RUNNING] = "....p..s..o..bFD.",    [SANDBOX_PAUSING] = "...R.P........FD.",
                [SANDBOX_PAUSED] = "......rs..o..bFD.",     [SANDBOX_RESUMING] = "...R.P........FD.",
                [SANDBOX_SUSPENDING] = "...R.P..S.....FD.", [SANDBOX_SUSPENDED] = ".........ro..b.D.",
                [SANDBOX_RESTORING] = "...R....S......D.",  [SANDBOX_STOPPING] = "...........O..FD.",
                [SANDBOX_STOPPED] = "............sb.D.",    [SANDBOX_STARTING] = "...R.......O...D.",
                [SANDBOX_ROLLING_BACK] = ".........r..s..D.", [SANDBOX_FAILED] = "............sb.D.",
                [SANDBOX_DELETING] = "................X",    [SANDBOX_DELETED] = ".................",
        };
        struct sandbox *s = make(f, 1, SANDBOX_CREATING);
        for (enum sandbox_state from = 0; from < SANDBOX_STATE_MAX_; from++)
                for (enum sandbox_state to = 0; to < SANDBOX_STATE_MAX_; to++) {
                        s->state = from;
                        int r = sandbox_move(&f->app, s, to);
                        assert_int_equal(r, legal[from][to] == '.' ? -EPERM : 0);
                        assert_int_equal(s->state, r < 0 ? from : to);
                }
}

struct page {
        const struct sandbox *s[16];
        size_t n;
};

static void add(void *arg, struct sandbox *s) {
        struct page *p = arg;
        p->s[p->n++] = s;
}

static void order_and_pages(void **state) {
        struct fixture *f = *state;
        struct error e = ERROR_INIT;
        /* Not in the order of their times, and two at the same time. */
        int64_t times[] = { 50, 10, 30, 30, 20, 40 };
        for (size_t i = 0; i < ARRAY_SIZE(times); i++)
                (void) make(f, times[i], SANDBOX_RUNNING);
        (void) make(f, 35, SANDBOX_POOLED);
        struct sandbox_filter newest = { 0 }, oldest = { .oldest_first = true };
        for (int way = 0; way < 2; way++) {
                char cursor[SANDBOX_CURSOR_SIZE] = "", next[SANDBOX_CURSOR_SIZE];
                struct page all = { 0 };
                unsigned pages = 0;
                do {
                        assert_int_equal(sandbox_list(&f->app, way ? &oldest : &newest, cursor, 2, add, &all, next, &e), 0);
                        memcpy(cursor, next, sizeof cursor);
                        pages++;
                } while (next[0]);
                assert_int_equal(pages, 3);
                assert_int_equal(all.n, 6);
                for (size_t i = 1; i < all.n; i++) {
                        int64_t a = all.s[i - 1]->created_ms, b = all.s[i]->created_ms;
                        assert_true(way ? a <= b : a >= b);
                        assert_ptr_not_equal(all.s[i - 1], all.s[i]);
                }
        }
        char next[SANDBOX_CURSOR_SIZE];
        struct page p = { 0 };
        const char *bad[] = { "x", "1.", ".", "1.short", "-1.aaaaaaaaaaaaaaaaaaaaaaaaaa", "99999999999999999999.aaaaaaaaaaaaaaaaaaaaaaaaaa" };
        for (size_t i = 0; i < ARRAY_SIZE(bad); i++)
                assert_int_equal(sandbox_list(&f->app, &newest, bad[i], 2, add, &p, next, &e), -EINVAL);
        assert_int_equal(sandbox_count(&f->app, 0), 6);
        assert_int_equal(sandbox_count(&f->app, 1u << SANDBOX_FAILED), 0);
}

static void lookup(void **state) {
        struct fixture *f = *state;
        struct sandbox *s = sandbox_alloc(&f->app), *t = sandbox_alloc(&f->app);
        (void) snprintf(s->name, sizeof s->name, "web");
        (void) snprintf(t->name, sizeof t->name, "web");
        s->state = SANDBOX_RUNNING;
        assert_int_equal(sandbox_insert(&f->app, s), 0);
        assert_int_equal(sandbox_insert(&f->app, t), -EEXIST);
        assert_null(sandbox_find_all(&f->app, t->id));
        assert_ptr_equal(sandbox_find_any(&f->app, "web"), s);
        assert_ptr_equal(sandbox_find_any(&f->app, s->id), s);
        assert_null(sandbox_find(&f->app, "web"));
        s->state = SANDBOX_POOLED;
        assert_null(sandbox_find(&f->app, s->id));
        assert_ptr_equal(sandbox_find_all(&f->app, s->id), s);
        sandbox_take_out(&f->app, s);
        assert_null(sandbox_find_any(&f->app, "web"));
        sandbox_unref(s);
        sandbox_unref(t);
}

static void names(void **state) {
        (void) state;
        const char *good[] = { "a", "web-1", "a.b_c", "0", "abcdefghijklmnopqrstuvwxy" /* 25 */ };
        const char *bad[] = { "", "-a", "A", "a b", "a/b", "abcdefghijklmnopqrstuvwxyz" /* an id */, "\xc3\xa9" };
        for (size_t i = 0; i < ARRAY_SIZE(good); i++)
                assert_true(sandbox_name_valid(good[i]));
        for (size_t i = 0; i < ARRAY_SIZE(bad); i++)
                assert_false(sandbox_name_valid(bad[i]));
}

static void rows(void **state) {
        struct fixture *f = *state;
        char id[ID_SIZE], token[SANDBOX_TOKEN_LEN + 1];
        struct sandbox *s = make(f, 77, SANDBOX_RUNNING);
        (void) snprintf(s->name, sizeof s->name, "n");
        s->memory_mb = 512;
        s->cpus = 2;
        s->disk_bytes = 1ULL << 40;
        s->expires_ms = 123;
        s->ext = json_pack("{s:b}", "autoPause", 1);
        (void) json_object_set_new(s->env, "A", json_string("\xc3\xa9\n\"'"));
        (void) json_object_set_new(s->metadata, "k", json_string("v"));
        memcpy(id, s->id, sizeof id);
        memcpy(token, s->token, sizeof token);
        struct db_batch *b = db_batch_new();
        sandbox_row_insert(s, b);
        s->state = SANDBOX_FAILED;
        (void) snprintf(s->reason, sizeof s->reason, "because");
        sandbox_row_update(s, b);
        assert_int_equal(fixture_commit(f, b), 0);
        fixture_close(f);
        fixture_open(f);
        s = sandbox_find(&f->app, id);
        assert_non_null(s);
        assert_string_equal(s->token, token);
        assert_int_equal(s->state, SANDBOX_FAILED);
        assert_string_equal(s->reason, "because");
        assert_string_equal(json_string_value(json_object_get(s->env, "A")), "\xc3\xa9\n\"'");
        assert_string_equal(json_string_value(json_object_get(s->metadata, "k")), "v");
        assert_true(json_is_true(json_object_get(s->ext, "autoPause")));
        assert_int_equal(s->created_ms, 77);
        assert_int_equal(s->expires_ms, 123);
        assert_int_equal(s->disk_bytes, 1ULL << 40);
        assert_ptr_equal(sandbox_find_any(&f->app, "n"), s);
        b = db_batch_new();
        sandbox_row_delete(s, b);
        assert_int_equal(fixture_commit(f, b), 0);
        fixture_close(f);
        fixture_open(f);
        assert_null(sandbox_find(&f->app, id));
}

static void json_has_no_token(void **state) {
        struct fixture *f = *state;
        struct sandbox *s = make(f, 1, SANDBOX_RUNNING);
        json_t *j = sandbox_to_json(s, true);
        char *text = json_dumps(j, 0), *identity = sandbox_identity(&f->app, s);
        assert_non_null(text);
        assert_null(strstr(text, s->token));
        assert_non_null(strstr(identity, s->token));
        free(identity);
        free(text);
        json_decref(j);
}

static void session_tokens(void **state) {
        struct fixture *f = *state;
        struct sandbox *s = make(f, 1, SANDBOX_RUNNING), *other = make(f, 2, SANDBOX_RUNNING);
        char p[ID_SIZE], q[ID_SIZE], session[ID_SIZE], token[SESSION_TOKEN_SIZE], bad[SESSION_TOKEN_SIZE];
        assert_int_equal(id_new(p), 0);
        assert_int_equal(id_new(q), 0);
        assert_int_equal(id_new(session), 0);
        session_token(s, p, session, token);
        assert_true(session_token_valid(s, p, token));
        assert_false(session_token_valid(s, q, token));
        assert_false(session_token_valid(other, p, token));
        for (size_t i = 0; i < SESSION_TOKEN_SIZE - 1; i++) {
                memcpy(bad, token, sizeof bad);
                bad[i] = bad[i] == 'a' ? 'b' : 'a';
                assert_false(session_token_valid(s, p, bad));
        }
        assert_false(session_token_valid(s, p, ""));
        assert_false(session_token_valid(s, "", token));
}

#define TEST(fn) cmocka_unit_test_setup_teardown(fn, fixture_setup, fixture_teardown)

int main(void) {
        const struct CMUnitTest tests[] = {
                TEST(legal_moves), TEST(order_and_pages), TEST(lookup),           TEST(names),
                TEST(rows),        TEST(json_has_no_token), TEST(session_tokens),
        };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
