/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Each allocation of each operation fails once: nothing crashes or leaks, what fails says so, and what decides about
 * access denies or says what it says with memory. The allocators of this program and of jansson are replaced by
 * the linker (--wrap).
 */

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/str.h"
#include "dns/dns_names.h"
#include "policy/audit.h"
#include "policy/binding.h"
#include "policy/policy.h"
#include "test.h"

void *__real_malloc(size_t n);
void *__real_calloc(size_t n, size_t m);
void *__real_realloc(void *p, size_t n);
void *__real_reallocarray(void *p, size_t n, size_t m);
char *__real_strdup(const char *s);
char *__real_strndup(const char *s, size_t n);
void *__wrap_malloc(size_t n);
void *__wrap_calloc(size_t n, size_t m);
void *__wrap_realloc(void *p, size_t n);
void *__wrap_reallocarray(void *p, size_t n, size_t m);
char *__wrap_strdup(const char *s);
char *__wrap_strndup(const char *s, size_t n);

static long fail_in = -1; /* this many more allocations succeed; negative: all */
static bool failed;

static bool fails(void) {
        if (fail_in < 0 || fail_in-- > 0)
                return false;
        failed = true;
        return true;
}

void *__wrap_malloc(size_t n) {
        return fails() ? NULL : __real_malloc(n);
}
void *__wrap_calloc(size_t n, size_t m) {
        return fails() ? NULL : __real_calloc(n, m);
}
void *__wrap_realloc(void *p, size_t n) {
        return fails() ? NULL : __real_realloc(p, n);
}
void *__wrap_reallocarray(void *p, size_t n, size_t m) {
        return fails() ? NULL : __real_reallocarray(p, n, m);
}
char *__wrap_strdup(const char *s) {
        return fails() ? NULL : __real_strdup(s);
}
char *__wrap_strndup(const char *s, size_t n) {
        return fails() ? NULL : __real_strndup(s, n);
}

/* Runs f with the first, second, ... allocation failing, until one run has none to fail. f returns 0 or what failed. */
static void each(const char *what, int (*f)(void)) {
        unsigned n = 0;
        for (;; n++) {
                failed = false;
                fail_in = (long) n;
                int r = f();
                fail_in = -1;
                if (!failed) {
                        if (r != 0)
                                fail_msg("%s: %d with memory", what, r);
                        break;
                }
                /* jansson calls any failure of its own a syntax error. */
                if (r != -ENOMEM && r != -EINVAL && r != 0)
                        fail_msg("%s: %d at allocation %u", what, r, n);
        }
        assert_true(n > 3);
}

static const char rules[] = "{\"limits\":{\"names\":5},\"rules\":["
                            "{\"name\":\"no\",\"action\":\"deny\",\"hosts\":[\"bad.a.test\",\"@p\"],\"ports\":[80,\"100-200\"]},"
                            "{\"name\":\"yes\",\"action\":\"allow\",\"hosts\":[\"*.a.test\",\"b.test:8443\"],\"methods\":[\"GET\",\"PUT\"],"
                            "\"paths\":[\"/x/*\",\"/y%2f**\"],\"limits\":{\"connections\":3}},"
                            "{\"action\":\"allow\",\"cidr\":[\"10.0.0.0/8\",\"1.2.3.4\"],\"internal\":true}]}";
static const char *const preset_hosts[] = { "p.test", "*.q.test:81" };
static const struct policy_preset preset = { "@p", preset_hosts, 2 };
static const struct policy_context context = { &preset, 1, NULL };
static struct policy *policy;

static int parse(void) {
        struct policy *p = NULL;
        struct error err = ERROR_INIT;
        int r = policy_parse(rules, sizeof rules - 1, &context, &p, &err);
        assert_int_equal(r < 0, p == NULL);
        assert_int_equal(r, err.code);
        policy_unref(p);
        return r;
}

static int parse_preset(void) {
        struct policy *p = NULL;
        int r = policy_parse("\"@p\"", 4, &context, &p, NULL);
        assert_int_equal(r < 0, p == NULL);
        policy_unref(p);
        return r;
}

static int of_hosts(void) {
        json_t *j = policy_json_of_hosts(preset_hosts, 2);
        int r = j ? 0 : -ENOMEM;
        json_decref(j);
        return r;
}

static int request(void) {
        struct host h;
        host_parse("w.a.test", 8, &h, NULL);
        struct policy_verdict v = policy_request(policy, &h, 443, POLICY_TLS, "GET", "/x/a;b%2fc");
        /* Ambiguous with memory, undecided without: never allowed. */
        assert_int_equal(v.outcome, POLICY_DENY);
        if (v.reason == REASON_INTERNAL)
                return -ENOMEM;
        assert_int_equal(v.reason, REASON_PATH_AMBIGUOUS);
        v = policy_request(policy, &h, 443, POLICY_TLS, "GET", "/x/a");
        return v.outcome == POLICY_ALLOW ? 0 : -ENOMEM;
}

static int explain(void) {
        json_t *j = NULL;
        int r = policy_explain(policy, "https://w.a.test/x/a", NULL, &j, NULL);
        assert_int_equal(r < 0, j == NULL);
        json_decref(j);
        return r;
}

static const char binding_text[] =
        "[{\"id\":\"q\",\"credential\":\"c\",\"hosts\":[\"q.test\"],\"inject\":{\"as\":\"query\",\"name\":\"k\"}},"
        "{\"id\":\"b\",\"credential\":\"c\",\"hosts\":[\"a.test\",\"*.a.test\"],\"methods\":[\"GET\"],\"paths\":[\"/x/\"],"
        "\"placeholder\":\"aaaaaaaaaaaaaaaaaaaaaaaaaaaa\",\"inject\":{\"as\":\"basic\",\"user\":\"u\"}}]";
static json_t *binding_list;
static struct bindings *loaded;

static int load(void) {
        struct bindings *b = NULL;
        int r = bindings_new(&b);
        if (r == 0)
                r = bindings_load(b, binding_list, NULL);
        if (r < 0 && b)
                assert_int_equal(bindings_count(b), 0);
        if (r == 0)
                r = bindings_set_secret(b, "c", "secret-secret", 13, 0, NULL);
        bindings_free(b);
        return r;
}

static int inject_into(const char *host, const char *target) {
        const struct http1_field fields[] = { { "Authorization", "Basic dTpw" }, { "X", "Basic dTpw" } };
        _cleanup_buf_ struct buf out = { 0 };
        struct mask *m = NULL;
        struct host h;
        host_parse(host, strlen(host), &h, NULL);
        const struct binding_request q = { .host = &h, .port = 443, .protocol = POLICY_TLS, .method = "GET", .target = target,
                                           .fields = fields, .n_fields = 2 };
        struct binding_use u = bindings_judge(loaded, &q, 0, 1);
        if (u.outcome != BINDING_ADD) {
                assert_int_equal(u.outcome, BINDING_DENY);
                return -ENOMEM;
        }
        int r = binding_write_target(&u, target, &out);
        if (r == 0)
                r = binding_write_fields(&u, &out);
        if (r == 0)
                r = mask_new(&u, &m);
        if (r == 0)
                r = mask_feed(m, "x secret-secret y sec", 21, &out);
        if (r == 0)
                r = mask_end(m, &out);
        mask_free(m);
        return r;
}

static int inject_basic(void) {
        return inject_into("w.a.test", "/x/a?b");
}

static int inject_query(void) {
        return inject_into("q.test", "/x/a?k=1&b");
}

static int record(void) {
        _cleanup_buf_ struct buf line = { 0 }, text = { 0 };
        struct audit a, back;
        audit_init(&a, AUDIT_REQUEST, 1, NULL);
        audit_set_host(&a, "a.test", 6);
        audit_set_path(&a, "/x");
        a.port = 443;
        a.bytes_in = 5;
        int r = audit_json(&a, &line);
        if (r == 0)
                r = audit_text(&a, &text);
        if (r < 0)
                return r;
        r = audit_parse((const char *) buf_data(&line), line.len, &back, NULL);
        if (r == 0)
                assert_true(audit_same(&a, &back)); /* whole, or not at all */
        return r;
}

static int names(void) {
        struct dns_names *n = NULL, *m = NULL;
        json_t *j = NULL;
        struct in_addr a;
        char name[32];
        int r = dns_names_new(1, 100, &n);
        for (unsigned i = 0; r == 0 && i < 70; i++) {
                snprintf(name, sizeof name, "n%u.test", i);
                r = dns_names_get(n, name, &a, NULL);
                if (r == 0)
                        assert_string_equal(dns_names_lookup(n, a), name);
        }
        if (r == 0)
                r = dns_names_save(n, &j, NULL);
        if (r == 0)
                r = dns_names_new(1, 100, &m);
        if (r == 0) {
                r = dns_names_restore(m, j, NULL);
                assert_int_equal(dns_names_count(m), r < 0 ? 0 : 70);
        }
        json_decref(j);
        dns_names_free(n);
        dns_names_free(m);
        return r;
}

static void test_all(void **state) {
        (void) state;
        each("parse", parse);
        each("parse_preset", parse_preset);
        each("of_hosts", of_hosts);
        each("request", request);
        each("explain", explain);
        each("load", load);
        each("inject_basic", inject_basic);
        each("inject_query", inject_query);
        each("record", record);
        each("names", names);
}

static int setup(void **state) {
        (void) state;
        json_set_alloc_funcs(__wrap_malloc, free);
        if (policy_parse(rules, sizeof rules - 1, &context, &policy, NULL) < 0 || bindings_new(&loaded) < 0 ||
            json_parse(binding_text, sizeof binding_text - 1, 4096, &binding_list, NULL) < 0 ||
            bindings_load(loaded, binding_list, NULL) < 0 || bindings_set_secret(loaded, "c", "secret-secret", 13, 0, NULL) < 0)
                return -1;
        return 0;
}

static int teardown(void **state) {
        (void) state;
        policy_unref(policy);
        bindings_free(loaded);
        json_decref(binding_list);
        return 0;
}

int main(void) {
        const struct CMUnitTest tests[] = { cmocka_unit_test(test_all) };
        return cmocka_run_group_tests(tests, setup, teardown);
}
