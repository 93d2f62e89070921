/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Not a test by itself: each line of stdin is a policy, or with the argument "bindings" a list of bindings; for each
 * comes "ok" or the parser's message (tests/integration/policy holds them against schema and documentation).
 */

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "policy/binding.h"
#include "policy/policy.h"
#include "policy/suffix.h"

static int read_policy(const char *line, size_t n, struct error *err) {
        static const char *const hosts[] = { "mirror.test", "*.files.test:8080" };
        static const struct policy_preset preset = { "@packages", hosts, 2 };
        static const struct policy_context ctx = { &preset, 1, public_suffix_is };
        _cleanup_policy_ struct policy *p = NULL;

        return policy_parse(line, n, &ctx, &p, err);
}

static int read_bindings(const char *line, size_t n, struct error *err) {
        _cleanup_(bindings_freep) struct bindings *b = NULL;
        _cleanup_json_ json_t *j = NULL;

        int r = bindings_new(&b);
        if (r == 0)
                r = json_parse(line, n, 65536, &j, err);
        return r == 0 ? bindings_load(b, j, err) : r;
}

int main(int argc, char **argv) {
        bool bindings = argc > 1 && strcmp(argv[1], "bindings") == 0;
        _cleanup_free_ char *line = NULL;
        size_t cap = 0;
        ssize_t n;

        while ((n = getline(&line, &cap, stdin)) > 0) {
                struct error err = ERROR_INIT;
                int r = (bindings ? read_bindings : read_policy)(line, (size_t) n, &err);
                for (char *c = err.msg; *c; c++)
                        if (*c == '\n')
                                *c = ' ';
                printf("%s\n", r < 0 ? err.msg : "ok");
        }
        return 0;
}
