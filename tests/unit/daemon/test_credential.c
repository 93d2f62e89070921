/* SPDX-License-Identifier: Apache-2.0 */
#include <sys/stat.h>

#include "base/buf.h"
#include "base/json.h"
#include "egress/bindings.h"
#include "egress/credential.h"
#include "fixture.h"

static const char odd[] = "q\"\\\n\x01 \xc3\xa9 end";

static void keep(struct fixture *f, const char *name, const char *secret) {
        struct error e = ERROR_INIT;
        struct db_batch *b = db_batch_new();
        assert_int_equal(credential_set(&f->app, name, &(struct credential_spec){ .secret = secret }, b, &e), 0);
        assert_int_equal(fixture_commit(f, b), 0);
}

static void opens_as(struct fixture *f, const char *name, const char *want) {
        char got[BINDING_SECRET_MAX + 1];
        const struct credential *c = credential_find(&f->app, name);
        assert_non_null(c);
        assert_int_equal(credential_open(&f->app, c, got), want ? 0 : -EBADMSG);
        assert_string_equal(got, want ? want : "");
}

static void sealed(void **state) {
        struct fixture *f = *state;
        struct error e = ERROR_INIT;
        char path[128];
        struct stat st;
        keep(f, "a", "first secret");
        keep(f, "a", odd);
        keep(f, "b", "another one");
        opens_as(f, "a", odd);
        fixture_close(f);
        fixture_open(f);
        opens_as(f, "a", odd);
        opens_as(f, "b", "another one");
        (void) snprintf(path, sizeof path, "%s/" CREDENTIAL_KEY_FILE, f->dir);
        assert_int_equal(stat(path, &st), 0);
        assert_int_equal(st.st_mode & 0777, 0600);
        /* Another key opens nothing, and gives nothing. */
        fixture_close(f);
        assert_int_equal(unlink(path), 0);
        fixture_open(f);
        opens_as(f, "a", NULL);
        struct db_batch *b = db_batch_new();
        static const char *const names[] = { "", "-a", ".a", "a b", "a/b", "\xc3\xa9" };
        for (size_t i = 0; i < ARRAY_SIZE(names); i++)
                assert_int_equal(credential_set(&f->app, names[i], &(struct credential_spec){ .secret = "long enough" }, b, &e), -EINVAL);
        assert_int_equal(credential_set(&f->app, "c", &(struct credential_spec){ .secret = "short" }, b, &e), -EINVAL);
        assert_null(strstr(e.msg, "short"));
        assert_null(credential_find(&f->app, "c"));
        assert_int_equal(credential_remove(&f->app, "c", b), -ENOENT);
        assert_int_equal(credential_remove(&f->app, "a", b), 0);
        assert_int_equal(fixture_commit(f, b), 0);
        assert_null(credential_find(&f->app, "a"));
}

static json_t *make(struct fixture *f, const char *text, int want) {
        _cleanup_json_ json_t *given = NULL;
        struct error e = ERROR_INIT;
        json_t *b = NULL;
        assert_int_equal(json_parse(text, strlen(text), 4096, &given, &e), 0);
        assert_int_equal(binding_make(&f->app, given, &b, &e), want);
        return b;
}

static void bound(void **state) {
        struct fixture *f = *state;
        keep(f, "plain", "plain secret");
        keep(f, "odd", odd);
        _cleanup_json_ json_t *list = json_array(), *env = json_pack("{s:s}", "HAVE", "mine"), *back = NULL;
        (void) json_array_append_new(list, make(f, "{\"credential\":\"plain\",\"hosts\":[\"a.example\"],\"env\":\"TOKEN\"}", 0));
        (void) json_array_append_new(list, make(f, "{\"credential\":\"plain\",\"hosts\":[\"b.example\"],\"env\":\"HAVE\",\"id\":\"two\"}", 0));
        (void) json_array_append_new(list, make(f, "{\"credential\":\"odd\",\"hosts\":[\"c.example\"],\"inject\":{\"as\":\"query\",\"name\":\"k\"}}", 0));
        assert_null(make(f, "{\"credential\":\"odd\",\"hosts\":[\"c.example\"]}", -EINVAL)); /* no header has lines */
        assert_null(make(f, "{\"credential\":\"none\",\"hosts\":[\"c.example\"]}", -ENOENT));
        assert_null(make(f, "{\"credential\":\"plain\",\"hosts\":[\"*\"]}", -EINVAL));
        assert_null(make(f, "{\"credential\":\"plain\",\"hosts\":[\"c.example\"],\"used\":1}", -EINVAL));
        assert_int_equal(bindings_check(list, NULL), 0);
        assert_true(bindings_name(list, "odd") && !bindings_name(list, "other") && !bindings_name(NULL, "odd"));
        /* Secrets as JSON that reads back as they are; each once. */
        struct buf out = BUF_INIT(0);
        assert_int_equal(bindings_write_secrets(&f->app, list, &out), 0);
        assert_int_equal(json_parse(buf_data(&out), out.len, 4096, &back, NULL), 0);
        assert_int_equal(json_object_size(back), 2);
        assert_string_equal(json_string_value(json_object_get(json_object_get(back, "odd"), "secret")), odd);
        assert_string_equal(json_string_value(json_object_get(json_object_get(back, "plain"), "secret")), "plain secret");
        buf_done(&out);
        /* Placeholders, but not over what is set. */
        assert_int_equal(bindings_add_env(list, env), 0);
        assert_true(placeholder_valid(json_string_value(json_object_get(env, "TOKEN"))));
        assert_string_equal(json_string_value(json_object_get(env, "HAVE")), "mine");
        assert_true(bindings_count_use(list, "two", 3) && bindings_count_use(list, "two", 2) && !bindings_count_use(list, "x", 1));
        assert_int_equal(json_integer_value(json_object_get(json_array_get(list, 1), "used")), 5);
}

/* With a provider: what is stored is what a token is got with, and the token is in memory alone. */
static void provided(void **state) {
        struct fixture *f = *state;
        struct error e = ERROR_INIT;
        char got[BINDING_SECRET_MAX + 1];
        _cleanup_json_ json_t *one = json_pack("{s:s}", "client_id", "me"), *two = json_pack("{s:s}", "client_id", "other"),
                              *command = json_pack("{s:s}", "command", "get");
        struct credential_spec spec = { .provider = CREDENTIAL_OAUTH2, .secret = "abc", .settings = one };
        struct db_batch *b = db_batch_new();
        assert_int_equal(credential_set(&f->app, "o", &(struct credential_spec){ .provider = CREDENTIAL_OAUTH2, .settings = one }, b, &e), -EINVAL);
        assert_null(credential_find(&f->app, "o"));
        assert_int_equal(credential_set(&f->app, "o", &spec, b, &e), 0);
        assert_int_equal(credential_set(&f->app, "c", &(struct credential_spec){ .provider = CREDENTIAL_COMMAND, .settings = command }, b, &e), 0);
        assert_int_equal(fixture_commit(f, b), 0);
        const struct credential *c = credential_find(&f->app, "o");
        assert_int_equal(credential_open(&f->app, c, got), -ENOENT);
        assert_int_equal(credential_open_own(&f->app, c, got), 0);
        assert_string_equal(got, "abc");
        assert_int_equal(credential_set_token(&f->app, credential_find_own(&f->app, "o"), "the token", 77), 0);
        opens_as(f, "o", "the token");
        assert_int_equal(credential_expires_ms(c), 77);
        /* Another secret with the same settings leaves the token, other settings end it. */
        spec.secret = "another";
        b = db_batch_new();
        assert_int_equal(credential_set(&f->app, "o", &spec, b, &e), 0);
        opens_as(f, "o", "the token");
        spec = (struct credential_spec){ .provider = CREDENTIAL_OAUTH2, .settings = two };
        assert_int_equal(credential_set(&f->app, "o", &spec, b, &e), 0);
        assert_int_equal(credential_open(&f->app, c, got), -ENOENT);
        assert_int_equal(credential_open_own(&f->app, c, got), 0);
        assert_string_equal(got, "another");
        assert_int_equal(fixture_commit(f, b), 0);
        fixture_close(f);
        fixture_open(f);
        c = credential_find(&f->app, "o");
        assert_int_equal(credential_provider(c), CREDENTIAL_OAUTH2);
        assert_true(json_equal(credential_settings(c), two));
        assert_int_equal(credential_open(&f->app, c, got), -ENOENT);
        assert_int_equal(credential_open_own(&f->app, c, got), 0);
        assert_int_equal(credential_provider(credential_find(&f->app, "c")), CREDENTIAL_COMMAND);
        assert_int_equal(credential_open_own(&f->app, credential_find(&f->app, "c"), got), -ENOENT);
        /* The secret is needed again when the provider becomes another one. */
        b = db_batch_new();
        assert_int_equal(credential_set(&f->app, "c", &spec, b, &e), -EINVAL);
        assert_int_equal(credential_provider(credential_find(&f->app, "c")), CREDENTIAL_COMMAND);
        db_batch_free(b);
}

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test_setup_teardown(provided, fixture_setup, fixture_teardown),
                cmocka_unit_test_setup_teardown(sealed, fixture_setup, fixture_teardown),
                cmocka_unit_test_setup_teardown(bound, fixture_setup, fixture_teardown),
        };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
