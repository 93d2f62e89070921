/* SPDX-License-Identifier: Apache-2.0 */
#include "cli.h"
#include "help.h"

static int run(int argc, char **argv) {
        int words = 0;

        if (argc == 0) {
                help_overview(stdout);
                return CLI_OK;
        }
        const struct command *c = command_find(argc, argv, &words);
        if (c && words == argc) {
                help_command(stdout, c);
                return CLI_OK;
        }
        if (argc == 1 && command_is_group(argv[0])) {
                help_group(stdout, argv[0]);
                return CLI_OK;
        }
        const char *near = argc == 1 ? command_suggest("", argv[0]) : NULL;
        if (near)
                return cli_usage("there is no command \"%s\"; did you mean \"%s\"?", argv[0], near);
        return cli_usage("there is no command \"%s\"", argv[argc - 1]);
}

const struct command command_help = {
        .name = "help",
        .synopsis = "[COMMAND]",
        .summary = "Explain a command.",
        .max_args = 2,
        .command_at = -1,
        .args = { COMPLETE_COMMAND, COMPLETE_NONE },
        .run = run,
};
