/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <string.h>

#include "base/cleanup.h"
#include "base/str.h"
#include "hosts.h"

static void urls(void **state) {
        (void) state;
        static const struct {
                const char *url, *entry;
        } good[] = {
                { "http://Archive.Example/debian", "archive.example:80" },
                { "https://index.example/simple", "index.example:443" },
                { "https://index.example:8443", "index.example:8443" },
                { "https://user:secret@index.example/x", "index.example:443" },
                { "https://files.example?x", "files.example:443" },
        };
        static const char *const bad[] = { "",          "index.example",        "file:///srv/mirror", "cdrom:[x]/",
                                           "http://",   "http:///x",            "http://a:/x",        "http://a:b/",
                                           "http://a b", "mirror+file:/etc/x",  "http://a:123456/" };
        char out[300];
        for (size_t i = 0; i < ARRAY_SIZE(good); i++) {
                assert_int_equal(hosts_of_url(good[i].url, out, sizeof out), 0);
                assert_string_equal(out, good[i].entry);
        }
        for (size_t i = 0; i < ARRAY_SIZE(bad); i++)
                assert_true(hosts_of_url(bad[i], out, sizeof out) < 0);
        assert_true(hosts_of_url(good[0].url, out, 8) < 0);
}

int main(void) {
        const struct CMUnitTest tests[] = { cmocka_unit_test(urls) };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
