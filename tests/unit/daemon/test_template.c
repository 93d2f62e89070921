/* SPDX-License-Identifier: Apache-2.0 */
#include "template/template.h"

#include <errno.h>

#include "fixture.h"
#include "template/template_internal.h"

static void references(void **state) {
        (void) state;
        char ref[TEMPLATE_REF_SIZE];
        struct error e = ERROR_INIT;
        assert_int_equal(template_ref_parse("base", ref, &e), 0);
        assert_string_equal(ref, "base:latest");
        assert_int_equal(template_ref_parse("my.base_1:v1.2-3", ref, &e), 0);
        assert_string_equal(ref, "my.base_1:v1.2-3");
        static char longest[2 * TEMPLATE_NAME_MAX + 2];
        memset(longest, 'a', sizeof longest - 1);
        longest[TEMPLATE_NAME_MAX] = ':';
        assert_int_equal(template_ref_parse(longest, ref, &e), 0);
        assert_string_equal(ref, longest);
        static char too_long[TEMPLATE_NAME_MAX + 2];
        memset(too_long, 'a', sizeof too_long - 1);
        static char huge[100000];
        memset(huge, 'a', sizeof huge - 1);
        const char *bad[] = { "", ":", "a:", ":a", "a:b:c", "A", "a/b", "-a", "a b", "../a", too_long, huge };
        for (size_t i = 0; i < ARRAY_SIZE(bad); i++)
                assert_int_equal(template_ref_parse(bad[i], ref, &e), -EINVAL);
}

static struct tmpl *make(struct fixture *f, int n, const char *ref) {
        char digest[DIGEST_LEN + 1];
        struct tmpl *old = NULL;
        (void) snprintf(digest, sizeof digest, "%064d", n);
        struct db_batch *b = db_batch_new();
        struct tmpl *t = template_add(&f->app, digest, 1 << 20, b);
        assert_non_null(t);
        if (ref)
                assert_int_equal(template_set_tag(&f->app, ref, t, b, &old), 0);
        assert_int_equal(fixture_commit(f, b), 0);
        return t;
}

static void names(void **state) {
        struct fixture *f = *state;
        struct tmpl *a = make(f, 1, "base:latest"), *b = make(f, 2, "base:v1"), *t = NULL;
        char ref[TEMPLATE_REF_SIZE];
        struct error e = ERROR_INIT;
        assert_int_equal(template_resolve(&f->app, "base", &t, ref, &e), 0);
        assert_ptr_equal(t, a);
        assert_int_equal(template_resolve(&f->app, b->digest, &t, ref, &e), 0);
        assert_ptr_equal(t, b);
        assert_string_equal(ref, "");
        assert_int_equal(template_resolve(&f->app, "base:v2", &t, ref, &e), -ENOENT);
        assert_int_equal(template_resolve(&f->app, "Base", &t, ref, &e), -EINVAL);
        const struct tag *g = tag_next(&f->app, NULL);
        assert_string_equal(g->ref, "base:latest");
        g = tag_next(&f->app, g);
        assert_string_equal(g->ref, "base:v1");
        assert_null(tag_next(&f->app, g));
        /* a name moves */
        struct db_batch *bt = db_batch_new();
        struct tmpl *old = NULL;
        assert_int_equal(template_set_tag(&f->app, "base:latest", b, bt, &old), 0);
        assert_ptr_equal(old, a);
        assert_int_equal(fixture_commit(f, bt), 0);
        assert_int_equal(b->n_tags, 2);
        assert_int_equal(a->n_tags, 0);
        fixture_close(f);
        fixture_open(f);
        assert_int_equal(template_resolve(&f->app, "base", &t, ref, &e), 0);
        assert_int_equal(t->n_tags, 2);
}

/* What a manifest says of a process reaches the agent, below what the sandbox says itself. */
static void defaults(void **state) {
        struct fixture *f = *state;
        struct tmpl *t = make(f, 1, "base:latest");
        struct template_defaults d = template_defaults(t);
        assert_string_equal(d.user, "user");
        assert_string_equal(d.workdir, "");
        assert_null(d.env);
        t->manifest = json_loads("{\"config\":{\"user\":\"ada\",\"workdir\":\"/srv\",\"env\":{\"LANG\":\"C.UTF-8\",\"A\":\"t\",\"N\":1}}}", 0, NULL);
        struct sandbox *s = sandbox_alloc(&f->app);
        (void) snprintf(s->digest, sizeof s->digest, "%s", t->digest);
        json_object_set_new(s->env, "A", json_string("s"));
        char *text = sandbox_identity(&f->app, s);
        json_t *j = json_loads(text, 0, NULL), *env = json_object_get(j, "env");
        assert_string_equal(json_string_value(json_object_get(j, "defaultUser")), "ada");
        assert_string_equal(json_string_value(json_object_get(j, "defaultWorkdir")), "/srv");
        assert_string_equal(json_string_value(json_object_get(env, "LANG")), "C.UTF-8");
        assert_string_equal(json_string_value(json_object_get(env, "A")), "s");
        assert_int_equal(json_object_size(env), 2);
        assert_int_equal(json_object_size(s->env), 1);
        json_decref(j);
        free(text);
        sandbox_unref(s);
}

static void in_use(void **state) {
        struct fixture *f = *state;
        struct fixture_result r = { 0 };
        struct error e = ERROR_INIT;
        struct tmpl *t = make(f, 1, "base:latest");
        struct sandbox *s = sandbox_alloc(&f->app);
        s->state = SANDBOX_RUNNING;
        assert_int_equal(sandbox_set_template(&f->app, s, t), 0);
        assert_int_equal(sandbox_insert(&f->app, s), 0);
        sandbox_unref(s);
        assert_int_equal(template_remove(&f->app, "base", fixture_done, &r, &e), -EBUSY);
        assert_int_equal(template_remove(&f->app, t->digest, fixture_done, &r, &e), -EBUSY);
        assert_int_equal(t->n_tags, 1);
        t->pins++;
        assert_int_equal(template_remove(&f->app, "base", fixture_done, &r, &e), -EBUSY);
        t->pins--;
        assert_int_equal(template_remove(&f->app, "none", fixture_done, &r, &e), -ENOENT);
}

#define TEST(fn) cmocka_unit_test_setup_teardown(fn, fixture_setup, fixture_teardown)

int main(void) {
        const struct CMUnitTest tests[] = { TEST(references), TEST(names), TEST(defaults), TEST(in_use) };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
