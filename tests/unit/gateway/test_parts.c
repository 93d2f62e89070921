/* SPDX-License-Identifier: Apache-2.0 */

/* The parts that need no network: heads, refusals, limits, the queue of records, options. */

#include <errno.h>
#include <string.h>

#include "audit_queue.h"
#include "base/cleanup.h"
#include "base/json.h"
#include "h2_head.h"
#include "http_head.h"
#include "options.h"
#include "refusal.h"
#include "test.h"
#include "usage.h"

/* ---- heads --------------------------------------------------------------------------------- */

static const struct http1_head *parse(struct http1_parser *p, const char *text) {
        struct http1_event ev;
        size_t used;
        http1_parse(p, (const uint8_t *) text, strlen(text), &used, &ev);
        assert_int_equal(ev.type, HTTP1_HEAD);
        return ev.head;
}

static bool skip_x(void *arg, const struct http1_field *f) {
        return strcmp(f->name, arg) == 0;
}

static void test_fields(void **state) {
        (void) state;
        struct http1_parser *p = http1_parser_new(HTTP1_REQUESTS);
        const struct http1_head *h = parse(p, "POST http://a.test/x?y HTTP/1.1\r\nHost: a.test\r\nX-A: 1\r\nConnection: X-Hop, content-length\r\n"
                                              "x-hop: 2\r\nContent-Length: 5\r\nTE: trailers\r\nKeep-Alive: 1\r\nX-B: 3\r\nX-C: 4\r\n\r\n");
        _cleanup_buf_ struct buf out = { 0 };
        assert_int_equal(head_forward_fields(&out, h, skip_x, (char[]){ "X-B" }), 0);
        assert_string_equal(buf_str(&out), "X-A: 1\r\nX-C: 4\r\n");
        buf_clear(&out);
        /* The guest cannot name the framing away. */
        assert_int_equal(head_write_framing(&out, h), 0);
        assert_string_equal(buf_str(&out), "Content-Length: 5\r\n");
        http1_parser_free(p);
}

static void test_targets(void **state) {
        (void) state;
        assert_string_equal(head_origin_form("/a%2Fb?c"), "/a%2Fb?c");
        assert_string_equal(head_origin_form("/http://x/"), "/http://x/");
        assert_string_equal(head_origin_form("http://a.test/b?c"), "/b?c");
        assert_string_equal(head_origin_form("https://a.test?c"), "?c");
        assert_string_equal(head_origin_form("http://a.test"), "");
        assert_string_equal(head_origin_form("*"), "*");
        struct host h;
        _cleanup_buf_ struct buf out = { 0 };
        assert_int_equal(host_parse("a.test", 6, &h, NULL), 0);
        assert_int_equal(head_write_host(&out, &h, 443, 443), 0);
        assert_int_equal(head_write_host(&out, &h, 8443, 443), 0);
        assert_string_equal(buf_str(&out), "Host: a.test\r\nHost: a.test:8443\r\n");
}

static void test_h2_head(void **state) {
        (void) state;
        struct h2_head h = { .n = 0 };
        assert_null(h2_head_get(&h, "a"));
        assert_int_equal(h2_head_add(&h, "a", 1, "1", 1), 0);
        assert_int_equal(h2_head_add(&h, "b", 1, "", 0), 0);
        assert_int_equal(h2_head_add(&h, "a", 1, "2", 1), 0);
        assert_int_equal(h2_head_add(&h, "c", 1, "x\0y", 3), -ENOBUFS); /* would be cut for the next reader */
        assert_string_equal(h2_head_get(&h, "a"), "1");
        assert_string_equal(h2_head_get(&h, "b"), "");
        assert_int_equal(h2_head_count(&h, "a"), 2);
        nghttp2_nv nv[LIMIT_HTTP_HEADERS];
        h2_head_nv(&h, nv);
        assert_int_equal(nv[2].valuelen, 1);
        assert_memory_equal(nv[2].value, "2", 1);
        while (h.n < LIMIT_HTTP_HEADERS)
                assert_int_equal(h2_head_add(&h, "x", 1, "y", 1), 0);
        assert_int_equal(h2_head_add(&h, "x", 1, "y", 1), -ENOBUFS);
        h2_head_done(&h);
        char text[LIMIT_HTTP_HEAD];
        memset(text, 'a', sizeof text);
        assert_int_equal(h2_head_add(&h, "n", 1, text, sizeof text - 3), 0);
        assert_int_equal(h2_head_add(&h, "n", 1, "", 0), -ENOBUFS);
        assert_int_equal(h.n, 1);
        h2_head_done(&h);
}

/* ---- refusals ------------------------------------------------------------------------------ */

static void test_refusals(void **state) {
        (void) state;
        for (int r = 0; r < N_POLICY_REASONS; r++) {
                struct refusal refusal = { .reason = (enum policy_reason) r, .host = "a.test", .port = 443, .detail = "\"quoted\"\x01" };
                _cleanup_buf_ struct buf out = { 0 };
                _cleanup_json_ json_t *j = NULL;
                const char *reason = NULL;
                assert_int_equal(refusal_body(&out, &refusal), 0);
                assert_int_equal(json_parse(buf_data(&out), out.len, 4096, &j, NULL), 0);
                assert_int_equal(json_read_str(json_object_get(j, "error"), "reason", true, 64, &reason, NULL), 0);
                assert_string_equal(reason, policy_reason_name(refusal.reason));
                assert_true(refusal_status(refusal.reason) >= 400);
        }
}

/* ---- limits -------------------------------------------------------------------------------- */

static struct policy *policy_of(const char *json) {
        struct policy *p = NULL;
        struct error e = ERROR_INIT;
        if (policy_parse(json, strlen(json), NULL, &p, &e) < 0)
                fail_msg("%s", e.msg);
        return p;
}

static void test_usage(void **state) {
        (void) state;
        uv_loop_t loop;
        uv_loop_init(&loop);
        struct usage *u = usage_new(&loop);
        _cleanup_policy_ struct policy *p = policy_of(
                "{\"version\":1,\"limits\":{\"connections\":3},\"rules\":["
                "{\"name\":\"a\",\"action\":\"allow\",\"hosts\":[\"a.test\"],\"limits\":{\"connections\":2,\"requests_per_minute\":2,\"bytes_out\":10}},"
                "{\"name\":\"b\",\"action\":\"allow\",\"hosts\":[\"b.test\"]}]}");
        assert_int_equal(usage_set_policy(u, p), 0);
        assert_true(usage_open(u, 0) && usage_open(u, 0));
        assert_false(usage_open(u, 0)); /* the rule's */
        assert_true(usage_open(u, 1));
        assert_false(usage_open(u, 1)); /* of all */
        usage_close(u, 0);
        assert_true(usage_open(u, 0));
        assert_true(usage_request(u, 0) && usage_request(u, 0));
        assert_false(usage_request(u, 0));
        assert_true(usage_request(u, 1));
        assert_true(usage_bytes(u, 0, 10, 1000));
        assert_false(usage_bytes(u, 0, 1, 0));

        /* What was used stays with the rule's name, wherever the rule stands now. */
        _cleanup_policy_ struct policy *q = policy_of(
                "{\"version\":1,\"rules\":[{\"name\":\"b\",\"action\":\"allow\",\"hosts\":[\"b.test\"]},"
                "{\"name\":\"a\",\"action\":\"allow\",\"hosts\":[\"a.test\"],\"limits\":{\"bytes_out\":10}}]}");
        assert_int_equal(usage_set_policy(u, q), 0);
        assert_int_equal(usage_total(u).connections, 0);
        assert_true(usage_open(u, 0));
        assert_false(usage_open(u, 1));
        assert_int_equal(usage_total(u).bytes_out, 11);
        usage_free(u);
        uv_loop_close(&loop);
}

/* ---- records ------------------------------------------------------------------------------- */

static void count_call(void *arg) {
        ++*(int *) arg;
}

static void test_queue(void **state) {
        (void) state;
        struct audit_queue *q = audit_queue_new();
        struct audit a;
        const char *lines;
        size_t n, total = 0, batches = 0;
        uint64_t dropped, told = 0;
        int calls = 0;
        audit_init(&a, AUDIT_REQUEST, 1000, "x");
        audit_set_path(&a, "/aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa");
        audit_queue_notify(q, count_call, &calls);
        assert_false(audit_queue_peek(q, &lines, &n, &dropped));
        for (int i = 0; i < 100000; i++)
                audit_queue_add(q, &a);
        assert_int_equal(calls, 1);
        assert_true(audit_queue_bytes(q) <= AUDIT_QUEUE_MAX);
        assert_true(audit_queue_dropped(q) > 0);
        while (audit_queue_peek(q, &lines, &n, &dropped)) {
                assert_true(n > 0 && n <= AUDIT_BATCH_MAX && lines[n - 1] == '\n');
                if (batches++ == 2) { /* a batch that was lost comes again */
                        size_t again;
                        assert_true(audit_queue_peek(q, &lines, &again, &dropped));
                        assert_int_equal(again, n);
                }
                for (size_t i = 0; i < n; i++)
                        total += lines[i] == '\n';
                told += dropped;
                audit_queue_taken(q);
        }
        assert_int_equal(total + told, 100000);
        audit_queue_add(q, &a);
        assert_int_equal(calls, 2);
        audit_queue_free(q);
}

/* ---- options ------------------------------------------------------------------------------- */

static int parse_argv(const char *const *argv, struct options *o) {
        int n = 0;
        while (argv[n])
                n++;
        return options_parse(n, (char **) (uintptr_t) argv, o, NULL);
}

static void test_options(void **state) {
        (void) state;
#define ID "abcdefghijklmnopqrstuvwxyz"
        struct options o;
        const char *fine[] = { "g", "--id", ID, "--trust", "/x", "--resolver", "10.0.0.1", "--resolver", "10.0.0.2:54", NULL };
        const char *no_id[] = { "g", "--trust", "/x", "--resolver", "10.0.0.1", NULL };
        const char *bad_id[] = { "g", "--id", "../x", "--trust", "/x", "--resolver", "10.0.0.1", NULL };
        const char *no_resolver[] = { "g", "--id", ID, "--trust", "/x", NULL };
        const char *no_value[] = { "g", "--id", ID, "--trust", "/x", "--resolver", NULL };
        const char *unknown[] = { "g", "--id", ID, "--color", "x", NULL };
        assert_int_equal(parse_argv(fine, &o), 0);
        assert_int_equal(o.gateway.n_resolvers, 2);
        assert_string_equal(o.gateway.resolvers[1], "10.0.0.2:54");
        assert_int_equal(parse_argv(no_id, &o), -EINVAL);
        assert_int_equal(parse_argv(bad_id, &o), -EINVAL);
        assert_int_equal(parse_argv(no_resolver, &o), -EINVAL);
        assert_int_equal(parse_argv(no_value, &o), -EINVAL);
        assert_int_equal(parse_argv(unknown, &o), -EINVAL);
}

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(test_fields), cmocka_unit_test(test_targets), cmocka_unit_test(test_h2_head), cmocka_unit_test(test_refusals),
                cmocka_unit_test(test_usage),  cmocka_unit_test(test_queue),   cmocka_unit_test(test_options),
        };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
