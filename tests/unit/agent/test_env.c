/* SPDX-License-Identifier: Apache-2.0 */
#include "test.h"

#include <string.h>

#include "env.h"

static size_t count(char *const *env) {
        size_t n = 0;
        while (env[n])
                n++;
        return n;
}

static void order(void **state) {
        (void) state;
        struct identity id = { .env = json_pack("{s:s,s:s}", "A", "sandbox", "HOME", "/elsewhere") };
        struct user u = { .name = "user", .home = "/home/user" };
        json_t *extra = json_pack("{s:s,s:s,s:s}", "A", "request", "EMPTY", "", "Q", "a=\"b\" $x\n");
        char **env = env_build(&id, &u, NULL, false);
        assert_non_null(env);
        assert_string_equal(env_get(env, "A"), "sandbox");
        assert_string_equal(env_get(env, "HOME"), "/elsewhere");
        assert_string_equal(env_get(env, "USER"), "user");
        assert_string_equal(env_get(env, "LOGNAME"), "user");
        assert_string_equal(env_get(env, "PATH"), ENV_DEFAULT_PATH);
        assert_null(env_get(env, "TERM"));
        assert_null(env_get(env, "HOM"));
        env_free(env);
        env = env_build(&id, &u, extra, true);
        assert_non_null(env);
        assert_string_equal(env_get(env, "A"), "request");
        assert_string_equal(env_get(env, "EMPTY"), "");
        assert_string_equal(env_get(env, "Q"), "a=\"b\" $x\n");
        assert_string_equal(env_get(env, "TERM"), "xterm-256color");
        assert_int_equal(count(env), 8);
        env_free(env);
        json_decref(extra);
        json_decref(id.env);
}

int main(void) {
        const struct CMUnitTest tests[] = { cmocka_unit_test(order) };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
