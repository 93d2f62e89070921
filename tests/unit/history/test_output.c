/* SPDX-License-Identifier: Apache-2.0 */
#include "test.h"

#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/fd.h"
#include "base/json.h"
#include "output.h"

static void names(void **state) {
        static const struct {
                const char *bytes, *text, *b64;
        } cases[] = { { "/plain", "/plain", NULL },
                      { "/gr\xc3\xbc\xc3\x9f", "/gr\xc3\xbc\xc3\x9f", NULL },
                      { "/\xff", "/\xef\xbf\xbd", "L/8=" },
                      { "/a\xc3", "/a\xef\xbf\xbd", "L2HD" },
                      { "/\xc3\xa9\xc3", "/\xc3\xa9\xef\xbf\xbd", "L8Opww==" },
                      { "/\xed\xa0\x80", "/\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd", "L+2ggA==" } }; /* a surrogate */

        (void) state;
        for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
                _cleanup_json_ json_t *o = json_object();
                assert_int_equal(output_set_name(o, "path", cases[i].bytes, strlen(cases[i].bytes)), 0);
                assert_string_equal(json_string_value(json_object_get(o, "path")), cases[i].text);
                const char *b64 = json_string_value(json_object_get(o, "path_b64"));
                if (cases[i].b64)
                        assert_string_equal(b64, cases[i].b64);
                else
                        assert_null(b64);
        }
}

static void order_is_kept_whatever_the_sizes(void **state) {
        static uint8_t large[600000];
        _cleanup_fd_ int fd = memfd_create("out", MFD_CLOEXEC);
        _cleanup_(output_done) struct output o;
        struct error err = ERROR_INIT;
        char head[9] = "", tail[4] = "";

        (void) state;
        memset(large, 'x', sizeof large);
        output_init(&o, fd);
        assert_int_equal(output_line(&o, json_pack("{s:i}", "a", 1), &err), 0);
        assert_int_equal(output_bytes(&o, large, sizeof large, &err), 0);
        assert_int_equal(output_zeros(&o, 100001, &err), 0);
        assert_int_equal(output_bytes(&o, "end", 3, &err), 0);
        assert_int_equal(output_flush(&o, &err), 0);
        assert_int_equal(lseek(fd, 0, SEEK_END), 8 + sizeof large + 100001 + 3);
        assert_int_equal(pread(fd, head, 8, 0), 8);
        assert_string_equal(head, "{\"a\":1}\n");
        assert_int_equal(pread(fd, tail, 3, 8 + sizeof large + 100001), 3);
        assert_string_equal(tail, "end");
}

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(names),
                cmocka_unit_test(order_is_kept_whatever_the_sizes),
        };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
