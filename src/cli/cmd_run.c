/* SPDX-License-Identifier: Apache-2.0 */

/*
 * cspace run: create, one command, delete. Whatever ends it (the command, a signal, an error of
 * its own), the sandbox goes with it, unless --keep says otherwise.
 */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/fd.h"
#include "cli.h"
#include "command.h"
#include "denials.h"
#include "exec.h"
#include "lease.h"
#include "mem.h"
#include "sandbox.h"
#include "signals.h"
#include "text.h"

static struct sandbox_options sandbox_opts;
static struct exec_options exec_opts;
static bool keep, timing;
static const char *timing_file;

/* What a signal does depends on where we are. */
enum phase {
        PHASE_ASK,    /* the create request is out: its answer, which has the id, must be had */
        PHASE_CREATE, /* waiting for the sandbox: given up at once */
        PHASE_STREAM, /* exec_stream() forwards signals itself */
        PHASE_DELETE, /* goes on; only an insisting user gets out */
};

struct run {
        struct client *c;
        enum phase phase;
        int signum;    /* the first one that asked for an end */
        int impatient; /* signals since then */
        struct sandbox_created sandbox;
        struct lease *lease; /* NULL: the sandbox lives without us */
        uint64_t begin_us, created_us, started_us, exited_us, deleted_us;
};

#define RUN_IMPATIENT 3

static void on_signal(void *arg, int signum) {
        struct run *r = arg;

        if (r->phase == PHASE_STREAM)
                return;
        if (!r->signum)
                r->signum = signum;
        r->impatient++;
        if (r->phase == PHASE_CREATE || r->impatient >= RUN_IMPATIENT)
                client_interrupt(r->c);
        else if (r->phase == PHASE_DELETE && r->impatient == 1)
                cli_note("deleting the sandbox; a moment");
}

static int stopped(const struct run *r) {
        return CLI_SIGNAL + r->signum;
}

/* `cspace run base python3`, as other tools have it. */
static void hint_template(struct client *c, const char *word) {
        _cleanup_free_ char *ref = client_escape(word), *target = mem_printf("/v1/templates/%s", ref);
        struct api_error e;

        if (client_call(c, "GET", target, NULL, 0, NULL, &e) == 0)
                cli_note("\"%s\" is a template: cspace run --template %s -- COMMAND", word, word);
}

static int run_in_sandbox(struct run *r, int argc, char **argv) {
        _cleanup_free_ char *process = NULL, *target = NULL;
        struct api_error e;

        if (exec_prepare(r->c, r->sandbox.id, &exec_opts, argc, argv, &process, &target, &e) < 0)
                return r->signum ? stopped(r) : api_error_print(&e);
        if (r->signum)
                return stopped(r);
        const struct exec_stream s = {
                .client = r->c,
                .sandbox = r->sandbox.id,
                .process = process,
                .target = target,
                .options = &exec_opts,
                .started_us = &r->started_us,
        };
        r->phase = PHASE_STREAM;
        struct attach_result result = { 0 };
        int rc = exec_stream(&s, &result);
        r->exited_us = clock_mono_us();
        if (result.end == ATTACH_FAILED && api_error_is(&result.err, "command_not_found") && !sandbox_opts.template)
                hint_template(r->c, argv[0]);
        r->phase = PHASE_CREATE; /* also this is given up at once */
        if (result.end == ATTACH_EXITED && rc != CLI_OK && !r->signum)
                denials_tell(r->c, r->sandbox.id);
        return rc;
}

static int create_and_run(struct run *r, int argc, char **argv) {
        struct api_error e;

        r->phase = PHASE_ASK;
        bool leased = !keep && !sandbox_opts.ttl;
        if (leased)
                sandbox_opts.ttl = LEASE_TTL;
        int c = sandbox_create(r->c, &sandbox_opts, &r->sandbox, &e);
        if (c < 0 && leased && api_error_is(&e, "invalid_argument")) {
                /* Perhaps the host allows less: its own limit does then. */
                leased = false;
                sandbox_opts.ttl = NULL;
                c = sandbox_create(r->c, &sandbox_opts, &r->sandbox, &e);
        }
        if (c < 0)
                return r->signum ? stopped(r) : api_error_print(&e);
        if (leased)
                r->lease = lease_new(r->c, r->sandbox.id);
        r->phase = PHASE_CREATE;
        if (r->signum)
                return stopped(r);
        if (sandbox_wait(r->c, &r->sandbox, &e) < 0)
                return r->signum ? stopped(r) : api_error_print(&e);
        r->created_us = clock_mono_us();
        return run_in_sandbox(r, argc, argv);
}

static int clean_up(struct run *r, int rc) {
        struct api_error e;

        r->phase = PHASE_DELETE;
        r->impatient = 0;
        client_resume(r->c);
        lease_free(r->lease);
        if (!r->sandbox.id)
                return rc;
        if (keep && r->created_us && !r->signum) {
                cli_note("sandbox %s is kept; `cspace rm %s` deletes it", r->sandbox.id, r->sandbox.id);
                return rc;
        }
        if (sandbox_delete(r->c, r->sandbox.id, &e) < 0 && !api_error_is(&e, "sandbox_not_found")) {
                cli_fail_code(e.code, "sandbox %s could not be deleted: %s; `cspace rm %s` tries again",
                              r->sandbox.id, e.message, r->sandbox.id);
                return rc ? rc : CLI_FAILURE;
        }
        r->deleted_us = clock_mono_us();
        return rc;
}

static double ms(uint64_t from, uint64_t to) {
        return to > from && from > 0 ? (double) (to - from) / 1000 : 0;
}

static int write_timing(const json_t *j) {
        _cleanup_free_ char *text =
                json_dumps(j, JSON_COMPACT | JSON_REAL_PRECISION(8) | JSON_PRESERVE_ORDER);
        struct error err = ERROR_INIT;

        if (!text)
                return -ENOMEM;
        if (!timing_file) {
                fprintf(stderr, "%s\n", text);
                return 0;
        }
        _cleanup_free_ char *line = mem_printf("%s\n", text);
        if (fd_replace_file_at(AT_FDCWD, timing_file, line, strlen(line), 0644, &err) < 0)
                return cli_fail("cannot write the timing to \"%s\": %s", timing_file, err.msg);
        return 0;
}

static int tell_timing(const struct run *r, int rc) {
        char create[TEXT_SIZE], command[TEXT_SIZE], gone[TEXT_SIZE];
        double c = ms(r->begin_us, r->created_us), x = ms(r->created_us, r->exited_us),
               d = ms(r->exited_us, r->deleted_us);

        if (!timing && !timing_file)
                return rc;
        if (!cli()->json && !timing_file) {
                text_duration((uint64_t) c, create);
                text_duration((uint64_t) x, command);
                text_duration((uint64_t) d, gone);
                cli_note("create %s, command %s, delete %s", create, command, gone);
                return rc;
        }
        _cleanup_json_ json_t *j =
                json_pack("{s:s?, s:f, s:f, s:f, s:i}", "sandbox_id", r->sandbox.id, "create_ms", c,
                          "command_ms", x, "delete_ms", d, "exit_code", rc);
        int w = write_timing(j);
        return w != 0 && rc == 0 ? CLI_FAILURE : rc;
}

static int run(int argc, char **argv) {
        static const int list[] = { SIGINT, SIGTERM, SIGHUP, SIGQUIT, 0 };
        struct error err = ERROR_INIT;
        struct run r = { .begin_us = clock_mono_us() };

        int rc = exec_check_terminal(&exec_opts);
        if (rc != CLI_OK)
                return rc;
        if (!keep)
                exec_opts.escape = "none"; /* nothing to come back to */
        if (client_new(&r.c, &err) < 0)
                return cli_fail_err(&err);
        struct signals *signals = signals_new(client_loop(r.c), list, on_signal, &r);
        rc = create_and_run(&r, argc, argv);
        rc = clean_up(&r, rc);
        signals_free(signals);
        rc = tell_timing(&r, rc);
        sandbox_created_done(&r.sandbox);
        client_free(r.c);
        return rc;
}

static const struct opt opts[] = {
        SANDBOX_OPTS(sandbox_opts),
        EXEC_OPTS(exec_opts),
        EXEC_STREAM_OPTS(exec_opts),
        { "timeout", 0, OPT_SECONDS, &exec_opts.timeout_s, "TIME",
          "Kill the command after so long; exit code 124.", COMPLETE_NONE, 1, 0 },
        { "keep", 'k', OPT_FLAG, &keep, NULL, "Do not delete the sandbox afterwards.", COMPLETE_NONE, 0, 0 },
        { "timing", 0, OPT_FLAG, &timing, NULL, "Tell on stderr how long create, command and delete took.",
          COMPLETE_NONE, 0, 0 },
        { "timing-file", 0, OPT_STRING, &timing_file, "FILE", "Write the same as JSON to a file.",
          COMPLETE_FILE, 0, 0 },
        OPT_END,
};

const struct command command_run = {
        .name = "run",
        .synopsis = "[OPTION...] [--] COMMAND [ARGUMENT...]",
        .summary = "Run a command in a new sandbox, then delete it.",
        .details =
                "The sandbox is deleted when the command ends, and also after an error, Ctrl-C or SIGTERM. "
                "The exit "
                "code is that of the command: 128+N if signal N ended it, 127 if it does not exist, 126 if "
                "it cannot "
                "be executed, 124 after --timeout; 125 if cspace failed.\n\n"
                "  cspace run -- python3 -c 'print(6*7)'\n"
                "  cspace run --memory 1G -it -- bash\n"
                "  tar c src | cspace run -- sh -c 'tar x && make -C src'",
        .opts = opts,
        .min_args = 1,
        .max_args = -1,
        .command_at = 0,
        .args = { COMPLETE_NONE },
        .run = run,
};
