/* SPDX-License-Identifier: Apache-2.0 */

/* List filters in the encodings that clients put them on the wire. */

#include "test.h"

#include <errno.h>
#include <string.h>

#include "base/json.h"
#include "base/limits.h"
#include "proxy/e2b_query.h"
#include "wire/http1.h"

static json_t *parse(const char *text) {
        struct error err = ERROR_INIT;
        json_t *j = NULL;

        int r = e2b_parse_metadata(text, &j, &err);
        if (r < 0) {
                assert_null(j);
                assert_true(err.msg[0]);
                return NULL;
        }
        return j;
}

/* From the query string as the client sends it. */
static json_t *parse_wire(const char *target) {
        struct buf b = BUF_INIT(0);

        assert_int_equal(http1_query_get(target, "metadata", &b), 1);
        json_t *j = parse(buf_str(&b));
        buf_done(&b);
        return j;
}

static void expect(json_t *j, const char *key, const char *value) {
        assert_non_null(j);
        assert_non_null(json_object_get(j, key));
        assert_string_equal(json_string_value(json_object_get(j, key)), value);
}

static void test_three_times(void **state) {
        (void) state;
        json_t *j = parse_wire("/v2/sandboxes?limit=5&metadata=k%2525201%3Dv%2525262");
        expect(j, "k 1", "v&2");
        assert_int_equal(json_object_size(j), 1);
        json_decref(j);

        j = parse_wire("/v2/sandboxes?metadata=a%3D1%26b%3D%2525253D%2526c%253D3");
        /* The second '&' and '=' were escaped once more, so they are escaped still. */
        expect(j, "a", "1");
        json_decref(j);

        j = parse_wire("/v2/sandboxes?metadata=caf%2525C3%2525A9%3D%2525E2%252598%252583");
        expect(j, "caf\xc3\xa9", "\xe2\x98\x83");
        json_decref(j);
}

static void test_plain(void **state) {
        (void) state;
        json_t *j = parse("a=1&b=&=c&d=x=y");
        expect(j, "a", "1");
        expect(j, "b", "");
        expect(j, "", "c");
        expect(j, "d", "x=y");
        assert_int_equal(json_object_size(j), 4);
        json_decref(j);

        j = parse("");
        assert_non_null(j);
        assert_int_equal(json_object_size(j), 0);
        json_decref(j);

        j = parse("a=1&a=1&");
        assert_int_equal(json_object_size(j), 1);
        json_decref(j);
}

static void test_bad(void **state) {
        static const char *const bad[] = {
                "a", "a=%", "a=%2", "a=%zz", "a=%2500", "a=%00", "a=%25ff", "%25ff=a", "a=1&a=2", "a=1&b",
        };

        (void) state;
        for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
                assert_null(parse(bad[i]));
}

static void test_too_many(void **state) {
        char text[LIMIT_METADATA_ITEMS * 8 + 16] = "";

        (void) state;
        for (int i = 0; i < LIMIT_METADATA_ITEMS + 1; i++) {
                char pair[16];
                snprintf(pair, sizeof(pair), "&k%d=v", i);
                strcat(text, pair);
        }
        assert_null(parse(text));
        *strrchr(text, '&') = '\0';
        json_t *j = parse(text);
        assert_int_equal(json_object_size(j), LIMIT_METADATA_ITEMS);
        json_decref(j);
}

static void test_states(void **state) {
        struct error err = ERROR_INIT;
        unsigned s = 77;

        (void) state;
        assert_int_equal(e2b_parse_states("running", &s, &err), 0);
        assert_int_equal(s, E2B_STATE_RUNNING);
        assert_int_equal(e2b_parse_states("paused,running", &s, &err), 0);
        assert_int_equal(s, E2B_STATE_RUNNING | E2B_STATE_PAUSED);
        assert_int_equal(e2b_parse_states("", &s, &err), 0);
        assert_int_equal(s, E2B_STATE_RUNNING | E2B_STATE_PAUSED);
        s = 77;
        assert_int_equal(e2b_parse_states("runnin", &s, &err), -EINVAL);
        assert_int_equal(e2b_parse_states("running,,paused", &s, &err), -EINVAL);
        assert_int_equal(e2b_parse_states("running;paused", &s, &err), -EINVAL);
        assert_int_equal(s, 77);
}

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(test_three_times), cmocka_unit_test(test_plain), cmocka_unit_test(test_bad),
                cmocka_unit_test(test_too_many),    cmocka_unit_test(test_states),
        };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
