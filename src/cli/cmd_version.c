/* SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>

#include "cli.h"
#include "client.h"
#include "command.h"
#include "output.h"
#include "text.h"

/* The version of the program alone is an answer, too: no error when cspaced does not run. */
static int run(struct client *c, int argc, char **argv) {
        _cleanup_json_ json_t *server = NULL;
        struct api_error e;

        (void) argc;
        (void) argv;
        if (client_call(c, "GET", "/v1/version", NULL, 0, &server, &e) < 0)
                server = NULL;
        const char *theirs = server ? member_str(server, "version") : NULL;
        if (cli()->json) {
                _cleanup_json_ json_t *j =
                        json_pack("{s:s, s:s?}", "version", CSPACE_VERSION, "server", theirs);
                output_json(j);
                return CLI_OK;
        }
        printf("cspace %s\n", CSPACE_VERSION);
        fputs("cspaced ", stdout);
        text_put(stdout, theirs ? theirs : "(does not answer)");
        putchar('\n');
        return CLI_OK;
}

const struct command command_version = {
        .name = "version",
        .synopsis = "",
        .summary = "Show the versions of this program and of cspaced.",
        .max_args = 0,
        .command_at = -1,
        .with = run,
};
