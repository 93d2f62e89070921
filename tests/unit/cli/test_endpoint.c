/* SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "endpoint.h"
#include "test.h"

static void good(const char *url, const char *host, unsigned port, const char *authority) {
        struct endpoint e;
        struct error err = ERROR_INIT;

        if (endpoint_parse(url, &e, &err) < 0)
                fail_msg("%s: %s", url, err.msg);
        assert_false(e.local);
        assert_string_equal(e.host, host);
        assert_int_equal(e.port, port);
        assert_string_equal(e.authority, authority);
}

static void test_tcp(void **state) {
        (void) state;
        good("http://localhost", "localhost", 7070, "localhost:7070");
        good("http://localhost/", "localhost", 7070, "localhost:7070");
        good("http://a.example:80", "a.example", 80, "a.example:80");
        good("http://[::1]:8080/", "::1", 8080, "[::1]:8080");
        good("http://[::1]", "::1", 7070, "[::1]:7070");
}

static void test_unix(void **state) {
        (void) state;
        struct endpoint e;

        assert_int_equal(endpoint_parse("unix:/run/x.sock", &e, NULL), 0);
        assert_true(e.local);
        assert_string_equal(e.path, "/run/x.sock");
        assert_int_equal(endpoint_parse("unix:///run/x.sock", &e, NULL), 0);
        assert_string_equal(e.path, "/run/x.sock");
}

static void test_wrong(void **state) {
        (void) state;
        static const char *const urls[] = {
                "",
                "x",
                "unix:",
                "unix:x",
                "http:/x",
                "http://",
                "http://:80",
                "http://a:",
                "http://a:0",
                "http://a:65536",
                "http://a:8o",
                "http://::1",
                "http://[::1",
                "http://[::1]x",
                "http://[]",
                "http://a b",
                "http://u@h",
                "http://a/b",
                "http://a?b",
                "https://a",
                "http://a\r\nX: y",
        };
        struct error err;
        struct endpoint e;

        for (size_t i = 0; i < sizeof urls / sizeof urls[0]; i++) {
                err = ERROR_INIT;
                if (endpoint_parse(urls[i], &e, &err) == 0)
                        fail_msg("\"%s\" was taken", urls[i]);
                assert_true(err.msg[0] != '\0');
        }
}

static void test_resolve(void **state) {
        (void) state;
        char addresses[ENDPOINT_ADDRESSES][INET6_ADDRSTRLEN];
        struct endpoint e;

        assert_int_equal(endpoint_parse("http://127.0.0.1", &e, NULL), 0);
        assert_int_equal(endpoint_resolve(&e, addresses, NULL), 1);
        assert_string_equal(addresses[0], "127.0.0.1");
        assert_int_equal(endpoint_parse("http://[::1]", &e, NULL), 0);
        assert_int_equal(endpoint_resolve(&e, addresses, NULL), 1);
        assert_string_equal(addresses[0], "::1");
}

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(test_tcp),
                cmocka_unit_test(test_unix),
                cmocka_unit_test(test_wrong),
                cmocka_unit_test(test_resolve),
        };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
