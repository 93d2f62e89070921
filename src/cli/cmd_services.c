/* SPDX-License-Identifier: Apache-2.0 */

/* Rows that hold the place of up, down and doctor while those are not in the build. */
#include "cli.h"
#include "command.h"

static int run(int argc, char **argv) {
        (void) argc;
        (void) argv;
        return cli_fail("not in this build");
}

const struct command command_up = { .name = "up", .synopsis = "", .summary = "Set up this host and start the services.", .run = run };
const struct command command_down = { .name = "down", .synopsis = "", .summary = "Stop the services.", .run = run };
const struct command command_doctor = { .name = "doctor", .synopsis = "", .summary = "Check what this host has and lacks.", .run = run };
