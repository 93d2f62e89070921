/* SPDX-License-Identifier: Apache-2.0 */
#include "output.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/cleanup.h"
#include "base/str.h"
#include "text.h"

#define OUTPUT_FIELD 12 /* column of values */

void output_json(const json_t *j) {
        _cleanup_free_ char *s = json_dumps(j, JSON_COMPACT | JSON_ENSURE_ASCII | JSON_ENCODE_ANY);

        puts(s ? s : "null");
}

const char *member_str(const json_t *o, const char *key) {
        const char *s = json_string_value(json_object_get(o, key));

        return s ? s : "";
}

int64_t member_int(const json_t *o, const char *key, int64_t fallback) {
        const json_t *v = json_object_get(o, key);

        return json_is_integer(v) ? (int64_t) json_integer_value(v) : fallback;
}

void output_field(const char *name, const char *value) {
        printf("%-*s ", OUTPUT_FIELD, name);
        text_put(stdout, value && *value ? value : "-");
        putchar('\n');
}

void output_fieldf(const char *name, const char *fmt, ...) {
        va_list ap;

        va_start(ap, fmt);
        _cleanup_free_ char *s = mem_vprintf(fmt, ap);
        va_end(ap);
        output_field(name, s);
}

void output_time(const char *name, const char *rfc3339) {
        char relative[TEXT_SIZE];

        if (!rfc3339 || !*rfc3339) {
                output_field(name, "-");
                return;
        }
        text_relative_rfc3339(rfc3339, relative);
        output_fieldf(name, "%s (%s)", rfc3339, relative);
}

const char *output_state_colour(const char *state) {
        static const struct {
                const char *state, *sgr;
        } colours[] = { { "running", "32" }, { "failed", "31" }, { "paused", "36" },
                        { "suspended", "36" }, { "stopped", "36" } };

        for (size_t i = 0; i < ARRAY_SIZE(colours); i++)
                if (str_eq(colours[i].state, state))
                        return colours[i].sgr;
        return *state ? "33" : NULL; /* on the way to one of these */
}
