/* SPDX-License-Identifier: Apache-2.0 */
#include "test.h"

#include <errno.h>
#include <string.h>

#include "proc_spec.h"

static int read_text(const char *text, struct proc_spec *s, struct error *e) {
        _cleanup_json_ json_t *j = NULL;
        assert_int_equal(json_parse(text, strlen(text), 1 << 20, &j, NULL), 0);
        *s = (struct proc_spec){ 0 };
        return proc_spec_command(s, j, "envs", e);
}

static void good(void **state) {
        (void) state;
        struct proc_spec s;
        assert_int_equal(read_text("{\"cmd\":\"a\",\"args\":[\"\",\"b c\"],\"envs\":{\"K\":\"v\"},\"cwd\":\"/x\",\"new\":1}", &s, NULL), 0);
        assert_string_equal(s.argv[0], "a");
        assert_string_equal(s.argv[1], "");
        assert_string_equal(s.argv[2], "b c");
        assert_null(s.argv[3]);
        assert_string_equal(s.cwd, "/x");
        assert_string_equal(json_string_value(json_object_get(s.envs, "K")), "v");
        proc_spec_done(&s);
        assert_int_equal(read_text("{\"cmd\":\"a\",\"cwd\":\"\",\"args\":null}", &s, NULL), 0);
        assert_null(s.argv[1]);
        assert_null(s.cwd);
        proc_spec_done(&s);
}

static void bad(void **state) {
        (void) state;
        static const char *const texts[] = {
                "{}", "{\"cmd\":\"\"}", "{\"cmd\":1}", "{\"cmd\":\"a\",\"args\":\"b\"}", "{\"cmd\":\"a\",\"args\":[1]}",
                "{\"cmd\":\"a\",\"envs\":{\"\":\"x\"}}", "{\"cmd\":\"a\",\"envs\":{\"A=B\":\"x\"}}", "{\"cmd\":\"a\",\"envs\":{\"A\":1}}",
                "{\"cmd\":\"a\",\"envs\":[]}",
        };
        for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
                struct proc_spec s;
                struct error e = ERROR_INIT;
                assert_int_equal(read_text(texts[i], &s, &e), -EINVAL);
                assert_true(e.msg[0] != '\0');
                proc_spec_done(&s);
        }
}

static void sizes(void **state) {
        (void) state;
        uint16_t c = 1, r = 1;
        _cleanup_json_ json_t *ok = json_pack("{s:i,s:i}", "cols", 100, "rows", 30);
        _cleanup_json_ json_t *zero = json_pack("{s:i,s:i}", "cols", 0, "rows", 30);
        _cleanup_json_ json_t *large = json_pack("{s:i}", "cols", 65536);
        assert_int_equal(proc_spec_size(ok, &c, &r, NULL), 0);
        assert_int_equal(c, 100);
        assert_int_equal(r, 30);
        assert_int_equal(proc_spec_size(zero, &c, &r, NULL), -EINVAL);
        assert_int_equal(proc_spec_size(large, &c, &r, NULL), -EINVAL);
        assert_int_equal(c, 100);
}

int main(void) {
        const struct CMUnitTest tests[] = { cmocka_unit_test(good), cmocka_unit_test(bad), cmocka_unit_test(sizes) };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
