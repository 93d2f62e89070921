/* SPDX-License-Identifier: Apache-2.0 */

/* Wildcards below suffixes that many share (attack catalogue XE38), with the list as it is installed. */

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/cleanup.h"
#include "policy/policy.h"
#include "policy/suffix.h"
#include "test.h"

static void test_list(void **state) {
        static const char *const shared[] = { "co.uk", "github.io", "com.au", "s3.amazonaws.com", "blogspot.com" };
        static const char *const own[] = { "example.com", "example.co.uk", "someone.github.io", "internal.corp", "a.test" };
        (void) state;
        for (size_t i = 0; i < ARRAY_SIZE(shared); i++)
                if (!public_suffix_is(shared[i]))
                        fail_msg("%s is shared", shared[i]);
        for (size_t i = 0; i < ARRAY_SIZE(own); i++)
                if (public_suffix_is(own[i]))
                        fail_msg("%s is not shared", own[i]);
}

static void test_policy(void **state) {
        static const struct policy_context ctx = { NULL, 0, public_suffix_is };
        struct error err = ERROR_INIT;
        char text[200];
        struct policy *p = NULL;
        (void) state;
        snprintf(text, sizeof text, "{\"rules\":[{\"action\":\"allow\",\"hosts\":[\"*.%s\"]}]}", "github.io");
        assert_int_equal(policy_parse(text, strlen(text), &ctx, &p, &err), -EINVAL);
        assert_non_null(strstr(err.msg, "rules[0].hosts[0]: \"*.github.io\""));
        snprintf(text, sizeof text, "{\"rules\":[{\"action\":\"allow\",\"shared_suffix\":true,\"hosts\":[\"*.%s\"]}]}", "github.io");
        assert_int_equal(policy_parse(text, strlen(text), &ctx, &p, &err), 0);
        policy_unref(p);
        snprintf(text, sizeof text, "{\"rules\":[{\"action\":\"allow\",\"hosts\":[\"*.%s\",\"github.io\"]}]}", "someone.github.io");
        assert_int_equal(policy_parse(text, strlen(text), &ctx, &p, &err), 0);
        policy_unref(p);
}

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(test_list),
                cmocka_unit_test(test_policy),
        };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
