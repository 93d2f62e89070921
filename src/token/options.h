/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "base/error.h"

#define RESOLVERS_MAX 3
#define OPEN_MAX 16

struct options {
        uint64_t timeout_s;
        const char *command; /* NULL: OAuth2 */
        const char *resolvers[RESOLVERS_MAX];
        size_t n_resolvers;
        const char *open[OPEN_MAX]; /* ranges that count as public */
        size_t n_open;
};

int options_parse(int argc, char **argv, struct options *ret, struct error *err);
