/* SPDX-License-Identifier: Apache-2.0 */

/* cspace kill and cspace ttl: one request each. */
#include <signal.h>
#include <stdio.h>

#include "base/cleanup.h"
#include "base/limits.h"
#include "base/str.h"
#include "cli.h"
#include "client.h"
#include "command.h"
#include "mem.h"
#include "output.h"
#include "signals.h"

static int call(struct client *c, const char *method, const char *target, const json_t *body, json_t **ret) {
        struct api_error e;

        return client_call(c, method, target, body, 0, ret, &e) < 0 ? api_error_print(&e) : CLI_OK;
}

static int run_kill(struct client *c, int argc, char **argv) {
        _cleanup_free_ char *id = client_escape(argv[0]), *process = client_escape(argv[1]);
        _cleanup_free_ char *target = mem_printf("/v1/sandboxes/%s/commands/%s/signal", id, process);
        uint64_t number = 0;
        int signum = argc > 2 ? signals_number(argv[2]) : SIGTERM;

        if (argc > 2 && str_to_u64(argv[2], 64, &number) == 0)
                signum = (int) number;
        if (signum <= 0)
                return cli_usage("\"%s\" is no signal; write it as TERM, SIGTERM or 15", argv[2]);
        _cleanup_json_ json_t *body = json_pack("{s:i}", "signal", signum), *answer = NULL;
        return call(c, "POST", target, body, &answer);
}

static int run_ttl(struct client *c, int argc, char **argv) {
        _cleanup_free_ char *id = client_escape(argv[0]), *target = mem_printf("/v1/sandboxes/%s", id);
        _cleanup_json_ json_t *body = NULL, *answer = NULL;
        uint64_t s = 0;

        (void) argc;
        if (str_to_seconds(argv[1], &s) < 0)
                return cli_usage("\"%s\" is not a time; write it as 30s, 5m, 2h or 7d, or 0 for no limit", argv[1]);
        if (s > LIMIT_TTL_MAX_S)
                return cli_usage("\"%s\" is more than %llud", argv[1], LIMIT_TTL_MAX_S / 86400);
        body = json_pack("{s:I}", "ttl_s", (json_int_t) s);
        int rc = call(c, "PATCH", target, body, &answer);
        if (rc != CLI_OK)
                return rc;
        if (cli()->json)
                output_json(answer);
        else
                output_time("Expires:", json_string_value(json_object_get(answer, "expires_at")));
        return CLI_OK;
}

const struct command command_kill = {
        .name = "kill",
        .destructive = true,
        .synopsis = "SANDBOX PROCESS [SIGNAL]",
        .summary = "Send a signal to a command in a sandbox.",
        .details = "PROCESS is what `cspace info` and `cspace exec --detach` show. The signal (TERM) goes to all processes "
                   "of the command. The sandbox itself is deleted by `cspace rm`.\n\n"
                   "  cspace kill work 01jd9x3k2m7p4q8r5s6t0v1wxy KILL",
        .min_args = 2,
        .max_args = 3,
        .command_at = -1,
        .args = { COMPLETE_SANDBOX, COMPLETE_PROCESS },
        .with = run_kill,
};

const struct command command_ttl = {
        .name = "ttl",
        .synopsis = "SANDBOX TIME",
        .summary = "Let a sandbox live so long from now on.",
        .details = "TIME is 30s, 5m, 2h or 7d, at most 30d; 0: without limit.\n\n  cspace ttl work 2h",
        .min_args = 2,
        .max_args = 2,
        .command_at = -1,
        .args = { COMPLETE_SANDBOX, COMPLETE_NONE },
        .with = run_ttl,
};
