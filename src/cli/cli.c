/* SPDX-License-Identifier: Apache-2.0 */
#include "cli.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/json.h"
#include "base/str.h"
#include "text.h"

struct cli_globals cli_globals;

static void print_json(const char *code, const char *message) {
        _cleanup_json_ json_t *e = json_pack("{s:{s:s, s:s}}", "error", "code", code, "message", message);
        _cleanup_free_ char *text = e ? json_dumps(e, JSON_COMPACT | JSON_ENSURE_ASCII) : NULL;

        fprintf(stderr, "%s\n",
                text ? text : "{\"error\":{\"code\":\"failure\",\"message\":\"out of memory\"}}");
}

__attribute__((format(printf, 2, 0))) static void print_error(const char *code, const char *fmt, va_list ap) {
        _cleanup_free_ char *message = mem_vprintf(fmt, ap);
        _cleanup_free_ char *safe = text_safe(message);

        fflush(stdout);
        if (cli()->json)
                print_json(code, safe);
        else
                fprintf(stderr, "cspace: %s\n", safe);
}

int cli_fail(const char *fmt, ...) {
        va_list ap;

        va_start(ap, fmt);
        print_error("failure", fmt, ap);
        va_end(ap);
        return CLI_FAILURE;
}

int cli_fail_code(const char *code, const char *fmt, ...) {
        va_list ap;

        va_start(ap, fmt);
        print_error(code, fmt, ap);
        va_end(ap);
        return CLI_FAILURE;
}

int cli_fail_err(const struct error *err) {
        return cli_fail("%s", err->msg);
}

int cli_usage(const char *fmt, ...) {
        va_list ap;

        va_start(ap, fmt);
        _cleanup_free_ char *message = mem_vprintf(fmt, ap);
        va_end(ap);
        const char *command = cli()->command;
        bool question = *message && message[strlen(message) - 1] == '?';
        cli_fail_code("usage", "%s%s%s%s `cspace %s%s--help` says more", command ? command : "",
                      command ? ": " : "", message, question ? "" : ";", command ? command : "",
                      command ? " " : "");
        return CLI_USAGE;
}

bool cli_named_before(char *const *names, int i) {
        for (int k = 0; k < i; k++)
                if (str_eq(names[k], names[i]))
                        return true;
        return false;
}

void cli_note(const char *fmt, ...) {
        va_list ap;

        if (cli()->json)
                return;
        va_start(ap, fmt);
        _cleanup_free_ char *message = mem_vprintf(fmt, ap);
        va_end(ap);
        fflush(stdout);
        fputs("cspace: ", stderr);
        text_put(stderr, message);
        fputc('\n', stderr);
}

int cli_finish(int rc) {
        if (fflush(stdout) == 0 && !ferror(stdout))
                return rc;
        /* A reader that has seen enough (`cspace ls | head -1`) is not told about it. */
        if (errno != EPIPE)
                cli_fail("cannot write the output: %s", strerror(errno));
        return CLI_FAILURE;
}
