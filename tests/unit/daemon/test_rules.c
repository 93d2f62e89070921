/* SPDX-License-Identifier: Apache-2.0 */
#include "sandbox/sandbox_rules.h"

#include <errno.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/json.h"
#include "test.h"

static int read_text(const char *text, struct sandbox_rules *r) {
        _cleanup_json_ json_t *j = NULL;
        struct error e = ERROR_INIT;
        assert_int_equal(json_parse(text, strlen(text), 4096, &j, &e), 0);
        return sandbox_rules_read(j, r, &e);
}

static void members_replace_and_errors_do_not(void **state) {
        (void) state;
        struct sandbox_rules r = SANDBOX_RULES_DEFAULT, before;
        assert_int_equal(read_text("{\"on_expiry\":\"suspend\",\"idle_s\":7}", &r), 0);
        assert_int_equal(r.on_expiry, SANDBOX_END_SUSPEND);
        assert_int_equal(r.idle_s, 7);
        assert_int_equal(r.on_idle, SANDBOX_END_SUSPEND);
        assert_false(r.wake);
        assert_int_equal(read_text("{\"wake\":true,\"on_idle\":\"pause\"}", &r), 0);
        assert_true(r.wake);
        assert_int_equal(r.on_idle, SANDBOX_END_PAUSE);
        assert_int_equal(r.idle_s, 7);
        static const char *const bad[] = { "{\"on_expiry\":\"pause\"}", "{\"on_expiry\":\"x\"}", "{\"on_idle\":1}",
                                           "{\"idle_s\":-1}", "{\"idle_s\":99999999999}", "{\"wake\":1}",
                                           "{\"wake\":false,\"on_idle\":\"\"}", "{\"checkpoint_every_s\":1}",
                                           "{\"checkpoint_every_s\":60,\"checkpoint_keep\":0}",
                                           "{\"checkpoint_keep\":101}", "{\"checkpoint_every_s\":99999999999}" };
        before = r;
        for (size_t i = 0; i < ARRAY_SIZE(bad); i++) {
                assert_int_equal(read_text(bad[i], &r), -EINVAL);
                assert_memory_equal(&r, &before, sizeof r);
        }
}

static void stored_and_loaded(void **state) {
        (void) state;
        struct sandbox_rules r = SANDBOX_RULES_DEFAULT, back = SANDBOX_RULES_DEFAULT;
        r.ttl_s = 9;
        r.on_expiry = SANDBOX_END_STOP;
        r.idle_s = 11;
        r.on_idle = SANDBOX_END_DELETE;
        r.wake = true;
        r.checkpoint_every_s = 600;
        r.checkpoint_keep = 3;
        _cleanup_json_ json_t *j = sandbox_rules_store(&r);
        _cleanup_free_ char *text = json_to_str(j);
        assert_int_equal(sandbox_rules_load(text, &back), 0);
        assert_int_equal(back.ttl_s, 9);
        assert_int_equal(back.on_expiry, SANDBOX_END_STOP);
        assert_int_equal(back.idle_s, 11);
        assert_int_equal(back.on_idle, SANDBOX_END_DELETE);
        assert_true(back.wake);
        assert_int_equal(back.checkpoint_every_s, 600);
        assert_int_equal(back.checkpoint_keep, 3);
        assert_int_equal(sandbox_rules_load(NULL, &back), 0); /* a row of before */
        assert_int_equal(back.checkpoint_every_s, 0);
        assert_int_equal(back.checkpoint_keep, CHECKPOINT_KEEP_DEFAULT);
        assert_int_equal(back.on_expiry, SANDBOX_END_DELETE);
        assert_int_equal(back.ttl_s, 0);
        assert_int_equal(sandbox_rules_load("{\"wake\":3}", &back), -EBADMSG);
        assert_int_equal(sandbox_rules_load("not json", &back), -EBADMSG);
}

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(members_replace_and_errors_do_not),
                cmocka_unit_test(stored_and_loaded),
        };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
