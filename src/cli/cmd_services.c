/* SPDX-License-Identifier: Apache-2.0 */

/* Rows of the commands that look after the services; what they do is in cmd_up.c, cmd_down.c and
 * cmd_doctor.c. */
#include "cli.h"
#include "command.h"

#ifndef HAVE_CMD_UP
int cmd_up(int argc, char **argv) {
        (void) argc;
        (void) argv;
        return cli_fail("not in this build");
}
#endif
#ifndef HAVE_CMD_DOWN
int cmd_down(int argc, char **argv) {
        (void) argc;
        (void) argv;
        return cli_fail("not in this build");
}
#endif
#ifndef HAVE_CMD_DOCTOR
int cmd_doctor(int argc, char **argv) {
        (void) argc;
        (void) argv;
        return cli_fail("not in this build");
}
#endif

const struct command command_up = {
        .name = "up",
        .synopsis = "[OPTION...]",
        .summary = "Set up this host and start the services.",
        .max_args = 0,
        .command_at = -1,
        .raw = true,
        .run = cmd_up,
};

const struct command command_down = {
        .name = "down",
        .synopsis = "[OPTION...]",
        .summary = "Stop the services.",
        .max_args = 0,
        .command_at = -1,
        .raw = true,
        .run = cmd_down,
};

const struct command command_doctor = {
        .name = "doctor",
        .synopsis = "[OPTION...]",
        .summary = "Check what this host has and lacks.",
        .max_args = 0,
        .command_at = -1,
        .raw = true,
        .run = cmd_doctor,
};
