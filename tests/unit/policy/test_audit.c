/* SPDX-License-Identifier: Apache-2.0 */

/* Audit records: what is in them, what never is, and that they read back. */

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/str.h"
#include "policy/audit.h"
#include "test.h"

#define ID "abcdefghijklmnopqrstuvwxyz"

static void check(const struct audit *a, const char *json, const char *text) {
        _cleanup_buf_ struct buf b = { 0 }, t = { 0 };
        struct audit back;
        struct error err = ERROR_INIT;
        assert_int_equal(audit_json(a, &b), 0);
        assert_string_equal(buf_str(&b), json);
        assert_int_equal(audit_text(a, &t), 0);
        assert_string_equal(buf_str(&t), text);
        if (audit_parse(buf_str(&b), b.len - 1, &back, &err) < 0)
                fail_msg("%s: %s", json, err.msg);
        assert_true(audit_same(a, &back));
        assert_int_equal(a->time_ms, back.time_ms);
        assert_int_equal(a->duration_us, back.duration_us);
        assert_int_equal(a->bytes_in, back.bytes_in);
        assert_int_equal(a->bytes_out, back.bytes_out);
        assert_int_equal(a->repeated, back.repeated);
}

static void test_kinds(void **state) {
        struct audit a;
        (void) state;
        audit_init(&a, AUDIT_DNS, 1700000000123, ID);
        const struct policy_verdict deny = { .reason = REASON_NO_RULE, .rule = -1, .rule_name = "default" };
        audit_verdict(&a, &deny);
        audit_set_host(&a, "evil.test", 9);
        a.qtype = 16;
        a.status = 5;
        check(&a,
              "{\"time\":\"2023-11-14T22:13:20.123Z\",\"kind\":\"dns\",\"verdict\":\"deny\",\"rule\":\"default\",\"reason\":\"no_rule\","
              "\"sandbox\":\"" ID "\",\"host\":\"evil.test\",\"type\":\"TXT\",\"status\":5}\n",
              "2023-11-14T22:13:20.123Z deny  dns      TXT evil.test rule=default reason=no_rule\n");

        audit_init(&a, AUDIT_REQUEST, 1700000000000, ID);
        const struct policy_verdict allow = { .outcome = POLICY_ALLOW, .rule = 0, .rule_name = "api" };
        audit_verdict(&a, &allow);
        audit_set_host(&a, "api.test", 8);
        audit_set_method(&a, "POST");
        audit_set_path(&a, "/v1/x?key=SECRET#SECRET");
        a.port = 443;
        a.protocol = POLICY_TLS;
        a.status = 201;
        a.bytes_out = 100;
        a.bytes_in = 20;
        a.duration_us = 12345;
        a.repeated = 3;
        strcpy(a.binding, "b1");
        strcpy(a.address, "93.184.216.34");
        check(&a,
              "{\"time\":\"2023-11-14T22:13:20.000Z\",\"kind\":\"request\",\"verdict\":\"allow\",\"rule\":\"api\",\"reason\":\"rule\","
              "\"sandbox\":\"" ID "\",\"host\":\"api.test\",\"port\":443,\"protocol\":\"tls\",\"address\":\"93.184.216.34\","
              "\"method\":\"POST\",\"path\":\"/v1/x\",\"status\":201,\"binding\":\"b1\",\"bytes_out\":100,\"bytes_in\":20,"
              "\"duration_us\":12345,\"repeated\":3}\n",
              "2023-11-14T22:13:20.000Z allow request  POST https://api.test:443/v1/x -> 201 [93.184.216.34] rule=api binding=b1 "
              "out=100 in=20 12.3ms (and 3 more)\n");

        audit_init(&a, AUDIT_CONNECT, 0, ID);
        audit_verdict(&a, &allow);
        audit_deny(&a, REASON_ADDRESS_REFUSED);
        audit_set_host(&a, "api.test", 8);
        a.port = 22;
        a.protocol = POLICY_TCP;
        a.class = ADDRESS_METADATA;
        strcpy(a.address, "169.254.169.254");
        audit_set_detail(&a, "it %s", "failed\x1b[31m\n");
        check(&a,
              "{\"time\":\"1970-01-01T00:00:00.000Z\",\"kind\":\"connect\",\"verdict\":\"deny\",\"rule\":\"api\",\"reason\":\"address_refused\","
              "\"sandbox\":\"" ID "\",\"host\":\"api.test\",\"port\":22,\"protocol\":\"tcp\",\"address\":\"169.254.169.254\","
              "\"class\":\"metadata\",\"detail\":\"it failed?[31m?\"}\n",
              "1970-01-01T00:00:00.000Z deny  connect  tcp://api.test:22 [169.254.169.254 metadata] rule=api reason=address_refused "
              "it failed?[31m?\n");
}

static void test_paths(void **state) {
        static const struct {
                const char *in, *want;
        } rows[] = {
                { "/a/b", "/a/b" },          { "/a?secret", "/a" },        { "/a#secret", "/a" },
                { "https://h/a?s", "/a" },   { "https://u:SECRET@h/a", "/a" }, { "https://u:SECRET@h?x", "/" },
                { "http://h", "/" },         { "u:SECRET@h:443", "" },     { "*", "*" },
                { "h:443", "" },             { "/a b\r\nX: y", "/a?b??X:?y" }, { "/b\xc3\xbc", "/b\xc3\xbc" },
                { "/\xff\xc3\xbc", "/???" }, { "", "" },                   { "?SECRET", "" },
                { "/a\x7f", "/a?" },          { "/a\"b\\c", "/a\"b\\c" },
        };
        (void) state;
        for (size_t i = 0; i < ARRAY_SIZE(rows); i++) {
                struct audit a;
                audit_init(&a, AUDIT_REQUEST, 0, NULL);
                audit_set_path(&a, rows[i].in);
                if (!str_eq(a.path, rows[i].want))
                        fail_msg("\"%s\" became \"%s\"", rows[i].in, a.path);
        }
        /* Quotes and backslashes survive JSON. */
        struct audit a, back;
        _cleanup_buf_ struct buf line = { 0 };
        audit_init(&a, AUDIT_REQUEST, 0, NULL);
        audit_set_path(&a, "/a\"b\\c");
        assert_int_equal(audit_json(&a, &line), 0);
        assert_int_equal(audit_parse(buf_str(&line), line.len, &back, NULL), 0);
        assert_string_equal(back.path, "/a\"b\\c");
        /* No room: nothing of it. */
        struct buf small = BUF_INIT(40);
        assert_int_equal(audit_json(&a, &small), -ENOBUFS);
        assert_int_equal(small.len, 0);
        buf_done(&small);
        char longer[4 * AUDIT_PATH_MAX];
        for (size_t shift = 1; shift <= 4; shift++) {
                memset(longer, 'a', sizeof longer);
                longer[0] = '/';
                for (size_t i = shift; i + 2 < sizeof longer; i += 2)
                        memcpy(longer + i, "\xc3\xbc", 2);
                longer[sizeof longer - 1] = '\0';
                audit_set_path(&a, longer);
                assert_true(strlen(a.path) <= AUDIT_PATH_MAX && strlen(a.path) > AUDIT_PATH_MAX - 8);
                assert_true(str_has_suffix(a.path, "..."));
        }
        memset(longer, 'a', AUDIT_PATH_MAX);
        longer[0] = '/';
        longer[AUDIT_PATH_MAX] = '\0';
        audit_set_path(&a, longer);
        assert_string_equal(a.path, longer);
}

/* Whatever a guest sends: one line, printable, within the limit, and it reads back. */
static void test_hostile(void **state) {
        struct audit a;
        _cleanup_buf_ struct buf b = { 0 }, t = { 0 };
        char junk[2000];
        (void) state;
        for (size_t i = 0; i < sizeof junk - 1; i++)
                junk[i] = (char) (1 + (i * 7) % 255);
        junk[sizeof junk - 1] = '\0';
        audit_init(&a, AUDIT_REQUEST, 1, ID "too long");
        assert_string_equal(a.sandbox, "");
        audit_set_host(&a, junk, sizeof junk);
        audit_set_method(&a, junk);
        junk[0] = '/';
        audit_set_path(&a, junk);
        audit_set_detail(&a, "%s", junk);
        assert_int_equal(audit_json(&a, &b), 0);
        assert_true(b.len < AUDIT_LINE_MAX);
        assert_int_equal(strcspn(buf_str(&b), "\n"), b.len - 1);
        struct audit back;
        assert_int_equal(audit_parse(buf_str(&b), b.len, &back, NULL), 0);
        assert_true(audit_same(&a, &back));
        assert_int_equal(audit_text(&a, &t), 0);
        for (size_t i = 0; i + 1 < t.len; i++)
                assert_true(buf_data(&t)[i] >= 0x20 && buf_data(&t)[i] < 0x7f);
}

static void test_parse(void **state) {
        static const char *const bad[] = {
                "", "{}", "[]", "x",
                "{\"time\":\"0985-01-01T00:00:00.000Z\",\"kind\":\"dns\",\"verdict\":\"deny\",\"reason\":\"no_rule\"}",
                "{\"time\":\"x\",\"kind\":\"dns\",\"verdict\":\"deny\",\"reason\":\"no_rule\"}",
                "{\"time\":\"1970-01-01T00:00:00.000Z\",\"kind\":\"x\",\"verdict\":\"deny\",\"reason\":\"no_rule\"}",
                "{\"time\":\"1970-01-01T00:00:00.000Z\",\"kind\":\"dns\",\"verdict\":\"x\",\"reason\":\"no_rule\"}",
                "{\"time\":\"1970-01-01T00:00:00.000Z\",\"kind\":\"dns\",\"verdict\":\"deny\",\"reason\":\"x\"}",
                "{\"time\":\"1970-01-01T00:00:00.000Z\",\"kind\":\"dns\",\"verdict\":\"deny\",\"reason\":\"no_rule\",\"port\":65536}",
                "{\"time\":\"1970-01-01T00:00:00.000Z\",\"kind\":\"dns\",\"verdict\":\"deny\",\"reason\":\"no_rule\",\"type\":\"TYPE65536\"}",
                "{\"time\":\"1970-01-01T00:00:00.000Z\",\"kind\":\"dns\",\"verdict\":\"deny\",\"reason\":\"no_rule\",\"protocol\":\"udp\"}",
                "{\"time\":\"1970-01-01T00:00:00.000Z\",\"kind\":\"connect\",\"verdict\":\"deny\",\"reason\":\"no_rule\",\"type\":\"A\"}",
                "{\"time\":\"1970-01-01T00:00:00.000Z\",\"kind\":\"dns\",\"verdict\":\"deny\",\"reason\":\"no_rule\",\"rule\":\"\"}",
                "{\"time\":\"1970-01-01T00:00:00.000Z\",\"kind\":\"dns\",\"verdict\":\"deny\",\"reason\":\"no_rule\",\"class\":\"x\"}",
                "{\"time\":\"1970-01-01T00:00:00.000Z\",\"kind\":\"dns\",\"verdict\":\"deny\",\"reason\":\"no_rule\","
                "\"sandbox\":\"" ID "a\"}",
        };
        (void) state;
        for (size_t i = 0; i < ARRAY_SIZE(bad); i++) {
                struct audit a;
                struct error err = ERROR_INIT;
                if (audit_parse(bad[i], strlen(bad[i]), &a, &err) != -EINVAL)
                        fail_msg("accepted: %s", bad[i]);
        }
        static const char odd[] = "{\"time\":\"1970-01-01T00:00:00.000Z\",\"kind\":\"dns\",\"verdict\":\"deny\",\"reason\":\"no_rule\",\"type\":\"TYPE65399\"}";
        struct audit a;
        assert_int_equal(audit_parse(odd, strlen(odd), &a, NULL), 0);
        assert_int_equal(a.qtype, 65399);
        _cleanup_buf_ struct buf line = { 0 };
        assert_int_equal(audit_text(&a, &line), 0);
        assert_non_null(strstr(buf_str(&line), "TYPE65399"));
        struct audit b = a;
        assert_true(audit_same(&a, &b));
        b.time_ms = 9;
        b.bytes_in = 9;
        assert_true(audit_same(&a, &b));
        b.status = 9;
        assert_false(audit_same(&a, &b));
}

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(test_kinds),
                cmocka_unit_test(test_paths),
                cmocka_unit_test(test_hostile),
                cmocka_unit_test(test_parse),
        };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
