/* SPDX-License-Identifier: Apache-2.0 */
#include <signal.h>
#include <stdio.h>

#include "base/clock.h"
#include "cli.h"
#include "command.h"
#include "exec.h"
#include "output.h"
#include "sandbox.h"
#include "signals.h"
#include "text.h"

static struct sandbox_options o;
static bool quiet, no_wait;

struct create {
        struct client *c;
        int signum;
        bool waiting; /* for the operation: nothing is lost by ending that at once */
};

/* Ctrl-C while the sandbox is being made takes it back. */
static void on_signal(void *arg, int signum) {
        struct create *cr = arg;

        if (cr->signum || cr->waiting)
                client_interrupt(cr->c);
        if (!cr->signum)
                cr->signum = signum;
}

static int undo(struct create *cr, struct sandbox_created *s) {
        struct api_error e;

        client_resume(cr->c);
        if (s->id && sandbox_delete(cr->c, s->id, &e) < 0)
                cli_fail_code(e.code, "sandbox %s could not be deleted: %s; `cspace rm %s` tries again",
                              s->id, e.message, s->id);
        return CLI_SIGNAL + cr->signum;
}

static int print(const struct sandbox_created *s, uint64_t ms) {
        char took[TEXT_SIZE];

        if (cli()->json) {
                output_json(s->sandbox);
                return CLI_OK;
        }
        puts(s->id);
        if (!quiet && !no_wait) {
                text_duration(ms, took);
                cli_note("created from %s in %s; `cspace shell %s` opens a terminal in it",
                         member_str(s->sandbox, "template"), took, s->id);
        }
        return CLI_OK;
}

static int create(struct create *cr, struct sandbox_created *s) {
        static const int list[] = { SIGINT, SIGTERM, SIGHUP, 0 };
        uint64_t begin = clock_mono_ms();
        struct api_error e;

        struct signals *signals = signals_new(client_loop(cr->c), list, on_signal, cr);
        int r = sandbox_create(cr->c, &o, s, &e);
        /* Watched without a gap: one that is caught while the watch ends would be lost. */
        cr->waiting = true;
        bool wait = r == 0 && !no_wait && !cr->signum;
        int w = wait ? sandbox_wait(cr->c, s, &e) : 0;
        signals_free(signals);
        if (cr->signum)
                return undo(cr, s);
        if (r < 0)
                return api_error_print(&e);
        if (wait) {
                if (w < 0) {
                        int rc = api_error_print(&e);
                        client_resume(cr->c);
                        (void) sandbox_delete(cr->c, s->id, &e); /* a failed one serves nobody */
                        return rc;
                }
                json_t *now = NULL;
                if (cli()->json && sandbox_get(cr->c, s->id, &now, &e) == 0) {
                        json_decref(s->sandbox);
                        s->sandbox = now;
                }
        }
        return print(s, clock_mono_ms() - begin);
}

static int run(int argc, char **argv) {
        struct sandbox_created s = { 0 };
        struct error err = ERROR_INIT;
        struct create cr = { 0 };

        (void) argc;
        (void) argv;
        if (client_new(&cr.c, &err) < 0)
                return cli_fail_err(&err);
        int rc = create(&cr, &s);
        sandbox_created_done(&s);
        client_free(cr.c);
        return rc;
}

static const struct opt opts[] = {
        SANDBOX_OPTS(o),
        { "env", 'e', OPT_LIST, &o.env, "NAME=VALUE",
          "Set a variable for all its commands; NAME alone takes the value it has here.", COMPLETE_NONE, 0,
          0 },
        { "quiet", 'q', OPT_FLAG, &quiet, NULL, "Print the id alone.", COMPLETE_NONE, 0, 0 },
        { "no-wait", 0, OPT_FLAG, &no_wait, NULL, "Do not wait until it runs.", COMPLETE_NONE, 0, 0 },
        OPT_END,
};

const struct command command_create = {
        .name = "create",
        .synopsis = "[OPTION...]",
        .summary = "Create a sandbox and print its id.",
        .details = "It lives until `cspace rm`, or until its --ttl is over. Idle is a sandbox to which no request is made\n"
                   "and no stream is open; what runs in it does not count.\n\n"
                   "  id=$(cspace create --quiet --ttl 1h)\n"
                   "  cspace create --template data --memory 2G --cpus 2 --name work",
        .opts = opts,
        .max_args = 0,
        .command_at = -1,
        .run = run,
};
