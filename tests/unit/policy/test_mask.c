/* SPDX-License-Identifier: Apache-2.0 */

/* Masking of a response: the same result wherever it is cut, of the same length, and nothing held back without
 * need. */

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/str.h"
#include "policy/binding.h"
#include "test.h"

static struct bindings *bindings;

static struct mask *mask_for(const char *inject, const char *secret) {
        static struct host h;
        _cleanup_json_ json_t *list = NULL, *j = NULL;
        struct mask *m = NULL;
        assert_int_equal(json_parse(inject, strlen(inject), 4096, &j, NULL), 0);
        list = json_pack("[{s:s,s:s,s:[s],s:O}]", "id", "b", "credential", "c", "hosts", "a.test", "inject", j);
        bindings_free(bindings);
        bindings = NULL;
        assert_int_equal(bindings_new(&bindings), 0);
        assert_int_equal(bindings_load(bindings, list, NULL), 0);
        assert_int_equal(bindings_set_secret(bindings, "c", secret, strlen(secret), 0, NULL), 0);
        assert_int_equal(host_parse("a.test", 6, &h, NULL), 0);
        const struct binding_request q = { .host = &h, .port = 443, .protocol = POLICY_TLS, .method = "GET", .target = "/" };
        struct binding_use u = bindings_judge(bindings, &q, 0, 1);
        assert_int_equal(u.outcome, BINDING_ADD);
        assert_int_equal(mask_new(&u, &m), 0);
        return m;
}
#define HEADER "{\"as\":\"header\",\"name\":\"X-Key\"}"

static int teardown(void **state) {
        (void) state;
        bindings_free(bindings);
        bindings = NULL;
        return 0;
}

static void run(struct mask *m, const char *in, size_t piece, struct buf *out) {
        size_t n = strlen(in);
        while (n > 0) {
                size_t take = piece < n ? piece : n;
                char *copy = malloc(take);
                memcpy(copy, in, take);
                assert_int_equal(mask_feed(m, copy, take, out), 0);
                free(copy);
                in += take;
                n -= take;
        }
        assert_int_equal(mask_end(m, out), 0);
}

static void check(const char *inject, const char *secret, const char *in, const char *want) {
        _cleanup_(mask_freep) struct mask *m = mask_for(inject, secret);
        for (size_t piece = 1; piece <= strlen(in) + 1; piece++) {
                _cleanup_buf_ struct buf out = { 0 };
                run(m, in, piece, &out);
                if (!str_eq(buf_str(&out), want))
                        fail_msg("%zu: %s\nnot %s", piece, buf_str(&out), want);
        }
        _cleanup_free_ char *text = strdup(in);
        mask_text(m, text, strlen(text));
        assert_string_equal(text, want);
}

static void test_masked(void **state) {
        (void) state;
        check(HEADER, "abcabcabd", "", "");
        check(HEADER, "abcabcabd", "nothing here", "nothing here");
        check(HEADER, "abcabcabd", "xabcabcabdx", "x*********x");
        check(HEADER, "abcabcabd", "abcabcabdabcabcabd", "******************");
        check(HEADER, "abcabcabd", "abcabcabcabd", "abc*********");
        check(HEADER, "abcabcabd", "abcabcabab", "abcabcabab");
        check(HEADER, "abcabcabd", "abcabcab", "abcabcab");
        check(HEADER, "abcabcabd", "{\"authorization\":\"Bearer abcabcabd\"}", "{\"authorization\":\"Bearer *********\"}");
        check(HEADER, "aaaaaaaa", "aaaaaaaaaaaaaaaaaaa", "****************aaa");
}

static void test_forms(void **state) {
        (void) state;
        /* The password, and the pair as it was sent. */
        check("{\"as\":\"basic\",\"user\":\"git\"}", "s3cr3t-v4lue", "s3cr3t-v4lue Z2l0OnMzY3IzdC12NGx1ZQ== Basic Z2l0",
              "************ ************************ Basic Z2l0");
        check("{\"as\":\"query\",\"name\":\"k\"}", "a b&c d&e", "?k=a%20b%26c%20d%26e a b&c d&e", "?k=***************** *********");
        check("{\"as\":\"header\",\"name\":\"A\",\"template\":\"Bearer {secret}\"}", "s3cr3t-v4lue", "Bearer x Bearer s3cr3t-v4lue",
              "Bearer x Bearer ************");
}

static void test_holds_back_little(void **state) {
        (void) state;
        _cleanup_(mask_freep) struct mask *m = mask_for(HEADER, "abcabcabd");
        _cleanup_buf_ struct buf out = { 0 };
        assert_int_equal(mask_feed(m, "data: 1\n\n", 9, &out), 0);
        assert_int_equal(out.len, 9);
        assert_int_equal(mask_feed(m, "xab", 3, &out), 0);
        assert_int_equal(out.len, 10);
        assert_int_equal(mask_feed(m, "", 0, &out), 0);
        assert_int_equal(mask_feed(m, "y", 1, &out), 0);
        assert_int_equal(out.len, 13);
        assert_int_equal(mask_count(m), 0);
        assert_int_equal(mask_feed(m, "abcabcabd", 9, &out), 0);
        assert_int_equal(mask_count(m), 1);
        assert_int_equal(out.len, 22);
        assert_int_equal(mask_end(m, &out), 0);
        assert_string_equal(buf_str(&out), "data: 1\n\nxaby*********");
}

static void test_nothing_to_mask(void **state) {
        struct mask *m = NULL;
        const struct binding_use none = { 0 };
        (void) state;
        assert_int_equal(mask_new(&none, &m), -ENOENT);
        mask_free(NULL);
}

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(test_masked),
                cmocka_unit_test(test_forms),
                cmocka_unit_test(test_holds_back_little),
                cmocka_unit_test(test_nothing_to_mask),
        };
        return cmocka_run_group_tests(tests, NULL, teardown);
}
