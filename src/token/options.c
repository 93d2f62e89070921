/* SPDX-License-Identifier: Apache-2.0 */
#include "options.h"

#include <errno.h>
#include <string.h>

#include "base/str.h"

static int take(struct options *o, const char *name, const char *value, struct error *err) {
        if (str_eq(name, "--timeout"))
                return str_to_u64(value, 300, &o->timeout_s) < 0 || o->timeout_s == 0
                               ? error_set(err, -EINVAL, "--timeout is from 1 to 300 seconds") : 0;
        if (str_eq(name, "--command") && value[0] == '/') {
                o->command = value;
                return 0;
        }
        if (str_eq(name, "--resolver") && o->n_resolvers < RESOLVERS_MAX) {
                o->resolvers[o->n_resolvers++] = value;
                return 0;
        }
        if (str_eq(name, "--open") && o->n_open < OPEN_MAX) {
                o->open[o->n_open++] = value;
                return 0;
        }
        return error_set(err, -EINVAL, "%s is no option, or one too many", name);
}

int options_parse(int argc, char **argv, struct options *ret, struct error *err) {
        *ret = (struct options){ .timeout_s = 30 };
        if (argc % 2 == 0)
                return error_set(err, -EINVAL, "an option has no value");
        for (int i = 1; i + 1 < argc; i += 2) {
                int r = take(ret, argv[i], argv[i + 1], err);
                if (r < 0)
                        return r;
        }
        if (!ret->command && ret->n_resolvers == 0)
                return error_set(err, -EINVAL, "--command or a --resolver is needed");
        return 0;
}
