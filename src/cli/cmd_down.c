/* SPDX-License-Identifier: Apache-2.0 */

/*
 * cspace down: after it nothing of cspace runs on the host: no service, no sandbox, no mount. What is on disk
 * stays. With --keep sandboxes go on without the services, which find them again at the next `up`.
 */
#include <stdio.h>
#include <unistd.h>

#include "base/json.h"
#include "cli.h"
#include "command.h"
#include "output.h"
#include "setup.h"

static struct setup setup = SETUP_INIT;
static bool keep;

static int take_down(struct error *err) {
        struct error why = ERROR_INIT;
        int r = setup_load_running(&setup, &why);
        bool wrong = r == 1;

        if (r < 0)
                *err = why;
        if (r >= 0)
                r = setup_lock(&setup, err);
        if (r == 0 && wrong)
                cli_note("%s; going on with %s in %s", why.msg,
                         setup_take_noted(&setup) ? "the configuration that the services were started with" : "what can be read of it",
                         setup.conf.run);
        if (r == 0)
                r = setup_services_stop(&setup, err);
        if (r < 0 || keep)
                return r;
        r = setup_sweep(&setup, err);
        return r < 0 ? r : setup_storage_end(&setup, err);
}

static int run(int argc, char **argv) {
        struct error err = ERROR_INIT;

        (void) argc;
        (void) argv;
        if (geteuid() != 0)
                return cli_fail_code("not_root", "down stops services of the host and needs root; try: sudo cspace down");
        int r = take_down(&err);
        setup_done(&setup);
        if (r < 0)
                return cli_fail_err(&err);
        if (cli()->json) {
                _cleanup_json_ json_t *j = json_pack("{s:b, s:b}", "up", 0, "kept", keep);
                output_json(j);
                return CLI_OK;
        }
        setup_say(keep ? "cspace is down; sandboxes go on" : "cspace is down");
        return CLI_OK;
}

static const struct opt opts[] = {
        { "data", 0, OPT_STRING, &setup.data, "DIR", "Data folder instead of the configured one.", COMPLETE_DIR, 0, 0 },
        { "keep", 0, OPT_FLAG, &keep, NULL, "Let sandboxes go on.", COMPLETE_NONE, 0, 0 },
        { "quiet", 'q', OPT_FLAG, &setup_quiet, NULL, "Print errors only.", COMPLETE_NONE, 0, 0 },
        { "run", 0, OPT_STRING, &setup.run, "DIR", "Folder for sockets instead of the configured one.", COMPLETE_DIR, 0, 0 },
        OPT_END,
};

const struct command command_down = {
        .name = "down",
        .destructive = true,
        .synopsis = "[OPTION...]",
        .summary = "Stop the services and end all sandboxes.",
        .details = "Ends every sandbox as a power cut would: what its programs had not written is lost, its disk stays. "
                   "Delete a sandbox (cspace rm) to be rid of the disk as well. With --keep the VMs run on without the "
                   "services, and the next `cspace up` finds them.\n\n"
                   "  sudo cspace down",
        .opts = opts,
        .max_args = 0,
        .command_at = -1,
        .run = run,
};
