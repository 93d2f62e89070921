/* SPDX-License-Identifier: Apache-2.0 */

/*
 * cspace up: makes this host ready and starts the services. Every step looks first whether its work is done, so
 * a second run changes nothing and is quick, and a run after a crash or a reboot mends what is missing.
 */
#include <stdio.h>
#include <unistd.h>

#include "base/json.h"
#include "cli.h"
#include "command.h"
#include "output.h"
#include "setup.h"

static struct setup setup = SETUP_INIT;
static bool prepare_only;

static int set_up(struct error *err) {
        int r = setup_config(&setup, err);

        if (r == 0)
                r = setup_load(&setup, err);
        if (r == 0)
                r = setup_lock(&setup, err);
        if (r == 0)
                r = setup_check_moved(&setup, err);
        if (r == 0)
                r = setup_user(&setup, true, err);
        if (r == 0)
                r = setup_storage(&setup, err);
        if (r == 0)
                r = setup_dirs(&setup, err);
        if (r == 0 && !prepare_only)
                r = setup_services_start(&setup, err);
        return r;
}

static int run(int argc, char **argv) {
        struct error err = ERROR_INIT;

        (void) argc;
        (void) argv;
        if (geteuid() != 0)
                return cli_fail_code("not_root", "up sets up the host and needs root; try: sudo cspace up");
        setup.config = cli()->config;
        int r = set_up(&err);
        setup_done(&setup);
        if (r < 0)
                return cli_fail_err(&err);
        if (prepare_only)
                return CLI_OK;
        if (cli()->json) {
                _cleanup_json_ json_t *j = json_pack("{s:b, s:s, s:s, s:s}", "up", 1, "listen", setup.conf.listen, "run",
                                                     setup.conf.run, "data", setup.conf.data);
                output_json(j);
                return CLI_OK;
        }
        setup_say("cspace is up: API on http://%s and %s/api.sock", setup.conf.listen, setup.conf.run);
        return CLI_OK;
}

static const struct opt opts[] = {
        { "data", 0, OPT_STRING, &setup.data, "DIR", "Data folder instead of the configured one.", COMPLETE_DIR, 0, 0 },
        { "prepare", 0, OPT_FLAG, &prepare_only, NULL, "Make user, folders and data filesystem only; start nothing.", COMPLETE_NONE, 0, 0 },
        { "quiet", 'q', OPT_FLAG, &setup_quiet, NULL, "Print errors only.", COMPLETE_NONE, 0, 0 },
        { "run", 0, OPT_STRING, &setup.run, "DIR", "Folder for sockets instead of the configured one.", COMPLETE_DIR, 0, 0 },
        OPT_END,
};

const struct command command_up = {
        .name = "up",
        .synopsis = "[OPTION...]",
        .summary = "Set up this host and start the services.",
        .details = "Makes the user cspace, /etc/cspace/cspace.conf and the folders, where they are missing; puts the data "
                   "folder on a btrfs image when its filesystem has no reflinks; starts cspace-rootd and cspaced, by systemd "
                   "where it runs, and waits until the API answers. Run again it changes nothing that is in order. Services "
                   "whose program or configuration was changed are restarted; sandboxes go on.\n\n"
                   "  sudo cspace up",
        .opts = opts,
        .max_args = 0,
        .command_at = -1,
        .run = run,
};
