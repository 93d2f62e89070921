/* SPDX-License-Identifier: Apache-2.0 */
#include "store/key.h"

#include <errno.h>

#include "fixture.h"

struct made {
        bool done;
        int err;
        char id[ID_SIZE];
        char text[KEY_TEXT_LEN + 1];
};

static void on_made(void *arg, int err, const struct error *e, const struct key *k, const char *text) {
        struct made *m = arg;
        (void) e;
        m->done = true;
        m->err = err;
        if (err == 0) {
                memcpy(m->id, k->id, sizeof m->id);
                memcpy(m->text, text, sizeof m->text);
        }
}

static struct made make(struct fixture *f, const char *name) {
        struct made m = { 0 };
        struct error e = ERROR_INIT;
        assert_int_equal(key_create(&f->app, name, db_batch_new(), on_made, &m, &e), 0);
        assert_false(m.done); /* not before it is durable */
        fixture_run(f, &m.done);
        assert_int_equal(m.err, 0);
        return m;
}

static void form(void **state) {
        struct made a = make(*state, "a"), b = make(*state, "b");
        assert_int_equal(strlen(a.text), 44);
        assert_memory_equal(a.text, "e2b_", 4);
        assert_int_equal(strspn(a.text + 4, "0123456789abcdef"), 40);
        assert_string_not_equal(a.text, b.text);
}

static void check(void **state) {
        struct fixture *f = *state;
        struct made m = make(f, "a");
        char wrong[KEY_TEXT_LEN + 1];
        const struct key *k = key_check(&f->app, m.text);
        assert_non_null(k);
        assert_string_equal(k->id, m.id);
        for (size_t i = 0; i < KEY_TEXT_LEN; i++) {
                memcpy(wrong, m.text, sizeof wrong);
                wrong[i] = wrong[i] == '0' ? '1' : '0';
                assert_null(key_check(&f->app, wrong));
        }
        assert_null(key_check(&f->app, ""));
        assert_null(key_check(&f->app, k->hash)); /* what a thief of the database has */
        static char long_one[100000];
        memset(long_one, 'a', sizeof long_one - 1);
        assert_null(key_check(&f->app, long_one));
        fixture_close(f);
        fixture_open(f);
        assert_non_null(key_check(&f->app, m.text));
}

static void revoked_at_once(void **state) {
        struct fixture *f = *state;
        struct made a = make(f, "a"), b = make(f, "b"), c = make(f, "c");
        struct fixture_result r = { 0 };
        struct error e = ERROR_INIT;
        assert_int_equal(key_revoke(&f->app, c.id, fixture_done, &r, &e), 0);
        assert_null(key_check(&f->app, c.text)); /* before the row is gone */
        fixture_run(f, &r.done);
        assert_int_equal(r.err, 0);
        assert_int_equal(key_revoke(&f->app, c.id, fixture_done, &r, &e), -ENOENT);
        struct made d = make(f, "d"); /* the list's end was taken out */
        assert_int_equal(keys_count(f->app.keys), 3);
        fixture_close(f);
        fixture_open(f);
        assert_null(key_check(&f->app, c.text));
        assert_non_null(key_check(&f->app, a.text));
        assert_non_null(key_check(&f->app, b.text));
        assert_non_null(key_check(&f->app, d.text));
}

static void json_has_no_secret(void **state) {
        struct fixture *f = *state;
        struct made m = make(f, "a");
        json_t *j = keys_to_json(&f->app);
        char *text = json_dumps(j, 0);
        assert_null(strstr(text, m.text));
        assert_null(strstr(text, key_find(&f->app, m.id)->hash));
        free(text);
        json_decref(j);
}

#define TEST(fn) cmocka_unit_test_setup_teardown(fn, fixture_setup, fixture_teardown)

int main(void) {
        const struct CMUnitTest tests[] = { TEST(form), TEST(check), TEST(revoked_at_once), TEST(json_has_no_secret) };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
