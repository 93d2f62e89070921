/* SPDX-License-Identifier: Apache-2.0 */
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/str.h"
#include "cli.h"
#include "client.h"
#include "command.h"
#include "mem.h"
#include "operation.h"
#include "output.h"
#include "sandbox.h"

/* pause, resume, suspend, restore, stop, start, wake: one request each, and the wait for its end. */

struct change {
        char *operation, *id;
        bool nothing; /* to be done: there is no operation, and no error */
        bool again;   /* named before: done and told there */
};

/* Whoever wakes a sandbox wants it to run, which it may do already. */
static bool runs(const json_t *sandbox) {
        return strcmp(member_str(sandbox, "state"), "running") == 0;
}

/* Under another name, its id or its name. */
static bool asked_before(const struct change *all, const struct change *this, const char *id) {
        for (const struct change *ch = all; ch < this; ch++)
                if (ch->id && *id && str_eq(ch->id, id))
                        return true;
        return false;
}

static void ask(struct client *c, const char *verb, const char *sandbox, const struct change *all, struct change *ret, int *rc) {
        _cleanup_free_ char *id = client_escape(sandbox), *target = mem_printf("/v1/sandboxes/%s/%s", id, verb);
        _cleanup_json_ json_t *answer = NULL;
        struct api_error e;

        if (client_call(c, "POST", target, NULL, 0, &answer, &e) < 0) {
                bool conflict = api_error_is(&e, "conflict"), wakes = str_eq(verb, "resume") || str_eq(verb, "restore") || str_eq(verb, "start");
                _cleanup_json_ json_t *now = NULL;
                struct api_error ignored;
                if (conflict)
                        (void) sandbox_get(c, sandbox, &now, &ignored);
                ret->again = asked_before(all, ret, member_str(now, "id"));
                ret->nothing = str_eq(verb, "wake") && runs(now);
                if (ret->again || ret->nothing)
                        return;
                cli()->sandbox = sandbox;
                if (conflict && wakes && !runs(now))
                        *rc = cli_fail_code(e.code, "%s; `cspace wake %s` does what applies", e.message, sandbox);
                else
                        *rc = api_error_print(&e);
        } else {
                ret->operation = mem_dup(member_str(json_object_get(answer, "operation"), "id"));
                ret->id = mem_dup(member_str(json_object_get(answer, "operation"), "sandbox_id"));
        }
}

/* Whether there is more to wait for: not when this was told to end. */
static bool await(struct client *c, const char *verb, const char *sandbox, const struct change *ch, json_t *done, int *rc) {
        _cleanup_free_ char *goes_on = mem_printf("the %s goes on all the same; `cspace info %s` shows its state", verb, sandbox);
        _cleanup_json_ json_t *op = NULL;
        struct api_error e;

        if (ch->nothing && !ch->again && !cli()->json)
                puts(sandbox);
        if (!ch->operation)
                return true;
        int r = operation_watch(c, ch->operation, NULL, goes_on, &op, &e);
        if (r > 0)
                *rc = r;
        else if (r < 0)
                *rc = cli_fail_code(e.code, "%s \"%s\": %s", verb, sandbox, e.message);
        if (r != 0)
                return r < 0;
        json_array_append(done, op);
        if (!cli()->json)
                puts(sandbox);
        return true;
}

/* All are asked first: the host works on them side by side. */
static int change_all(const char *verb, int argc, char **argv) {
        struct error err = ERROR_INIT;
        struct client *c = NULL;
        _cleanup_json_ json_t *done = json_array();
        int rc = CLI_OK;

        if (client_new(&c, &err) < 0)
                return cli_fail_err(&err);
        struct change *all = mem_grow(NULL, (size_t) argc, sizeof *all);
        for (int i = 0; i < argc; i++) {
                all[i] = (struct change){ .again = cli_named_before(argv, i) };
                if (!all[i].again)
                        ask(c, verb, argv[i], all, &all[i], &rc);
        }
        for (int i = 0; i < argc && await(c, verb, argv[i], &all[i], done, &rc); i++)
                ;
        if (cli()->json)
                output_json(done);
        for (int i = 0; i < argc; i++) {
                free(all[i].operation);
                free(all[i].id);
        }
        free(all);
        client_free(c);
        return rc;
}

static const struct opt opts[] = { OPT_END };

#define COMMAND(verb, summary_text, details_text)               \
        static int run_##verb(int argc, char **argv) {          \
                return change_all(#verb, argc, argv);           \
        }                                                       \
        const struct command command_##verb = {                 \
                .name = #verb,                                  \
                .synopsis = "SANDBOX...",                       \
                .summary = summary_text,                        \
                .details = details_text,                        \
                .opts = opts,                                   \
                .min_args = 1,                                  \
                .max_args = -1,                                 \
                .command_at = -1,                               \
                .args = { COMPLETE_SANDBOX },                   \
                .run = run_##verb,                              \
        }

COMMAND(pause, "Pause sandboxes: they stay in memory and use no CPU.",
        "Their processes stand still until resume; connections stay open.");
COMMAND(resume, "Let paused sandboxes go on.", "The clock is set before their processes run.");
COMMAND(suspend, "Store sandboxes with their processes, and free their memory.",
        "Also over a restart of the host. Commands that are attached can be attached to again after restore.");
COMMAND(restore, "Let suspended sandboxes go on.", "Processes, open files and servers are as they were.");
COMMAND(stop, "Power sandboxes off and keep their disks.",
        "Processes are asked to end, and ended after 10 seconds.");
COMMAND(start, "Boot stopped sandboxes from their disks.",
        "Also one that failed, where its disk could be kept. Takes as long as a computer needs to boot.");
COMMAND(wake, "Resume, restore or start, whichever applies.", "One that runs already is no error.");
