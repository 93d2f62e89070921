/* SPDX-License-Identifier: Apache-2.0 */

/* cspace exec and cspace shell. */
#include <stdio.h>
#include <unistd.h>

#include "base/str.h"
#include "cli.h"
#include "command.h"
#include "exec.h"
#include "mem.h"

static struct exec_options exec_opts;
static struct exec_options shell_opts;
static bool background;
static const char *attach_to, *exec_attach_to;

static int stream(struct client *c, const struct exec_options *o, const char *sandbox, int argc,
                  char **argv) {
        _cleanup_free_ char *process = NULL, *target = NULL;
        struct api_error e;

        if (exec_prepare(c, sandbox, o, argc, argv, &process, &target, &e) < 0)
                return api_error_print(&e);
        const struct exec_stream s = {
                .client = c, .sandbox = sandbox, .process = process, .target = target, .options = o, .stays = true
        };
        return exec_stream(&s, NULL);
}

/* --detach: the command is started and left to itself. */
static int start_only(struct client *c, const char *sandbox, int argc, char **argv) {
        _cleanup_free_ char *process = NULL;
        struct api_error e;

        if (exec_start(c, sandbox, &exec_opts, argc, argv, &process, &e) < 0)
                return api_error_print(&e);
        if (cli()->json)
                printf("{\"process_id\":\"%s\"}\n", process);
        else
                printf("%s\n", process);
        if (exec_opts.tty)
                cli_note("`cspace shell --attach %s %s` attaches to it, `cspace kill %s %s` ends it", process, sandbox, sandbox, process);
        else
                cli_note("`cspace exec --attach %s %s` shows its output, `cspace kill %s %s` ends it", process, sandbox, sandbox, process);
        return CLI_OK;
}

static int attach_again(struct client *c, const char *sandbox, const char *process, const struct exec_options *o) {
        _cleanup_free_ char *target = exec_target(sandbox, process);
        const struct exec_stream s = { .client = c, .sandbox = sandbox, .process = process, .target = target, .options = o, .stays = true };

        return exec_stream(&s, NULL);
}

static int run_exec(struct client *c, int argc, char **argv) {
        if (argc < 2 && !exec_attach_to)
                return cli_usage("COMMAND is missing: cspace exec %s", command_exec.synopsis);
        if (exec_attach_to && (argc > 1 || background))
                return cli_usage("--attach goes on with a command; none can be started beside it");
        exec_opts.no_stdin |= exec_attach_to != NULL; /* what it was started with is at its end */
        int rc = background ? CLI_OK : exec_check_terminal(&exec_opts);
        if (rc != CLI_OK)
                return rc;
        return exec_attach_to ? attach_again(c, argv[0], exec_attach_to, &exec_opts)
             : background   ? start_only(c, argv[0], argc - 1, argv + 1)
                            : stream(c, &exec_opts, argv[0], argc - 1, argv + 1);
}

static int run_shell(struct client *c, int argc, char **argv) {
        shell_opts.tty = true;
        if (attach_to && argc > 1)
                return cli_usage("--attach goes on with a command; \"%s\" cannot be started beside it",
                                 argv[1]);
        if (!isatty(STDIN_FILENO))
                return cli_usage("stdin is not a terminal; `cspace exec %s -- COMMAND` needs none", argv[0]);
        return attach_to ? attach_again(c, argv[0], attach_to, &shell_opts) : stream(c, &shell_opts, argv[0], argc - 1, argv + 1);
}

static const struct opt opts_exec[] = {
        EXEC_OPTS(exec_opts),
        EXEC_STREAM_OPTS(exec_opts),
        { "timeout", 0, OPT_SECONDS, &exec_opts.timeout_s, "TIME",
          "Kill the command after so long; exit code 124.", COMPLETE_NONE, 1, 0 },
        { "detach", 'd', OPT_FLAG, &background, NULL, "Start it, print its process id, and leave it running.",
          COMPLETE_NONE, 0, 0 },
        { "attach", 0, OPT_STRING, &exec_attach_to, "PROCESS", "Show the output of a command that was detached, from its begin, and wait for it.",
          COMPLETE_NONE, 0, 0 },
        { "escape", 0, OPT_STRING, &exec_opts.escape, "CHAR",
          "Key for cspace itself at the start of a line (~), or \"none\"; with --tty.", COMPLETE_NONE, 0, 0 },
        OPT_END,
};

const struct command command_exec = {
        .name = "exec",
        .synopsis = "[OPTION...] SANDBOX [--] COMMAND [ARGUMENT...]",
        .summary = "Run a command in a sandbox.",
        .details =
                "Stdin, stdout and stderr are passed byte for byte, signals are forwarded, and a "
                "connection that is "
                "lost is made again. The exit code is that of the command, as for `cspace run`.\n\n"
                "  cspace exec SANDBOX -- uname -a\n"
                "  cspace exec SANDBOX -- sha256sum < big.img",
        .opts = opts_exec,
        .min_args = 1,
        .max_args = -1,
        .command_at = 1,
        .args = { COMPLETE_SANDBOX, COMPLETE_NONE },
        .with = run_exec,
};

static const struct opt opts_shell[] = {
        EXEC_OPTS(shell_opts),
        { "attach", 0, OPT_STRING, &attach_to, "PROCESS", "Go on with a command that was detached from.",
          COMPLETE_NONE, 0, 0 },
        { "escape", 0, OPT_STRING, &shell_opts.escape, "CHAR",
          "Key for cspace itself at the start of a line (~), or \"none\".", COMPLETE_NONE, 0, 0 },
        OPT_END,
};

const struct command command_shell = {
        .name = "shell",
        .synopsis = "[OPTION...] SANDBOX [[--] COMMAND [ARGUMENT...]]",
        .summary = "Open a terminal in a sandbox.",
        .details =
                "Starts a login shell, or COMMAND. At the start of a line `~.` detaches: the shell runs "
                "on, and "
                "`cspace shell --attach PROCESS SANDBOX` comes back to it. `~?` lists the keys.",
        .opts = opts_shell,
        .min_args = 1,
        .max_args = -1,
        .command_at = 1,
        .args = { COMPLETE_SANDBOX, COMPLETE_NONE },
        .with = run_shell,
};
