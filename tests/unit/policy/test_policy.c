/* SPDX-License-Identifier: Apache-2.0 */

/* The policy language: what is refused, and what each stage answers. */

#include <arpa/inet.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/str.h"
#include "policy/policy.h"
#include "test.h"

static const char *const package_hosts[] = { "deb.mirror.test", "*.files.mirror.test", "index.mirror.test:8080" };
static const struct policy_preset presets[] = { { "@packages", package_hosts, 3 }, { "@empty", NULL, 0 } };

static bool is_public_suffix(const char *s) {
        return str_eq(s, "co.uk") || str_eq(s, "github.io");
}

static const struct policy_context context = { presets, ARRAY_SIZE(presets), is_public_suffix };

/* Single quotes for double ones, for the reader's sake. */
static int parse(const char *text, struct policy **ret, struct error *err) {
        _cleanup_free_ char *json = strdup(text);
        for (char *c = json; *c; c++)
                if (*c == '\'')
                        *c = '"';
        return policy_parse(json, strlen(json), &context, ret, err);
}

static struct policy *policy(const char *text) {
        struct policy *p = NULL;
        struct error err = ERROR_INIT;
        if (parse(text, &p, &err) < 0)
                fail_msg("%s: %s", text, err.msg);
        return p;
}

/* --- refused ----------------------------------------------------------------------------- */

static void test_refused(void **state) {
        static const struct {
                const char *text, *message; /* a part of it */
        } rows[] = {
                { "{'rules':[{'action':'allow','hosts':['http://a.b/c']}]}", "rules[0].hosts[0]: \"http://a.b/c\" is a URL" },
                { "[]", "must be an object" },
                { "1", "must be an object" },
                { "{", "invalid JSON" },
                { "{'rules':[],'rules':[]}", "duplicate" },
                { "{'rule':[]}", "rule" },
                { "{'version':2}", "version" },
                { "{'version':null}", "\"version\" is null" },
                { "{'rules':null}", "\"rules\" is null" },
                { "{'limits':{'names':null}}", "limits: \"names\" is null" },
                { "{'rules':[{'action':'allow','hosts':['a.b'],'methods':null}]}", "rules[0]: \"methods\" is null" },
                { "{'rules':[{'action':'deny','hosts':[]}]}", "rules[0]: \"hosts\" is empty" },
                { "{'rules':[{'action':'deny','cidr':[]}]}", "rules[0]: \"cidr\" is empty" },
                { "{'rules':{}}", "an array" },
                { "{'rules':[1]}", "rules[0]: must be an object" },
                { "{'rules':[{}]}", "rules[0]: \"action\" is missing" },
                { "{'rules':[{'action':'permit','hosts':['a.b']}]}", "rules[0].action: must be" },
                { "{'rules':[{'action':'allow'}]}", "rules[0]: \"hosts\" or \"cidr\" is missing" },
                { "{'rules':[{'action':'allow','hosts':['a.b'],'host':['c.d']}]}", "rules[0]: " },
                { "{'rules':[{'action':'allow','hosts':'a.b'}]}", "rules[0]: \"hosts\" must be an array" },
                { "{'rules':[{'action':'allow','hosts':[1]}]}", "rules[0].hosts[0]: must be a string" },
                { "{'rules':[{'action':'allow','hosts':['a.b','c d']}]}", "rules[0].hosts[1]: \"c d\" is not a host" },
                { "{'rules':[{'action':'allow','hosts':['a.b','a.*.b']}]}", "rules[0].hosts[1]: " },
                { "{'rules':[{'action':'allow','hosts':['*b.com']}]}", "rules[0].hosts[0]: " },
                { "{'rules':[{'action':'allow','hosts':['*.com']}]}", "top-level domain" },
                { "{'rules':[{'action':'allow','hosts':['*.co.uk']}]}", "shared_suffix" },
                { "{'rules':[{'action':'allow','hosts':['*.*.a.b']}]}", "rules[0].hosts[0]: " },
                { "{'rules':[{'action':'allow','hosts':['b\xc3\xbc" "cher.de']}]}", "rules[0].hosts[0]: " },
                { "{'rules':[{'action':'allow','hosts':['1.2.3.4']}]}", "belong in \"cidr\"" },
                { "{'rules':[{'action':'allow','hosts':['2852039166']}]}", "number" },
                { "{'rules':[{'action':'allow','hosts':['https://a.b']}]}", "rules[0].hosts[0]: " },
                { "{'rules':[{'action':'allow','hosts':['a.b/c']}]}", "rules[0].hosts[0]: " },
                { "{'rules':[{'action':'allow','hosts':['a.b:0']}]}", "port" },
                { "{'rules':[{'action':'allow','hosts':['a.b:443'],'ports':[443]}]}", "contradict" },
                { "{'rules':[{'action':'allow','hosts':['@nope']}]}", "rules[0].hosts[0]: there is no preset \"@nope\"" },
                { "'@nope'", "there is no preset" },
                { "'nope'", "there is no preset" },
                { "{'rules':[{'action':'allow','cidr':['1.2.3.4/24']}]}", "rules[0].cidr[0]: " },
                { "{'rules':[{'action':'allow','cidr':['::/0']}]}", "rules[0].cidr[0]: " },
                { "{'rules':[{'action':'allow','cidr':['10.0.0.0/8']}]}", "needs \"internal\": true" },
                { "{'rules':[{'action':'allow','cidr':['169.254.169.254']}]}", "needs \"internal\": true" },
                { "{'rules':[{'action':'allow','hosts':['a.b'],'internal':true}]}", "needs \"cidr\"" },
                { "{'rules':[{'action':'deny','cidr':['10.0.0.0/8'],'internal':true}]}", "says nothing" },
                { "{'rules':[{'action':'deny','hosts':['a.b'],'inspect':true}]}", "says nothing" },
                { "{'rules':[{'action':'deny','hosts':['a.b'],'limits':{'names':1}}]}", "says nothing" },
                { "{'rules':[{'action':'allow','hosts':['a.b'],'ports':[]}]}", "empty" },
                { "{'rules':[{'action':'allow','hosts':['a.b'],'ports':[0]}]}", "rules[0].ports[0]: " },
                { "{'rules':[{'action':'allow','hosts':['a.b'],'ports':[65536]}]}", "rules[0].ports[0]: " },
                { "{'rules':[{'action':'allow','hosts':['a.b'],'ports':['443']}]}", "rules[0].ports[0]: " },
                { "{'rules':[{'action':'allow','hosts':['a.b'],'ports':['9-8']}]}", "rules[0].ports[0]: " },
                { "{'rules':[{'action':'allow','hosts':['a.b'],'ports':['0-8']}]}", "rules[0].ports[0]: " },
                { "{'rules':[{'action':'allow','hosts':['a.b'],'ports':['1-65536']}]}", "rules[0].ports[0]: " },
                { "{'rules':[{'action':'allow','hosts':['a.b'],'ports':['1-2-3']}]}", "rules[0].ports[0]: " },
                { "{'rules':[{'action':'allow','hosts':['a.b'],'ports':[443.5]}]}", "rules[0].ports[0]: " },
                { "{'rules':[{'action':'allow','hosts':['a.b'],'protocol':'udp'}]}", "rules[0].protocol: must be" },
                { "{'rules':[{'action':'allow','hosts':['a.b'],'protocol':'tcp'}]}", "\"ports\" is missing" },
                { "{'rules':[{'action':'allow','hosts':['a.b'],'protocol':'any'}]}", "\"ports\" is missing" },
                { "{'rules':[{'action':'allow','hosts':['a.b'],'methods':[]}]}", "empty" },
                { "{'rules':[{'action':'allow','hosts':['a.b'],'methods':['get']}]}", "rules[0].methods[0]: " },
                { "{'rules':[{'action':'allow','hosts':['a.b'],'methods':['GET ']}]}", "rules[0].methods[0]: " },
                { "{'rules':[{'action':'allow','hosts':['a.b'],'methods':[7]}]}", "rules[0].methods[0]: must be a string" },
                { "{'rules':[{'action':'allow','hosts':['a.b'],'paths':['x']}]}", "rules[0].paths[0]: " },
                { "{'rules':[{'action':'allow','hosts':['a.b'],'paths':['/a/../b']}]}", "rules[0].paths[0]: " },
                { "{'rules':[{'action':'allow','hosts':['a.b'],'paths':['/'],'inspect':false}]}", "cannot be seen" },
                { "{'rules':[{'action':'allow','hosts':['a.b'],'ports':[22],'protocol':'tcp','methods':['GET']}]}", "need the protocol" },
                { "{'rules':[{'action':'allow','hosts':['a.b'],'ports':[22],'protocol':'any','paths':['/']}]}", "need the protocol" },
                { "{'rules':[{'action':'allow','hosts':['a.b'],'ports':[22],'protocol':'tcp','inspect':false}]}", "about TLS" },
                { "{'rules':[{'action':'allow','hosts':['a.b'],'protocol':'http','inspect':true}]}", "about TLS" },
                { "{'rules':[{'action':'allow','hosts':['a.b'],'inspect':1}]}", "true or false" },
                { "{'rules':[{'action':'allow','hosts':['a.b'],'limits':{'bytes':1}}]}", "rules[0].limits: " },
                { "{'rules':[{'action':'allow','hosts':['a.b'],'limits':{'bytes_out':0}}]}", "rules[0].limits: " },
                { "{'rules':[{'action':'allow','hosts':['a.b'],'limits':{'bytes_out':-1}}]}", "rules[0].limits: " },
                { "{'limits':{'connections':'x'}}", "limits: " },
                { "{'rules':[{'action':'allow','hosts':['a.b'],'name':''}]}", "rules[0].name: " },
                { "{'rules':[{'action':'allow','hosts':['a.b'],'name':'A'}]}", "rules[0].name: " },
                { "{'rules':[{'action':'allow','hosts':['a.b'],'name':'default'}]}", "rules[0].name: " },
                { "{'rules':[{'action':'allow','hosts':['a.b'],'name':'x'},{'action':'deny','hosts':['c.d'],'name':'x'}]}",
                  "rules[1].name: \"x\" is the name of rules[0]" },
                { "{'rules':[{'action':'deny','hosts':['a.b'],'ports':[443],'protocol':'https'},"
                  "{'action':'allow','hosts':['a.b'],'ports':[443],'protocol':'https'}]}",
                  "rules[1]: is never reached: rules[0]" },
                { "{'rules':[{'action':'allow','hosts':['a.b']},{'action':'allow','hosts':['a.b']}]}", "never reached" },
        };
        (void) state;
        for (size_t i = 0; i < ARRAY_SIZE(rows); i++) {
                struct policy *p = NULL;
                struct error err = ERROR_INIT;
                int r = parse(rows[i].text, &p, &err);
                if (r != -EINVAL || !strstr(err.msg, rows[i].message))
                        fail_msg("%s\n-> %d %s\n   not: %s", rows[i].text, r, err.msg, rows[i].message);
                assert_null(p);
                assert_int_equal(parse(rows[i].text, &p, NULL), -EINVAL);
        }
}

static void test_sizes(void **state) {
        struct policy *p = NULL;
        struct error err = ERROR_INIT;
        (void) state;
        _cleanup_buf_ struct buf b = { 0 };
        buf_puts(&b, "{\"rules\":[");
        for (unsigned i = 0; i <= POLICY_RULES_MAX; i++)
                buf_printf(&b, "%s{\"action\":\"allow\",\"hosts\":[\"h%u.test\"]}", i ? "," : "", i);
        buf_puts(&b, "]}");
        assert_int_equal(policy_parse(buf_data(&b), b.len, NULL, &p, &err), -EINVAL);
        assert_non_null(strstr(err.msg, "limit is 256"));
        while (b.len <= POLICY_JSON_MAX)
                buf_puts(&b, "                                ");
        assert_int_equal(policy_parse(buf_data(&b), b.len, NULL, &p, &err), -EFBIG);
        /* Hosts of one rule, a preset's among them. */
        buf_clear(&b);
        buf_puts(&b, "{\"rules\":[{\"action\":\"allow\",\"hosts\":[\"@packages\"");
        for (unsigned i = 0; i < POLICY_HOSTS_MAX - 3; i++)
                buf_printf(&b, ",\"h%u.test\"", i);
        buf_puts(&b, "]}]}");
        assert_int_equal(policy_parse(buf_data(&b), b.len, &context, &p, &err), 0);
        policy_unref(p);
        p = NULL;
        b.len -= 4;
        buf_puts(&b, ",\"one.more.test\"]}]}");
        assert_int_equal(policy_parse(buf_data(&b), b.len, &context, &p, &err), -E2BIG);
        assert_non_null(strstr(err.msg, "rules[0].hosts[1022]: more than 1024 hosts"));
        buf_clear(&b);
        for (unsigned i = 0; i < 40; i++)
                buf_puts(&b, "[");
        assert_int_equal(policy_parse(buf_data(&b), b.len, NULL, &p, &err), -EINVAL);
}

/* --- evaluated --------------------------------------------------------------------------- */

struct question {
        const char *ask; /* "dns NAME", "connect HOST PORT PROTOCOL", "request PROTOCOL METHOD HOST PORT TARGET" */
        const char *want; /* "allow|deny|ask RULE REASON" and, for ask by protocol, the protocols; "inspect" */
};

static enum policy_protocol protocol_of(const char *s) {
        return str_eq(s, "http") ? POLICY_HTTP : str_eq(s, "tls") ? POLICY_TLS : str_eq(s, "tcp") ? POLICY_TCP : POLICY_UNKNOWN;
}

static void answer(const struct policy *p, const char *ask, char *out, size_t cap) {
        char stage[16], a[300], b[300], c[300], d[300], e[300];
        struct policy_verdict v = { 0 };
        struct host h = { 0 };
        int n = sscanf(ask, "%15s %299s %299s %299s %299s %299s", stage, a, b, c, d, e);
        if (str_eq(stage, "dns")) {
                assert_int_equal(n, 2);
                v = policy_dns(p, a);
        } else if (str_eq(stage, "connect")) {
                assert_int_equal(n, 4);
                assert_int_equal(host_parse(a, strlen(a), &h, NULL), 0);
                v = policy_connect(p, &h, (uint16_t) atoi(b), protocol_of(c));
        } else {
                assert_int_equal(n, 6);
                assert_int_equal(host_parse(c, strlen(c), &h, NULL), 0);
                v = policy_request(p, &h, (uint16_t) atoi(d), protocol_of(a), b, e);
        }
        snprintf(out, cap, "%s %s %s", v.outcome == POLICY_ALLOW ? "allow" : v.outcome == POLICY_ASK ? "ask" : "deny", v.rule_name,
                 policy_reason_name(v.reason));
        if (str_eq(stage, "connect") && str_eq(c, "unknown"))
                snprintf(out + strlen(out), cap - strlen(out), "%s%s%s", v.protocols & POLICY_HTTP ? " http" : "",
                         v.protocols & POLICY_TLS ? " tls" : "", v.protocols & POLICY_TCP ? " tcp" : "");
        else if (str_eq(stage, "connect") && str_eq(c, "tls") && v.outcome != POLICY_DENY)
                snprintf(out + strlen(out), cap - strlen(out), "%s", v.inspect ? " inspect" : " pass");
}

static void check(const char *text, const struct question *q, size_t n) {
        _cleanup_policy_ struct policy *p = policy(text);
        for (size_t i = 0; i < n; i++) {
                char got[256];
                answer(p, q[i].ask, got, sizeof got);
                if (!str_eq(got, q[i].want))
                        fail_msg("%s\n%s\n-> %s\nnot %s", text, q[i].ask, got, q[i].want);
        }
}
#define CHECK(text, ...) \
        check(text, (const struct question[]){ __VA_ARGS__ }, ARRAY_SIZE(((const struct question[]){ __VA_ARGS__ })))

static void test_default(void **state) {
        static const char *const empty[] = { "{}", "{'rules':[]}", "'none'", "{'limits':{'connections':5}}" };
        (void) state;
        for (size_t i = 0; i < ARRAY_SIZE(empty); i++)
                CHECK(empty[i], { "dns a.test", "deny default no_policy" }, { "connect a.test 443 tls", "deny default no_policy" },
                      { "connect 1.2.3.4 443 unknown", "deny default no_policy" },
                      { "request http GET a.test 80 /", "deny default no_policy" });
        char got[256];
        answer(NULL, "dns a.test", got, sizeof got);
        assert_string_equal(got, "deny default no_policy");
        answer(NULL, "request tls GET a.test 443 /", got, sizeof got);
        assert_string_equal(got, "deny default no_policy");
        struct policy *p = NULL;
        assert_int_equal(policy_parse("", 0, NULL, &p, NULL), 0);
        assert_int_equal(policy_n_rules(p), 0);
        policy_unref(p);
}

static void test_hosts(void **state) {
        (void) state;
        CHECK("{'rules':[{'action':'allow','name':'web','hosts':['API.Allowed.com','*.allowed.net']}]}",
              { "dns api.allowed.com", "allow web rule" }, { "dns allowed.com", "deny default no_rule" },
              { "dns x.api.allowed.com", "deny default no_rule" }, { "dns a.allowed.net", "allow web rule" },
              { "dns a.b.allowed.net", "allow web rule" }, { "dns allowed.net", "deny default no_rule" },
              { "dns evilallowed.net", "deny default no_rule" }, { "dns allowed.net.evil", "deny default no_rule" },
              { "connect api.allowed.com 443 unknown", "ask web rule http tls" },
              { "connect api.allowed.com 80 unknown", "ask web rule http tls" },
              { "connect api.allowed.com 22 unknown", "deny default port" },
              { "connect api.allowed.com 6379 tcp", "deny default port" },
              { "connect api.allowed.com 443 tcp", "deny default protocol" },
              { "connect api.allowed.com 443 tls", "ask web rule inspect" },
              { "connect api.allowed.com 80 http", "ask web rule" },
              { "connect other.com 443 tls", "deny default no_rule" },
              { "connect 1.2.3.4 443 tls", "deny default address_literal" },
              { "request tls GET api.allowed.com 443 /x", "allow web rule" },
              { "request tls get api.allowed.com 443 /a/../b", "allow web rule" },
              { "request tls GET api.allowed.com 8443 /x", "deny default port" },
              { "request tls GET other.com 443 /x", "deny default no_rule" });
        CHECK("{'rules':[{'action':'allow','hosts':['*']}]}", { "dns a.test", "allow rules[0] rule" },
              { "connect 1.2.3.4 443 tls", "deny default address_literal" });
        CHECK("{'rules':[{'action':'allow','shared_suffix':true,'hosts':['*.github.io']}]}",
              { "dns a.github.io", "allow rules[0] rule" });
        CHECK("{'rules':[{'action':'allow','hosts':['a.test:8080','b.test']}]}",
              { "connect a.test 8080 http", "ask rules[0] rule" }, { "connect a.test 80 http", "deny default port" },
              { "connect b.test 80 http", "ask rules[0] rule" }, { "connect b.test 8080 http", "deny default port" });
}

static void test_order(void **state) {
        (void) state;
        CHECK("{'rules':[{'action':'deny','name':'no','hosts':['bad.a.test']},{'action':'allow','name':'yes','hosts':['*.a.test']}]}",
              { "dns bad.a.test", "deny no rule" }, { "dns good.a.test", "allow yes rule" },
              { "connect bad.a.test 443 tls", "deny no rule" }, { "request tls GET bad.a.test 443 /", "deny no rule" });
        CHECK("{'rules':[{'action':'allow','name':'yes','hosts':['*.a.test']},{'action':'deny','name':'no','hosts':['bad.a.test']}]}",
              { "dns bad.a.test", "allow yes rule" });
        /* A deny of one port leaves the name. */
        CHECK("{'rules':[{'action':'deny','name':'no','hosts':['a.test'],'ports':[80]},{'action':'allow','name':'yes','hosts':['a.test']}]}",
              { "dns a.test", "allow yes rule" }, { "connect a.test 80 unknown", "deny no rule" },
              { "connect a.test 443 unknown", "ask yes rule http tls" });
        /* A deny of one protocol. */
        CHECK("{'rules':[{'action':'deny','name':'plain','hosts':['*'],'protocol':'http'},{'action':'allow','name':'yes','hosts':['a.test']}]}",
              { "dns a.test", "allow yes rule" }, { "connect a.test 80 unknown", "ask yes rule tls" },
              { "connect a.test 80 http", "deny plain rule" }, { "connect a.test 443 tls", "ask yes rule inspect" });
}

static void test_protocols(void **state) {
        (void) state;
        CHECK("{'rules':[{'action':'allow','name':'ssh','hosts':['git.test'],'ports':[22],'protocol':'tcp'},"
              "{'action':'allow','name':'pinned','hosts':['git.test'],'inspect':false,'protocol':'tls'},"
              "{'action':'allow','name':'mixed','hosts':['git.test'],'ports':['9000-9002'],'protocol':'any'}]}",
              { "connect git.test 22 unknown", "ask ssh rule tcp" }, { "connect git.test 22 tcp", "allow ssh rule" },
              { "connect git.test 22 http", "deny default protocol" },
              { "connect git.test 443 unknown", "ask pinned rule tls" }, { "connect git.test 443 tls", "allow pinned rule pass" },
              { "connect git.test 443 http", "deny default protocol" }, { "connect git.test 80 unknown", "deny default port" },
              { "connect git.test 9001 unknown", "ask mixed rule http tls tcp" },
              { "connect git.test 9001 tls", "ask mixed rule inspect" }, { "connect git.test 9002 tcp", "allow mixed rule" },
              { "connect git.test 9003 tcp", "deny default port" });
        CHECK("{'rules':[{'action':'allow','hosts':['a.test'],'protocol':'http'}]}",
              { "connect a.test 80 unknown", "ask rules[0] rule http" }, { "connect a.test 443 unknown", "deny default port" });
}

static void test_requests(void **state) {
        (void) state;
        CHECK("{'rules':[{'action':'allow','name':'read','hosts':['api.test'],'methods':['GET','HEAD'],'paths':['/repos/acme/']},"
              "{'action':'deny','name':'admin','hosts':['api.test'],'paths':['/admin/','/admin']},"
              "{'action':'allow','name':'upload','hosts':['api.test'],'methods':['PUT'],'paths':['/up/*']}]}",
              { "dns api.test", "allow read rule" }, { "connect api.test 443 unknown", "ask read rule http tls" },
              { "connect api.test 443 tls", "ask read rule inspect" },
              { "request tls GET api.test 443 /repos/acme/x", "allow read rule" },
              { "request tls GET api.test 443 /repos/acme/x?q=/../..", "allow read rule" },
              { "request tls HEAD api.test 443 https://api.test/repos/acme/", "allow read rule" },
              { "request tls POST api.test 443 /repos/acme/x", "deny default method" },
              { "request tls GET api.test 443 /repos/other/x", "deny default path" },
              { "request tls get api.test 443 /repos/acme/x", "deny read method_ambiguous" },
              { "request tls GET api.test 443 /repos/acme/../other", "deny read path_ambiguous" },
              { "request tls GET api.test 443 /repos/acme/%2e%2e/other", "deny read path_ambiguous" },
              { "request tls GET api.test 443 /repos%2facme/x", "deny read path_ambiguous" },
              { "request tls GET api.test 443 /admin/x", "deny admin rule" },
              { "request tls GET api.test 443 //admin/x", "deny admin path_ambiguous" },
              { "request tls PUT api.test 443 /up/x", "allow upload rule" },
              { "request tls PUT api.test 443 /up/x/y", "deny default path" },
              { "request tls PUT api.test 443 /up/x%2fy", "deny upload path_ambiguous" },
              { "request tls DELETE api.test 443 /up/x", "deny default method" },
              { "request tls TRACE api.test 443 /up/x", "deny default method" },
              { "request tls OPTIONS api.test 443 *", "deny admin path_ambiguous" });
        /* A rule that denies some requests forces inspection, whatever the next one says. */
        CHECK("{'rules':[{'action':'deny','name':'no','hosts':['a.test'],'methods':['POST']},"
              "{'action':'allow','name':'yes','hosts':['a.test'],'inspect':false}]}",
              { "connect a.test 443 tls", "ask yes rule inspect" }, { "request tls GET a.test 443 /", "allow yes rule" },
              { "request tls POST a.test 443 /", "deny no rule" }, { "request tls post a.test 443 /", "deny no method_ambiguous" });
        /* Only denies: nothing to wait for. */
        CHECK("{'rules':[{'action':'deny','name':'no','hosts':['a.test'],'methods':['POST']}]}",
              { "connect a.test 443 tls", "deny default no_rule" }, { "dns a.test", "deny default no_rule" });
        CHECK("{'rules':[{'action':'allow','name':'yes','hosts':['a.test'],'paths':['/x']},{'action':'allow','name':'more','hosts':['*']}]}",
              { "connect a.test 443 tls", "ask yes rule inspect" }, { "request tls GET a.test 443 /y", "allow more rule" });
        /* A deny rule without paths after an allow with some: other requests are denied by it. */
        CHECK("{'rules':[{'action':'allow','name':'yes','hosts':['a.test'],'paths':['/x']},{'action':'deny','name':'no','hosts':['*']}]}",
              { "dns a.test", "allow yes rule" }, { "connect a.test 443 tls", "ask yes rule inspect" },
              { "request tls GET a.test 443 /y", "deny no rule" }, { "request tls GET a.test 443 /x", "allow yes rule" },
              { "connect b.test 443 tls", "deny no rule" });
}

static void test_notes(void **state) {
        struct host h = { 0 };
        (void) state;
        host_parse("a.test", 6, &h, NULL);
        _cleanup_policy_ struct policy *p = policy(
                "{'rules':[{'action':'allow','hosts':['a.test'],'methods':['GET']},{'action':'allow','hosts':['a.test'],'paths':['/x']},"
                "{'action':'allow','hosts':['b.test']}]}");
        struct policy_verdict v = policy_request(p, &h, 443, POLICY_TLS, "GET", "/");
        assert_true(v.by_method && !v.by_path);
        v = policy_request(p, &h, 443, POLICY_TLS, "PUT", "/x");
        assert_true(v.by_method && v.by_path && v.outcome == POLICY_ALLOW && v.rule == 1);
        host_parse("b.test", 6, &h, NULL);
        v = policy_request(p, &h, 443, POLICY_TLS, "PUT", "/x");
        assert_true(!v.by_method && !v.by_path && v.outcome == POLICY_ALLOW && v.rule == 2);
}

static void test_presets(void **state) {
        (void) state;
        static const char *const same[] = { "'@packages'", "{'rules':[{'action':'allow','hosts':['@packages']}]}" };
        for (size_t i = 0; i < ARRAY_SIZE(same); i++)
                CHECK(same[i], { "dns deb.mirror.test", "allow rules[0] rule" }, { "dns a.files.mirror.test", "allow rules[0] rule" },
                      { "dns mirror.test", "deny default no_rule" },
                      { "connect deb.mirror.test 80 http", "ask rules[0] rule" },
                      { "connect index.mirror.test 8080 http", "ask rules[0] rule" },
                      { "connect index.mirror.test 80 http", "deny default port" });
        CHECK("{'rules':[{'action':'allow','hosts':['@packages','x.test'],'ports':[443]}]}",
              { "connect deb.mirror.test 443 tls", "ask rules[0] rule inspect" }, { "connect x.test 443 tls", "ask rules[0] rule inspect" },
              { "connect deb.mirror.test 80 http", "deny default port" },
              { "connect index.mirror.test 8080 http", "deny default port" });
        CHECK("'@empty'", { "dns deb.mirror.test", "deny default no_rule" }, { "connect 1.2.3.4 443 tls", "deny default address_literal" });
}

static void test_of_hosts(void **state) {
        static const char *const hosts[] = { "@packages", "*.a.test", "b.test:8443" };
        _cleanup_policy_ struct policy *p = NULL, *none = NULL;
        (void) state;
        _cleanup_json_ json_t *j = policy_json_of_hosts(hosts, 3), *empty = policy_json_of_hosts(NULL, 0), *bad;
        char got[256];
        assert_int_equal(policy_compile(j, &context, &p, NULL), 0);
        answer(p, "dns x.a.test", got, sizeof got);
        assert_string_equal(got, "allow allow rule");
        answer(p, "connect b.test 8443 unknown", got, sizeof got);
        assert_string_equal(got, "ask allow rule http tls");
        assert_int_equal(policy_compile(empty, &context, &none, NULL), 0);
        assert_int_equal(policy_n_rules(none), 0);
        /* Not UTF-8: a JSON string cannot hold it. */
        static const char *const junk[] = { "a.test", "\xff" };
        bad = policy_json_of_hosts(junk, 2);
        assert_null(bad);
}

/* --- addresses --------------------------------------------------------------------------- */

static void freep(struct address_set **s) {
        address_set_free(*s);
}

static void test_literals(void **state) {
        (void) state;
        CHECK("{'rules':[{'action':'allow','name':'dns','cidr':['8.8.8.8'],'ports':[53],'protocol':'tcp'},"
              "{'action':'deny','name':'no','cidr':['44.0.0.0/8']},{'action':'allow','name':'all','cidr':['0.0.0.0/0']}]}",
              { "connect 8.8.8.8 53 unknown", "ask dns rule tcp" }, { "connect 8.8.8.8 53 tcp", "allow dns rule" },
              { "connect 8.8.8.8 853 tcp", "deny default port" }, { "connect 44.255.255.255 443 tls", "deny no rule" },
              { "connect 255.255.255.255 443 tls", "ask all rule inspect" }, { "connect a.test 443 tls", "deny default no_rule" },
              { "dns a.test", "deny default no_rule" });
}

static void test_dial(void **state) {
        static const struct {
                const char *host, *addr, *want; /* rule and reason, class */
        } rows[] = {
                { "a.test", "93.184.216.34", "allow names rule public" },
                { "a.test", "2a00::1", "allow names rule public" },
                { "a.test", "127.0.0.1", "deny names address_refused loopback" },
                { "a.test", "169.254.169.254", "deny names address_refused metadata" },
                { "a.test", "::ffff:169.254.169.254", "deny names address_refused metadata" },
                { "a.test", "64:ff9b::a9fe:a9fe", "deny names address_refused metadata" },
                { "a.test", "10.0.0.5", "deny names address_refused private" },
                { "a.test", "192.168.1.1", "deny names address_refused private" },
                { "a.test", "100.64.0.1", "deny names address_refused private" },
                { "a.test", "198.18.0.1", "deny names address_refused reserved" },
                { "a.test", "224.0.0.1", "deny names address_refused multicast" },
                { "a.test", "255.255.255.255", "deny names address_refused broadcast" },
                { "a.test", "0.0.0.0", "deny names address_refused unspecified" },
                { "a.test", "fe80::1", "deny names address_refused link_local" },
                { "a.test", "fd00::1", "deny names address_refused private" },
                { "a.test", "::1", "deny names address_refused loopback" },
                { "a.test", "45.1.2.3", "deny names address_refused host" },
                { "a.test", "2a00:5::1", "deny names address_refused host" },
                { "a.test", "44.1.2.3", "deny blocked rule public" },
                { "a.test", "64:ff9b::44.1.2.3", "deny blocked rule public" },
                { "db.corp.test", "10.0.0.5", "allow corp rule private" },
                { "db.corp.test", "10.1.0.5", "deny corp address_refused private" },
                { "db.corp.test", "127.0.0.1", "allow corp rule loopback" },
                { "db.corp.test", "169.254.169.254", "deny corp address_refused metadata" },
                { "db.corp.test", "93.184.216.34", "allow corp rule public" },
                { "wide.test", "10.9.9.9", "deny wide address_refused private" },
                { "wide.test", "127.0.0.1", "deny wide address_refused loopback" },
                { "half.test", "127.0.0.1", "deny half address_refused loopback" },
                { "meta.test", "169.254.169.254", "allow meta rule metadata" },
                { "meta.test", "169.254.169.253", "deny meta address_refused link_local" },
                { "local.test", "169.254.7.7", "allow local rule link_local" },
                { "local.test", "169.254.169.254", "deny local address_refused metadata" },
                { "local.test", "224.0.0.1", "deny local address_refused multicast" },
                { "local.test", "0.0.0.1", "deny local address_refused unspecified" },
                { "link8.test", "169.254.7.7", "deny link8 address_refused link_local" },
        };
        _cleanup_(freep) struct address_set *own = NULL;
        (void) state;
        assert_int_equal(address_set_new(&own), 0);
        assert_int_equal(address_set_add(own, "45.1.0.0/16", NULL), 0);
        assert_int_equal(address_set_add(own, "2a00:5::/32", NULL), 0);
        _cleanup_policy_ struct policy *p = policy(
                "{'rules':[{'action':'deny','name':'blocked','cidr':['44.0.0.0/8']},"
                "{'action':'allow','name':'names','hosts':['a.test']},"
                "{'action':'allow','name':'corp','hosts':['*.corp.test'],'cidr':['10.0.0.0/16','127.0.0.0/8'],'internal':true},"
                "{'action':'allow','name':'wide','hosts':['wide.test'],'cidr':['0.0.0.0/0'],'internal':true},"
                "{'action':'allow','name':'half','hosts':['half.test'],'cidr':['120.0.0.0/5'],'internal':true},"
                "{'action':'allow','name':'meta','hosts':['meta.test'],'cidr':['169.254.169.254'],'internal':true},"
                "{'action':'allow','name':'local','hosts':['local.test'],'cidr':['169.254.0.0/16','224.0.0.0/8','0.0.0.0/8'],'internal':true},"
                "{'action':'allow','name':'link8','hosts':['link8.test'],'cidr':['169.0.0.0/8'],'internal':true}]}");
        for (size_t i = 0; i < ARRAY_SIZE(rows); i++) {
                struct host h;
                struct address a;
                enum address_class class;
                char got[128];
                assert_int_equal(host_parse(rows[i].host, strlen(rows[i].host), &h, NULL), 0);
                assert_int_equal(address_parse(rows[i].addr, &a), 0);
                struct policy_verdict v = policy_request(p, &h, 443, POLICY_TLS, "GET", "/");
                assert_int_equal(v.outcome, POLICY_ALLOW);
                v = policy_address(p, &v, &a, 443, POLICY_TLS, own, &class);
                snprintf(got, sizeof got, "%s %s %s %s", v.outcome == POLICY_ALLOW ? "allow" : "deny", v.rule_name,
                         policy_reason_name(v.reason), address_class_name(class));
                if (!str_eq(got, rows[i].want))
                        fail_msg("%s at %s: %s, not %s", rows[i].host, rows[i].addr, got, rows[i].want);
        }
        /* What was denied stays so. */
        struct policy_verdict deny = policy_dns(p, "other.test"), v;
        struct address a;
        address_parse("93.184.216.34", &a);
        v = policy_address(p, &deny, &a, 443, POLICY_TLS, own, NULL);
        assert_int_equal(v.outcome, POLICY_DENY);
        assert_int_equal(v.reason, REASON_NO_RULE);
        /* A rule that is not there allows nothing. */
        v = (struct policy_verdict){ .outcome = POLICY_ALLOW, .rule = 99 };
        assert_int_equal(policy_address(p, &v, &a, 443, POLICY_TLS, own, NULL).outcome, POLICY_DENY);
        v = (struct policy_verdict){ .outcome = POLICY_ALLOW, .rule = -1 };
        assert_int_equal(policy_address(NULL, &v, &a, 443, POLICY_TLS, own, NULL).outcome, POLICY_DENY);
}

/* --- the rest ---------------------------------------------------------------------------- */

static void test_limits(void **state) {
        (void) state;
        _cleanup_policy_ struct policy *p = policy(
                "{'version':1,'limits':{'connections':7,'bytes_in':9007199254740992},'rules':[{'action':'allow','hosts':['a.test'],"
                "'limits':{'requests_per_minute':60,'bytes_out':1048576,'names':3}}]}");
        struct policy_limits l = policy_total_limits(p);
        assert_int_equal(l.connections, 7);
        assert_true(l.bytes_in == 9007199254740992u);
        assert_int_equal(l.bytes_out, 0);
        l = policy_rule_limits(p, 0);
        assert_int_equal(l.requests_per_minute, 60);
        assert_int_equal(l.bytes_out, 1048576);
        assert_int_equal(l.names, 3);
        l = policy_rule_limits(p, 1);
        assert_int_equal(l.names, 0);
        l = policy_rule_limits(p, -1);
        assert_int_equal(l.names, 0);
        assert_int_equal(policy_total_limits(NULL).connections, 0);
        assert_string_equal(policy_rule_name(p, 0), "rules[0]");
        assert_string_equal(policy_rule_name(p, 1), "default");
        _cleanup_policy_ struct policy *other = policy("{}");
        assert_true(policy_serial(p) != policy_serial(other) && policy_serial(p) && !policy_serial(NULL));
        struct policy *again = policy_ref(p);
        policy_unref(again);
        assert_int_equal(policy_n_rules(p), 1);
        policy_unref(NULL);
        assert_null(policy_ref(NULL));
}

static void test_explain(void **state) {
        static const struct {
                const char *method, *url, *want; /* verdict rule reason inspect stages */
        } rows[] = {
                { NULL, "https://api.test/x", "allow api rule 1 3" },
                { "POST", "https://api.test/x", "deny default method 1 3" },
                { NULL, "https://api.test:8443/x", "deny default port 0 2" },
                { NULL, "https://API.test./x", "allow api rule 1 3" },
                { NULL, "http://api.test", "allow api rule 0 3" },
                { NULL, "https://other.test/", "deny default no_rule 0 1" },
                { NULL, "tcp://git.test:22", "allow ssh rule 0 2" },
                { NULL, "tls://api.test:443", "ask api rule 1 2" },
                { NULL, "https://1.2.3.4/", "deny default address_literal 0 0" },
                { NULL, "tcp://10.0.0.5:5432", "allow db rule 0 2" },
                { NULL, "tcp://10.0.0.6:5432", "deny default address_literal 0 0" },
        };
        (void) state;
        _cleanup_policy_ struct policy *p = policy(
                "{'rules':[{'action':'allow','name':'api','hosts':['api.test'],'methods':['GET']},"
                "{'action':'allow','name':'ssh','hosts':['git.test'],'ports':[22],'protocol':'tcp'},"
                "{'action':'allow','name':'db','cidr':['10.0.0.5'],'internal':true,'ports':[5432],'protocol':'tcp'}]}");
        for (size_t i = 0; i < ARRAY_SIZE(rows); i++) {
                _cleanup_json_ json_t *j = NULL;
                struct error err = ERROR_INIT;
                char got[200];
                if (policy_explain(p, rows[i].url, rows[i].method, &j, &err) < 0)
                        fail_msg("%s: %s", rows[i].url, err.msg);
                snprintf(got, sizeof got, "%s %s %s %d %zu", json_string_value(json_object_get(j, "verdict")),
                         json_string_value(json_object_get(j, "rule")), json_string_value(json_object_get(j, "reason")),
                         json_is_true(json_object_get(j, "inspect")), json_array_size(json_object_get(j, "stages")));
                if (!str_eq(got, rows[i].want))
                        fail_msg("%s: %s, not %s", rows[i].url, got, rows[i].want);
        }
        static const char *const bad[] = { "", "api.test", "ftp://api.test/", "https://", "https://a@b/", "tcp://api.test", "https://[::1]/",
                                           "https://0x7f000001/", "https://a b/" };
        for (size_t i = 0; i < ARRAY_SIZE(bad); i++) {
                json_t *j = NULL;
                assert_int_equal(policy_explain(p, bad[i], NULL, &j, NULL), -EINVAL);
        }
        char longer[9000] = "https://api.test/";
        memset(longer + strlen(longer), 'a', sizeof longer - 1 - strlen(longer));
        longer[sizeof longer - 1] = '\0';
        json_t *j = NULL;
        assert_int_equal(policy_explain(p, longer, NULL, &j, NULL), -EINVAL);
        longer[300] = '\0';
        assert_int_equal(policy_dns(p, longer).reason, REASON_BAD_NAME);
}

static void test_reasons(void **state) {
        (void) state;
        for (unsigned i = 0; i < N_POLICY_REASONS; i++) {
                enum policy_reason r;
                const char *name = policy_reason_name((enum policy_reason) i);
                assert_non_null(policy_reason_text((enum policy_reason) i));
                assert_int_equal(strspn(name, "abcdefghijklmnopqrstuvwxyz_"), strlen(name));
                assert_int_equal(policy_reason_parse(name, &r), 0);
                assert_int_equal(r, i);
        }
        enum policy_reason r;
        assert_int_equal(policy_reason_parse("x", &r), -EINVAL);
        assert_string_equal(policy_reason_name(N_POLICY_REASONS), "internal");
}

/* --- warnings ------------------------------------------------------------------------------ */

/* What is said agrees with what is done: the first address of each special range in the rule's is reached, or named. */
static void agrees(const char *cidr, bool internal, const char *said) {
        char text[256], range[INET_ADDRSTRLEN + 8];
        struct cidr rule, special;
        enum address_class class;
        (void) snprintf(text, sizeof text, "{'rules':[{'action':'allow','cidr':['%s'],'internal':%s}]}", cidr, internal ? "true" : "false");
        struct policy *p = policy(text);
        struct policy_verdict allowed = { .outcome = POLICY_ALLOW, .rule = 0 };
        assert_int_equal(cidr_parse(cidr, &rule), 0);
        for (size_t pos = 0; address_special_next(&pos, &special, &class);) {
                struct in_addr first = { .s_addr = htonl(special.net > rule.net ? special.net : rule.net) };
                if (!cidr_has(&rule, first) || !cidr_has(&special, first))
                        continue;
                struct address a = address_of_v4(first);
                if (address_classify(&a) != class) /* a narrower one's */
                        continue;
                cidr_text(&special, range);
                strcat(range, " ("); /* not the rule's own */
                bool reached = policy_address(p, &allowed, &a, 443, POLICY_TLS, NULL, NULL).outcome == POLICY_ALLOW;
                bool named = strstr(said, range) || strstr(said, "more;");
                if (reached ? strstr(said, range) != NULL : !named)
                        fail_msg("%s: %s is%s reached, and said is: %s", cidr, range, reached ? "" : " not", said);
        }
        policy_unref(p);
}

static void test_warnings(void **state) {
        static const struct {
                const char *cidr;
                bool internal;
                const char *part; /* of the warning; NULL: none */
        } rows[] = {
                { "10.0.0.0/7", false, "rules[0].cidr[0]: \"10.0.0.0/7\" does not reach what is not public in it: 10.0.0.0/8 (private); to reach" },
                { "10.0.0.0/7", true, "10.0.0.0/8 (private); \"internal\" opens such a range only where a narrower one" },
                { "0.0.0.0/0", false, " more;" },
                { "0.0.0.0/0", true, " more;" },
                { "168.0.0.0/6", false, "169.254.169.254/32 (metadata)" },
                { "168.0.0.0/8", false, "168.63.129.16/32 (metadata)" },
                { "169.254.0.0/16", true, "169.254.169.254/32 (metadata), 169.254.170.2/32 (metadata)" },
                { "169.0.0.0/8", true, "169.254.0.0/16 (link_local)" },
                { "126.0.0.0/7", true, "127.0.0.0/8 (loopback)" },
                { "100.64.0.0/10", true, "100.100.100.200/32 (metadata)" },
                { "192.0.0.0/8", false, "192.0.0.192/32 (metadata), 192.0.0.0/24 (reserved), 192.0.2.0/24 (reserved), 192.88.99.0/24 (reserved) and 1 more;" },
                { "10.0.0.0/8", true, NULL },
                { "10.1.0.0/16", true, NULL },
                { "127.0.0.0/8", true, NULL },
                { "169.254.169.254", true, NULL },
                { "8.0.0.0/8", false, NULL },
                { "93.184.216.34", false, NULL },
        };
        (void) state;
        for (size_t i = 0; i < ARRAY_SIZE(rows); i++) {
                json_t *j = json_pack("{s:[{s:s, s:[s], s:b}]}", "rules", "action", "allow", "cidr", rows[i].cidr, "internal", rows[i].internal);
                json_t *w = policy_warnings(j);
                const char *said = w ? json_string_value(json_array_get(w, 0)) : "";
                if (rows[i].part ? !strstr(said, rows[i].part) : w != NULL)
                        fail_msg("%s: %s", rows[i].cidr, said);
                agrees(rows[i].cidr, rows[i].internal, said);
                json_decref(w);
                json_decref(j);
        }
        json_t *j = json_pack("{s:[{s:s, s:[s]}, {s:s, s:[s]}]}", "rules", "action", "deny", "cidr", "10.0.0.0/7", "action", "allow", "hosts", "*");
        assert_null(policy_warnings(j)); /* who denies means all of it */
        json_decref(j);
        assert_null(policy_warnings(NULL));
        j = json_pack("{s:[{s:s, s:[]}]}", "rules", "action", "allow", "cidr");
        for (int i = 0; i < 100; i++)
                (void) json_array_append_new(json_object_get(json_array_get(json_object_get(j, "rules"), 0), "cidr"), json_string("10.0.0.0/7"));
        json_t *w = policy_warnings(j);
        assert_int_equal(json_array_size(w), POLICY_WARNINGS_MAX);
        json_decref(w);
        json_decref(j);
}

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(test_refused),   cmocka_unit_test(test_sizes),     cmocka_unit_test(test_default),
                cmocka_unit_test(test_hosts),     cmocka_unit_test(test_order),     cmocka_unit_test(test_protocols),
                cmocka_unit_test(test_requests),  cmocka_unit_test(test_notes),     cmocka_unit_test(test_presets),   cmocka_unit_test(test_of_hosts),
                cmocka_unit_test(test_literals),  cmocka_unit_test(test_dial),      cmocka_unit_test(test_limits),
                cmocka_unit_test(test_warnings),
                cmocka_unit_test(test_explain),   cmocka_unit_test(test_reasons),
        };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
