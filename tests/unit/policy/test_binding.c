/* SPDX-License-Identifier: Apache-2.0 */

/* Bindings: which request gets which credential, and what the guest's own head loses (attack catalogue G). */

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/str.h"
#include "policy/binding.h"
#include "test.h"

#define PH "cspaceplaceholderaaaaaaaaaaaaaaaaaaaaaaaaaa"
#define SECRET "s3cr3t-v4lue"
#define WALL 1700000000000

#define HEADER "'inject':{'as':'header','name':'Authorization','template':'Bearer {secret}'}"
#define ONE(more) "[{'id':'b1','credential':'c1','hosts':['api.test']," more "}]"

static json_t *json(const char *text) {
        _cleanup_free_ char *s = strdup(text);
        json_t *j = NULL;
        for (char *c = s; *c; c++)
                *c = *c == '\'' ? '"' : *c;
        struct error err = ERROR_INIT;
        if (json_parse(s, strlen(s), 65536, &j, &err) < 0)
                fail_msg("%s: %s", text, err.msg);
        return j;
}

static void load(struct bindings *b, const char *text) {
        _cleanup_json_ json_t *j = json(text);
        struct error err = ERROR_INIT;
        if (bindings_load(b, j, &err) < 0)
                fail_msg("%s: %s", text, err.msg);
}

static struct bindings *with(const char *text) {
        struct bindings *b = NULL;
        assert_int_equal(bindings_new(&b), 0);
        load(b, text);
        assert_int_equal(bindings_set_secret(b, "c1", SECRET, strlen(SECRET), 0, NULL), 0);
        return b;
}
#define _cleanup_bindings_ _cleanup_(bindings_freep)

struct request {
        const char *host;
        unsigned port;
        enum policy_protocol protocol;
        const char *method, *target;
        struct http1_field fields[8];
};

static struct binding_use judge(struct bindings *b, const struct request *q, struct host *h, uint64_t now, int64_t wall) {
        struct binding_request r = { .host = h, .port = (uint16_t) (q->port ? q->port : 443),
                                     .protocol = q->protocol ? q->protocol : POLICY_TLS, .method = q->method ? q->method : "GET",
                                     .target = q->target ? q->target : "/", .fields = q->fields };
        while (r.n_fields < 8 && q->fields[r.n_fields].name)
                r.n_fields++;
        assert_int_equal(host_parse(q->host ? q->host : "api.test", strlen(q->host ? q->host : "api.test"), h, NULL), 0);
        return bindings_judge(b, &r, now, wall);
}

/* Outcome, then what goes out: target and fields. */
static void check(struct bindings *b, struct request q, const char *want) {
        struct host h;
        _cleanup_buf_ struct buf out = { 0 };
        struct binding_use u = judge(b, &q, &h, 0, WALL);
        if (u.outcome == BINDING_DENY) {
                buf_printf(&out, "deny %s %s", u.id ? u.id : "-", policy_reason_name(u.reason));
        } else {
                buf_printf(&out, "%s %s ", u.outcome == BINDING_ADD ? "add" : "none", u.id ? u.id : "-");
                assert_int_equal(binding_write_target(&u, q.target ? q.target : "/", &out), 0);
                for (size_t i = 0; i < 8 && q.fields[i].name; i++)
                        if (!binding_leaves_out(&u, q.fields[i].name))
                                buf_printf(&out, " %s:%s", q.fields[i].name, q.fields[i].value);
                buf_puts(&out, " | ");
                assert_int_equal(binding_write_fields(&u, &out), 0);
        }
        if (!str_eq(buf_str(&out), want))
                fail_msg("%s\nnot %s", buf_str(&out), want);
}
#define Q(...) ((struct request){ __VA_ARGS__ })
#define F(n, v) { (n), (v) }
#define ADDED "accept-encoding: identity\r\nauthorization: Bearer " SECRET "\r\n"

static void test_header(void **state) {
        (void) state;
        _cleanup_bindings_ struct bindings *b = with(ONE(HEADER ",'placeholder':'" PH "'"));
        check(b, Q(.target = "/x?a=1"), "add b1 /x?a=1 | " ADDED);
        /* XG04, XG05: whatever it is called, the guest's own goes. */
        check(b, Q(.fields = { F("Accept", "*/*"), F("AUTHORIZATION", "Bearer mine"), F("authorization", "Basic x"), F("Accept-Encoding", "br") }),
              "add b1 / Accept:*/* | " ADDED);
        check(b, Q(.fields = { F("Authorization", "Bearer " PH) }), "add b1 / | " ADDED);
        check(b, Q(.fields = { F("X-Authorization", "mine") }), "add b1 / X-Authorization:mine | " ADDED);
        /* XG01, XG02: elsewhere it is not replaced, and goes nowhere. */
        check(b, Q(.host = "evil.test", .fields = { F("Authorization", "Bearer " PH) }), "deny - placeholder");
        check(b, Q(.host = "evil.test", .target = "/" PH), "deny - placeholder");
        check(b, Q(.host = "evil.test", .target = "/?x=" PH), "deny - placeholder");
        check(b, Q(.target = "/?x=" PH), "deny - placeholder");
        check(b, Q(.fields = { F("Cookie", "a=" PH) }), "deny - placeholder");
        check(b, Q(.fields = { F("X-" PH, "a") }), "deny - placeholder");
        /* "user:" PH in base64. */
        check(b, Q(.host = "evil.test",
                   .fields = { F("Authorization", "Basic dXNlcjpjc3BhY2VwbGFjZWhvbGRlcmFhYWFhYWFhYWFhYWFhYWFhYWFhYWFhYWFh") }),
              "deny - placeholder");
        check(b, Q(.host = "evil.test", .fields = { F("Authorization", "Basic dXNlcjpwYXNz") }), "none - / Authorization:Basic dXNlcjpwYXNz | ");
        check(b, Q(.host = "evil.test", .fields = { F("Authorization", "Bearer mine") }), "none - / Authorization:Bearer mine | ");
        /* XG08, XG09: plain HTTP, other ports, addresses. */
        check(b, Q(.protocol = POLICY_HTTP, .port = 80, .fields = { F("Authorization", "Bearer " PH) }), "none - / | ");
        check(b, Q(.protocol = POLICY_HTTP, .port = 443), "none - / | ");
        check(b, Q(.port = 8443, .fields = { F("Authorization", "x") }), "none - / | ");
        check(b, Q(.host = "1.2.3.4"), "none - / | ");
        check(b, Q(.host = "x.api.test"), "none - / | ");
        check(b, Q(.host = "evilapi.test"), "none - / | ");
}

static void test_underscore(void **state) {
        (void) state;
        _cleanup_bindings_ struct bindings *b = with(ONE("'inject':{'as':'header','name':'X-Api-Key'}"));
        check(b, Q(.fields = { F("X_Api_Key", "mine"), F("x-api_key", "mine"), F("X-Api-Keys", "other") }),
              "add b1 / X-Api-Keys:other | accept-encoding: identity\r\nx-api-key: " SECRET "\r\n");
}

static void test_conditions(void **state) {
        (void) state;
        _cleanup_bindings_ struct bindings *b = with(
                "[{'id':'b1','credential':'c1','hosts':['api.test','*.api.test:8443'],'methods':['GET'],'paths':['/repos/acme/']," HEADER "}]");
        check(b, Q(.target = "/repos/acme/x"), "add b1 /repos/acme/x | " ADDED);
        check(b, Q(.target = "/repos/acme/x", .host = "x.api.test", .port = 8443), "add b1 /repos/acme/x | " ADDED);
        check(b, Q(.target = "/repos/acme/x", .host = "x.api.test"), "none - /repos/acme/x | ");
        /* XG12: no credential, and none of the guest's either. */
        check(b, Q(.method = "POST", .target = "/repos/acme/x", .fields = { F("Authorization", "mine") }), "none - /repos/acme/x | ");
        check(b, Q(.method = "get", .target = "/repos/acme/x"), "none - /repos/acme/x | ");
        check(b, Q(.target = "/repos/evil/x", .fields = { F("Authorization", "mine") }), "none - /repos/evil/x | ");
        check(b, Q(.target = "/repos/acme/../evil"), "deny b1 path_ambiguous");
        check(b, Q(.target = "/repos/acme/%2e%2e/evil"), "deny b1 path_ambiguous");
        check(b, Q(.target = "/repos%2facme/x"), "deny b1 path_ambiguous");
}

static void test_basic(void **state) {
        (void) state;
        _cleanup_bindings_ struct bindings *b = with(ONE("'inject':{'as':'basic','user':'git'},'placeholder':'" PH "'"));
        /* git:s3cr3t-v4lue */
        check(b, Q(.fields = { F("Authorization", "Basic dXNlcjpwYXNz") }),
              "add b1 / | accept-encoding: identity\r\nauthorization: Basic Z2l0OnMzY3IzdC12NGx1ZQ==\r\n");
}

static void test_query(void **state) {
        (void) state;
        _cleanup_bindings_ struct bindings *b = with(ONE("'inject':{'as':'query','name':'key'},'placeholder':'" PH "'"));
        const char *const tail = " | accept-encoding: identity\r\n";
        static const struct {
                const char *target, *out;
        } rows[] = {
                { "/a", "/a?key=" SECRET },
                { "/a?", "/a?&key=" SECRET },
                { "/a?x=1", "/a?x=1&key=" SECRET },
                { "/a?key=" PH, "/a?key=" SECRET },
                { "/a?key=mine&x=1&key=again", "/a?x=1&key=" SECRET },
                { "/a?KEY=mine&%6bey=mine&k%65y", "/a?key=" SECRET },
                { "/a?x=1;key=mine&y", "/a?y&key=" SECRET },
                { "/a?keys=1&xkey=2", "/a?keys=1&xkey=2&key=" SECRET },
                { "/a?%zz=1", "/a?%zz=1&key=" SECRET },
        };
        for (size_t i = 0; i < ARRAY_SIZE(rows); i++) {
                char want[200];
                snprintf(want, sizeof want, "add b1 %s%s", rows[i].out, tail);
                check(b, Q(.target = rows[i].target), want);
        }
        check(b, Q(.target = "/a?x=" PH), "deny - placeholder");
        check(b, Q(.target = "/a?key=" PH, .host = "evil.test"), "deny - placeholder");
        check(b, Q(.target = "/a?key=mine", .port = 80, .protocol = POLICY_HTTP), "none - /a | ");
        /* Bytes that mean something in a query. */
        assert_int_equal(bindings_set_secret(b, "c1", "a&b=c d%\xff#", 10, 0, NULL), 0);
        check(b, Q(.target = "/a"), "add b1 /a?key=a%26b%3Dc%20d%25%FF%23 | accept-encoding: identity\r\n");
}

static void test_fields_one_by_one(void **state) {
        struct host h;
        struct request q = { 0 };
        const char *name = NULL;
        _cleanup_buf_ struct buf v = { 0 };
        (void) state;
        _cleanup_bindings_ struct bindings *b = with(ONE(HEADER));
        struct binding_use u = judge(b, &q, &h, 0, WALL);
        assert_int_equal(binding_field(&u, 0, &name, &v), 1);
        assert_string_equal(name, "accept-encoding");
        buf_clear(&v);
        assert_int_equal(binding_field(&u, 1, &name, &v), 1);
        assert_string_equal(name, "authorization");
        assert_string_equal(buf_str(&v), "Bearer " SECRET);
        assert_int_equal(binding_field(&u, 2, &name, &v), 0);
        /* Revoked in between: nothing half-made. */
        bindings_drop_secret(b, "c1");
        assert_int_equal(binding_field(&u, 1, &name, &v), -ENOENT);
        assert_int_equal(binding_write_fields(&u, &v), -ENOENT);
}

static void expect(struct bindings *b, uint64_t now, int64_t wall, const char *want) {
        struct request q = { 0 };
        struct host h;
        struct binding_use u = judge(b, &q, &h, now, wall);
        const char *got = u.outcome == BINDING_ADD ? "add" : u.outcome == BINDING_NONE ? "none" : policy_reason_name(u.reason);
        if (!str_eq(got, want))
                fail_msg("%s, not %s", got, want);
        if (u.outcome != BINDING_NONE)
                assert_string_equal(u.id, "b1");
}

static void test_limits(void **state) {
        (void) state;
        _cleanup_bindings_ struct bindings *b = with(ONE(HEADER ",'rate':{'per_minute':60,'burst':2},'uses':7,'used':2,'expires':'2023-11-14T22:13:21Z'"));
        expect(b, 0, WALL, "add");
        expect(b, 0, WALL, "add");
        expect(b, 0, WALL, "binding_rate");
        expect(b, 999, WALL, "binding_rate");
        expect(b, 1000, WALL, "add");
        expect(b, 500, WALL, "binding_rate"); /* time that goes back gives nothing */
        expect(b, 1000, WALL + 1000, "binding_expired");
        /* The same id goes on, with its counters. */
        load(b, ONE(HEADER ",'uses':7,'used':2"));
        expect(b, 1000, WALL, "add");
        expect(b, 1000, WALL, "add");
        expect(b, 1000, WALL, "binding_uses");
        load(b, ONE(HEADER ",'uses':8"));
        expect(b, 1000, WALL, "add");
        expect(b, 1000, WALL, "binding_uses");
}

/* XG14. */
static void test_secrets(void **state) {
        struct error err = ERROR_INIT;
        (void) state;
        _cleanup_bindings_ struct bindings *b = with(ONE(HEADER));
        expect(b, 0, WALL, "add");
        assert_int_equal(bindings_set_secret(b, "c1", "rotated-secret", 14, WALL + 5, NULL), 0);
        check(b, Q(.target = "/"), "add b1 / | accept-encoding: identity\r\nauthorization: Bearer rotated-secret\r\n");
        expect(b, 0, WALL + 4, "add");
        expect(b, 0, WALL + 5, "credential");
        bindings_drop_secret(b, "c1");
        bindings_drop_secret(b, "c1");
        expect(b, 0, WALL, "credential");
        static const char *const bad[] = { "short", "line\r\nX-Evil: y", " leading-space", "trailing-space ", "con\x01trol-byte", "\ttab-at-start" };
        for (size_t i = 0; i < ARRAY_SIZE(bad); i++) {
                assert_int_equal(bindings_set_secret(b, "c1", bad[i], strlen(bad[i]), 0, &err), -EINVAL);
                assert_null(strstr(err.msg, bad[i]));
        }
        assert_int_equal(bindings_set_secret(b, "c1", "with\0a-nul-byte", 15, 0, &err), -EINVAL);
        load(b, ONE("'inject':{'as':'basic','user':'u'}"));
        assert_int_equal(bindings_set_secret(b, "c1", "with\0a-nul-byte", 15, 0, &err), -EINVAL);
        load(b, ONE(HEADER));
        assert_int_equal(bindings_set_secret(b, "other", SECRET, 12, 0, &err), -ENOENT);
        _cleanup_free_ char *longest = malloc(BINDING_SECRET_MAX + 1);
        memset(longest, 'x', BINDING_SECRET_MAX + 1);
        assert_int_equal(bindings_set_secret(b, "c1", longest, BINDING_SECRET_MAX + 1, 0, NULL), -EINVAL);
        assert_int_equal(bindings_set_secret(b, "c1", longest, BINDING_SECRET_MAX, 0, NULL), 0);
        struct request q = { 0 };
        struct host h;
        _cleanup_buf_ struct buf out = { 0 };
        struct binding_use u = judge(b, &q, &h, 0, WALL);
        assert_int_equal(binding_write_fields(&u, &out), 0);
        /* Gone with the last binding that names it. */
        load(b, "[]");
        expect(b, 0, WALL, "none");
        load(b, ONE(HEADER));
        expect(b, 0, WALL, "credential");
        /* A secret that fits a query, and then not the header of a newer binding. */
        load(b, ONE("'inject':{'as':'query','name':'k'}"));
        assert_int_equal(bindings_set_secret(b, "c1", "two\nlines", 9, 0, NULL), 0);
        expect(b, 0, WALL, "add");
        load(b, ONE(HEADER));
        expect(b, 0, WALL, "credential");
}

static void test_several(void **state) {
        (void) state;
        _cleanup_bindings_ struct bindings *b = with(
                "[{'id':'b1','credential':'c1','hosts':['api.test'],'paths':['/a/']," HEADER "},"
                "{'id':'b2','credential':'c2','hosts':['*.x.test','api.test'],'inject':{'as':'header','name':'X-Key'}}]");
        assert_int_equal(bindings_set_secret(b, "c2", "other-secret", 12, 0, NULL), 0);
        /* The first that fits; what any of them adds to this host is left out of what came. */
        check(b, Q(.target = "/a/b", .fields = { F("X-Key", "mine") }), "add b1 /a/b | " ADDED);
        check(b, Q(.target = "/b", .fields = { F("Authorization", "mine") }), "add b2 /b | accept-encoding: identity\r\nx-key: other-secret\r\n");
        check(b, Q(.target = "/b", .host = "y.x.test", .fields = { F("Authorization", "mine") }),
              "add b2 /b Authorization:mine | accept-encoding: identity\r\nx-key: other-secret\r\n");
        assert_int_equal(bindings_count(b), 2);
        _cleanup_bindings_ struct bindings *none = NULL;
        assert_int_equal(bindings_new(&none), 0);
        check(none, Q(.target = "/?x=" PH, .fields = { F("Authorization", PH) }), "none - /?x=" PH " Authorization:" PH " | ");
}

static void test_refused(void **state) {
        static const struct {
                const char *text, *message;
        } rows[] = {
                { "{}", "array" },
                { "[1]", "bindings[0]: must be an object" },
                { "[{}]", "\"id\" is missing" },
                { "[{'id':'b','credential':'c'}]", "\"hosts\" is missing" },
                { "[{'id':'','credential':'c'}]", "id: " },
                { "[{'id':'a b','credential':'c'}]", "id: " },
                { "[{'id':'b','credential':'c/d'}]", "credential: " },
                { "[{'id':'b','credential':'c','hosts':['api.test'],'x':1}]", "\"x\"" },
                { "[{'id':'b','credential':'c','hosts':[]," HEADER "}]", "empty" },
                { "[{'id':'b','credential':'c','hosts':[1]," HEADER "}]", "hosts[0]: must be a string" },
                { "[{'id':'b','credential':'c','hosts':['*']," HEADER "}]", "not for every host" },
                { "[{'id':'b','credential':'c','hosts':['*.com']," HEADER "}]", "top-level" },
                { "[{'id':'b','credential':'c','hosts':['@packages']," HEADER "}]", "hosts[0]: " },
                { "[{'id':'b','credential':'c','hosts':['1.2.3.4']," HEADER "}]", "hosts[0]: " },
                { "[{'id':'b','credential':'c','hosts':['api.test']}]", "\"inject\" is missing" },
                { ONE("'inject':{}"), "inject: \"as\" is missing" },
                { ONE("'inject':{'as':'cookie'}"), "inject: as: must be" },
                { ONE("'inject':{'as':'header'}"), "\"name\" is missing" },
                { ONE("'inject':{'as':'header','name':'Host'}"), "not a header for credentials" },
                { ONE("'inject':{'as':'header','name':'content-length'}"), "not a header for credentials" },
                { ONE("'inject':{'as':'header','name':'A B'}"), "not a header for credentials" },
                { ONE("'inject':{'as':'header','name':'A','template':'x'}"), "once" },
                { ONE("'inject':{'as':'header','name':'A','template':'{secret}{secret}'}"), "once" },
                { ONE("'inject':{'as':'header','name':'A','template':'a\\n{secret}'}"), "bytes" },
                { ONE("'inject':{'as':'header','name':'A','user':'x'}"), "\"user\"" },
                { ONE("'inject':{'as':'basic','user':'a:b'}"), "user: " },
                { ONE("'inject':{'as':'basic'}"), "\"user\" is missing" },
                { ONE("'inject':{'as':'query','name':'a=b'}"), "name: " },
                { ONE("'inject':{'as':'query','name':''}"), "name: " },
                { ONE(HEADER ",'methods':null"), "\"methods\" is null" },
                { ONE(HEADER ",'methods':['get']"), "methods[0]: " },
                { ONE(HEADER ",'paths':['/../']"), "paths[0]: " },
                { ONE(HEADER ",'rate':{}"), "rate: \"per_minute\" is missing" },
                { ONE(HEADER ",'rate':{'per_minute':0}"), "rate: " },
                { ONE(HEADER ",'uses':0"), "uses" },
                { ONE(HEADER ",'expires':'tomorrow'"), "expires: " },
                { ONE(HEADER ",'placeholder':'short'"), "placeholder: " },
                { ONE(HEADER ",'placeholder':'with/slash/with/slash/with/slash'"), "placeholder: " },
                { "[{'id':'b','credential':'c','hosts':['a.test']," HEADER "},{'id':'b','credential':'c','hosts':['a.test']," HEADER "}]",
                  "bindings[1]: id: \"b\" is there already" },
        };
        (void) state;
        _cleanup_bindings_ struct bindings *b = with(ONE(HEADER));
        for (size_t i = 0; i < ARRAY_SIZE(rows); i++) {
                _cleanup_json_ json_t *j = json(rows[i].text);
                struct error err = ERROR_INIT;
                int r = bindings_load(b, j, &err);
                if (r != -EINVAL || !strstr(err.msg, rows[i].message))
                        fail_msg("%s\n-> %d %s", rows[i].text, r, err.msg);
                assert_int_equal(bindings_load(b, j, NULL), -EINVAL);
                expect(b, 0, WALL, "add"); /* the old ones stay */
        }
        _cleanup_buf_ struct buf many = { 0 };
        for (unsigned i = 0; i <= BINDINGS_MAX; i++)
                buf_printf(&many, "%s{'id':'b%u','credential':'c','hosts':['a.test']," HEADER "}", i ? "," : "[", i);
        buf_puts(&many, "]");
        _cleanup_json_ json_t *j = json(buf_str(&many));
        assert_int_equal(bindings_load(b, j, NULL), -EINVAL);
}

/* XG16. */
static void test_placeholders(void **state) {
        char a[PLACEHOLDER_SIZE], b[PLACEHOLDER_SIZE];
        (void) state;
        assert_int_equal(placeholder_new(a), 0);
        assert_int_equal(placeholder_new(b), 0);
        assert_true(placeholder_valid(a));
        assert_string_not_equal(a, b);
        assert_false(placeholder_valid(""));
        assert_false(placeholder_valid("aaaaaaaaaaaaaaaaaaaaaaa"));
        assert_true(placeholder_valid("aaaaaaaaaaaaaaaaaaaaaaaa"));
        assert_false(placeholder_valid("aaaaaaaaaaaaaaaaaaaaaaaa "));
}

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(test_header),  cmocka_unit_test(test_underscore), cmocka_unit_test(test_conditions),
                cmocka_unit_test(test_basic),   cmocka_unit_test(test_query),      cmocka_unit_test(test_fields_one_by_one),
                cmocka_unit_test(test_limits),  cmocka_unit_test(test_secrets),    cmocka_unit_test(test_several),
                cmocka_unit_test(test_refused), cmocka_unit_test(test_placeholders),
        };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
