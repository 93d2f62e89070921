/* SPDX-License-Identifier: Apache-2.0 */
#include "base/json.h"
#include "egress/policies.h"
#include "fixture.h"

static json_t *parse(const char *text) {
        json_t *j = NULL;
        assert_int_equal(json_parse(text, strlen(text), 65536, &j, NULL), 0);
        return j;
}

static void allow_is(const char *list, const char *want) {
        _cleanup_json_ json_t *l = parse(list), *w = parse(want), *got = NULL;
        _cleanup_policy_ struct policy *p = NULL;
        struct error e = ERROR_INIT;
        assert_int_equal(policy_from_allow(l, &got, &e), 0);
        assert_true(json_equal(got, w));
        assert_int_equal(policy_check(NULL, got, &p, &e), 0); /* what is made is a policy */
}

static void allow(void **state) {
        (void) state;
        allow_is("[]", "{\"rules\":[]}");
        allow_is("[\"a.example\",\"*.b.example\",\"c.example:443\",\"d.example:80\"]",
                 "{\"rules\":[{\"name\":\"allow\",\"action\":\"allow\",\"hosts\":[\"a.example\",\"*.b.example\",\"c.example:443\",\"d.example:80\"]}]}");
        allow_is("[\"g.example:22\",\"8.8.8.8\",\"1.0.0.0/8\"]",
                 "{\"rules\":[{\"name\":\"allow-ports\",\"action\":\"allow\",\"hosts\":[\"g.example:22\"],\"protocol\":\"any\"},"
                 "{\"name\":\"allow-addresses\",\"action\":\"allow\",\"cidr\":[\"8.8.8.8\",\"1.0.0.0/8\"]}]}");
}

static void request(const char *body, int want, const char *says) {
        _cleanup_json_ json_t *b = parse(body), *got = NULL;
        struct error e = ERROR_INIT;
        assert_int_equal(policy_from_request(b, &got, &e), want);
        if (says)
                assert_non_null(strstr(want < 0 ? e.msg : json_string_value(json_array_get(
                                       json_object_get(json_array_get(json_object_get(got, "rules"), 0), "hosts"), 0)), says));
        else
                assert_null(got);
}

static void requests(void **state) {
        (void) state;
        request("{}", 0, NULL);
        request("{\"policy\":null}", 0, NULL);
        request("{\"policy\":\"@packages\"}", 0, "@packages");
        request("{\"allow\":[\"a.example\"]}", 0, "a.example");
        request("{\"policy\":{\"rules\":[{\"hosts\":[\"x\"]}]}}", 0, "x");
        request("{\"policy\":\"packages\"}", -EINVAL, "policy: ");
        request("{\"policy\":[]}", -EINVAL, "policy: ");
        request("{\"policy\":\"none\",\"allow\":[]}", -EINVAL, "both");
        request("{\"allow\":{}}", -EINVAL, "allow");
        request("{\"allow\":[1]}", -EINVAL, "item 1");
}

static void presets(void **state) {
        (void) state;
        _cleanup_json_ json_t *manifest = parse("{\"config\":{\"hosts\":{\"packages\":[\"deb.example:80\",7,\"*.py.example\"],\"odd\":5}}}"),
                              *want = parse("{\"@packages\":[\"deb.example:80\",\"*.py.example\"],\"@odd\":[]}"),
                              *uses = parse("{\"rules\":[{\"action\":\"allow\",\"hosts\":[\"@packages\"]}]}");
        const struct tmpl t = { .manifest = manifest };
        struct error e = ERROR_INIT;
        struct policy *p = NULL;
        _cleanup_json_ json_t *got = policy_presets(&t), *none = policy_presets(NULL);
        assert_true(json_equal(got, want));
        assert_int_equal(json_object_size(none), 0);
        assert_int_equal(policy_check(&t, uses, &p, &e), 0);
        assert_int_equal(policy_dns(p, "deb.example").outcome, POLICY_ALLOW);
        assert_int_equal(policy_dns(p, "other.example").outcome, POLICY_DENY);
        policy_unref(p);
        p = NULL;
        assert_int_equal(policy_check(NULL, uses, &p, &e), -EINVAL);
        assert_non_null(strstr(e.msg, "@packages"));
        assert_int_equal(policy_check(&t, NULL, &p, &e), 0);
        assert_null(p);
}

static void of_templates(void **state) {
        struct fixture *f = *state;
        struct app *app = &f->app;
        _cleanup_json_ json_t *one = parse("{\"rules\":[]}"), *two = parse("{\"rules\":[{\"action\":\"deny\",\"hosts\":[\"*\"]}]}");
        static const char digest[] = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";
        assert_null(policy_of_template(app, "a:latest", digest));
        struct db_batch *b = db_batch_new();
        assert_int_equal(policy_set_template(app, "a:latest", one, b), 0);
        assert_int_equal(policy_set_template(app, "a:latest", two, b), 0);
        assert_int_equal(policy_set_template(app, digest, one, b), 0);
        assert_int_equal(fixture_commit(f, b), 0);
        for (int i = 0; i < 2; i++) {
                assert_true(json_equal(policy_of_template(app, "a:latest", digest), two));
                assert_true(json_equal(policy_of_template(app, "b:latest", digest), one));
                fixture_close(f);
                fixture_open(f);
        }
        b = db_batch_new();
        assert_int_equal(policy_set_template(app, "a:latest", NULL, b), 0);
        assert_int_equal(policy_set_template(app, "c:latest", NULL, b), 0);
        assert_int_equal(fixture_commit(f, b), 0);
        assert_true(json_equal(policy_of_template(app, "a:latest", digest), one));
}

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(allow),
                cmocka_unit_test(requests),
                cmocka_unit_test(presets),
                cmocka_unit_test_setup_teardown(of_templates, fixture_setup, fixture_teardown),
        };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
