/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Not a test by itself: each line of stdin is a policy; for each comes "ok" or the parser's message
 * (tests/integration/policy holds them against the schema).
 */

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "policy/policy.h"
#include "policy/suffix.h"

int main(void) {
        static const char *const hosts[] = { "mirror.test", "*.files.test:8080" };
        static const struct policy_preset preset = { "@packages", hosts, 2 };
        static const struct policy_context ctx = { &preset, 1, public_suffix_is };
        _cleanup_free_ char *line = NULL;
        size_t cap = 0;
        ssize_t n;

        while ((n = getline(&line, &cap, stdin)) > 0) {
                _cleanup_policy_ struct policy *p = NULL;
                struct error err = ERROR_INIT;
                int r = policy_parse(line, (size_t) n, &ctx, &p, &err);
                for (char *c = err.msg; *c; c++)
                        if (*c == '\n')
                                *c = ' ';
                printf("%s\n", r < 0 ? err.msg : "ok");
        }
        return 0;
}
