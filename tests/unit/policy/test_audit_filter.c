/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/str.h"
#include "policy/audit_filter.h"
#include "test.h"

#define NOW 1700000000000
#define ID "abcdefghijklmnopqrstuvwxyz"

static struct audit record(void) {
        struct audit a;
        const struct policy_verdict v = { .outcome = POLICY_DENY, .reason = REASON_METHOD, .rule_name = "api" };
        audit_init(&a, AUDIT_REQUEST, NOW - 60000, ID);
        audit_verdict(&a, &v);
        audit_set_host(&a, "www.api.test", 12);
        audit_set_method(&a, "POST");
        strcpy(a.address, "93.184.216.34");
        strcpy(a.binding, "b1");
        a.port = 443;
        return a;
}

static void test_match(void **state) {
        static const struct {
                const char *key, *value;
                bool want;
        } rows[] = {
                { "since", "60s", true },
                { "since", "1m", true },
                { "since", "59s", false },
                { "since", "2023-11-14T22:12:20Z", true },
                { "since", "2023-11-14T22:12:21Z", false },
                { "until", "60s", false },
                { "until", "59s", true },
                { "sandbox", ID, true },
                { "sandbox", "bbcdefghijklmnopqrstuvwxyz", false },
                { "host", "www.api.test", true },
                { "host", "WWW.api.test.", true },
                { "host", "*.api.test", true },
                { "host", "*", true },
                { "host", "*.test", true },
                { "host", "api.test", false },
                { "host", "www.api.test:443", true },
                { "host", "www.api.test:80", false },
                { "host", "93.184.216.34", true },
                { "host", "93.184.216.34:443", true },
                { "host", "93.184.216.34:80", false },
                { "host", "93.184.216.35", false },
                { "verdict", "deny", true },
                { "verdict", "allow", false },
                { "kind", "request", true },
                { "kind", "dns", false },
                { "rule", "api", true },
                { "rule", "ap", false },
                { "reason", "method", true },
                { "reason", "path", false },
                { "binding", "b1", true },
                { "binding", "b2", false },
                { "method", "POST", true },
                { "method", "post", false },
        };
        (void) state;
        struct audit a = record();
        for (size_t i = 0; i < ARRAY_SIZE(rows); i++) {
                _cleanup_(audit_filter_freep) struct audit_filter *f = NULL;
                struct error err = ERROR_INIT;
                assert_int_equal(audit_filter_new(&f), 0);
                assert_true(audit_filter_match(f, &a));
                if (audit_filter_set(f, rows[i].key, rows[i].value, NOW, &err) < 0)
                        fail_msg("%s", err.msg);
                if (audit_filter_match(f, &a) != rows[i].want)
                        fail_msg("%s=%s is not %d", rows[i].key, rows[i].value, rows[i].want);
        }
        assert_true(audit_filter_match(NULL, &a));
}

/* All that is given must fit. */
static void test_several(void **state) {
        (void) state;
        struct audit a = record();
        _cleanup_(audit_filter_freep) struct audit_filter *f = NULL;
        assert_int_equal(audit_filter_new(&f), 0);
        assert_int_equal(audit_filter_set(f, "host", "*.api.test", NOW, NULL), 0);
        assert_int_equal(audit_filter_set(f, "verdict", "deny", NOW, NULL), 0);
        assert_true(audit_filter_match(f, &a));
        assert_int_equal(audit_filter_set(f, "kind", "dns", NOW, NULL), 0);
        assert_false(audit_filter_match(f, &a));
        /* A record without a host. */
        a.kind = AUDIT_DNS;
        assert_true(audit_filter_match(f, &a));
        a.host[0] = '\0';
        assert_false(audit_filter_match(f, &a));
}

static void test_refused(void **state) {
        static const struct {
                const char *key, *value, *message;
        } rows[] = {
                { "colour", "red", "\"colour\" is not something" },
                { "since", "yesterday", "since: " },
                { "since", "", "since: " },
                { "since", "99999999999999d", "since: " },
                { "since", "60000000000s", "since: " },
                { "sandbox", "short", "sandbox: " },
                { "host", "a b", "host: " },
                { "host", "a.test:0", "host: " },
                { "host", "", "host: " },
                { "verdict", "ask", "verdict: \"ask\" is not allow or deny" },
                { "kind", "", "kind: \"\" is not dns, connect, request, packets or lost" },
                { "reason", "because", "reason: " },
                { "rule", "", "rule: " },
                { "method", "MMMMMMMMMMMMMMMMMMMMMMMMMMMMMMMMM", "method: " },
        };
        (void) state;
        _cleanup_(audit_filter_freep) struct audit_filter *f = NULL;
        assert_int_equal(audit_filter_new(&f), 0);
        for (size_t i = 0; i < ARRAY_SIZE(rows); i++) {
                struct error err = ERROR_INIT;
                if (audit_filter_set(f, rows[i].key, rows[i].value, NOW, &err) != -EINVAL || !str_has_prefix(err.msg, rows[i].message))
                        fail_msg("%s=%s: %s", rows[i].key, rows[i].value, err.msg);
                assert_int_equal(audit_filter_set(f, rows[i].key, rows[i].value, NOW, NULL), -EINVAL);
        }
        /* What was refused is not set; what is set is not set again. */
        struct audit a = record();
        assert_true(audit_filter_match(f, &a));
        assert_int_equal(audit_filter_set(f, "host", "a.test", NOW, NULL), 0);
        assert_int_equal(audit_filter_set(f, "host", "b.test", NOW, NULL), -EINVAL);
}

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(test_match),
                cmocka_unit_test(test_several),
                cmocka_unit_test(test_refused),
        };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
