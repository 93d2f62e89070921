/* SPDX-License-Identifier: Apache-2.0 */
#include "setup_report.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/cleanup.h"
#include "base/json.h"
#include "base/str.h"
#include "cli.h"
#include "mem.h"
#include "output.h"
#include "text.h"

static const struct {
        const char *word, *colour;
} verdicts[] = {
        [VERDICT_OK] = { "ok", "\033[32m" },
        [VERDICT_WARN] = { "warn", "\033[33m" },
        [VERDICT_FAIL] = { "fail", "\033[31m" },
};

void report_add(struct report *r, enum verdict v, const char *name, const char *hint, const char *fmt, ...) {
        va_list ap;

        va_start(ap, fmt);
        _cleanup_free_ char *message = mem_vprintf(fmt, ap);
        va_end(ap);
        r->fails += v == VERDICT_FAIL;
        r->warns += v == VERDICT_WARN;
        if (cli()->json) {
                _cleanup_free_ char *safe = text_safe(message);
                if (!r->checks)
                        r->checks = json_array();
                (void) json_array_append_new(r->checks, json_pack("{s:s, s:s, s:s, s:s?}", "name", name, "status", verdicts[v].word,
                                                                  "message", safe, "hint", v == VERDICT_OK ? NULL : hint));
                return;
        }
        bool colour = text_colour(stdout);
        printf("%s%-5s%s%-10s ", colour ? verdicts[v].colour : "", verdicts[v].word, colour ? "\033[0m" : "", name);
        text_put(stdout, message);
        putchar('\n');
        if (v != VERDICT_OK && hint)
                printf("%-15s -> %s\n", "", hint);
}

void report_end(struct report *r) {
        if (cli()->json) {
                _cleanup_json_ json_t *j = json_pack("{s:b, s:i, s:i, s:o}", "ok", r->fails == 0, "failed", (int) r->fails, "warnings",
                                                     (int) r->warns, "checks", r->checks ? r->checks : json_array());
                output_json(j);
                r->checks = NULL;
                return;
        }
        if (r->fails || r->warns)
                printf("%u failed, %u warning%s\n", r->fails, r->warns, str_s(r->warns));
        else
                puts("everything is in order");
}
