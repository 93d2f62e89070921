/* SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/id.h"
#include "cli.h"
#include "client.h"
#include "command.h"
#include "mem.h"
#include "operation.h"
#include "output.h"
#include "progress.h"
#include "template.h"
#include "text.h"

static bool full, quiet;
static const char *checkpoint;

static int publish(struct client *c, const char *sandbox, const char *ref, const json_t *body, struct progress *p) {
        _cleanup_free_ char *id = client_escape(sandbox), *target = mem_printf("/v1/sandboxes/%s/publish", id),
                            *before = template_digest(c, ref);
        _cleanup_json_ json_t *answer = NULL, *op = NULL;
        uint64_t begin_ms = clock_mono_ms();
        char took[TEXT_SIZE];
        struct api_error e;

        int r = client_call(c, "POST", target, body, 0, &answer, &e);
        if (r >= 0)
                r = operation_watch(c, member_str(json_object_get(answer, "operation"), "id"), p,
                                    "this goes on without being watched; `cspace template ls` shows when it is done", &op, &e);
        progress_clear(p);
        if (r > 0)
                return r;
        if (r < 0)
                return api_error_print(&e);
        const char *digest = member_str(json_object_get(op, "result"), "digest");
        if (cli()->json) {
                output_json(op);
                return CLI_OK;
        }
        if (!quiet) {
                text_duration(clock_mono_ms() - begin_ms, took);
                cli_note("template %s is published, in %s", ref, took);
                template_tell_moved(ref, before, digest);
        }
        text_put(stdout, digest);
        putchar('\n');
        return CLI_OK;
}

static int run(struct client *c, int argc, char **argv) {
        const char *colon = strchr(argv[1], ':'), *tag = colon ? colon + 1 : "latest";
        size_t n = colon ? (size_t) (colon - argv[1]) : strlen(argv[1]);

        (void) argc;
        if (!template_name_valid(argv[1], n) || !template_name_valid(tag, strlen(tag)))
                return cli_usage("\"%s\" is no template name: NAME[:TAG], each of a-z, 0-9, \".\", \"_\" and \"-\", at most %d, "
                                 "beginning with a letter or digit",
                                 argv[1], TEMPLATE_NAME_MAX);
        if (full && checkpoint)
                return cli_usage("--full and --checkpoint exclude each other: a checkpoint is published without its memory");
        _cleanup_free_ char *name = mem_ndup(argv[1], n), *ref = mem_printf("%s:%s", name, tag);
        _cleanup_json_ json_t *body = json_pack("{s:s, s:s, s:s}", "name", name, "tag", tag, "kind", full ? "full" : "disk");
        if (checkpoint && json_object_set_new(body, "checkpoint", json_string(checkpoint)) < 0)
                return cli_usage("--checkpoint is not UTF-8");
        struct progress *p = progress_new(!quiet);
        int rc = publish(c, argv[0], ref, body, p);
        progress_free(p);
        return rc;
}

static const struct opt opts[] = {
        { "full", 0, OPT_FLAG, &full, NULL, "With its memory: its programs go on in each sandbox made of the template.",
          COMPLETE_NONE, 0, 0 },
        { "checkpoint", 0, OPT_STRING, &checkpoint, "CHECKPOINT", "Its disk as this checkpoint has it.", COMPLETE_CHECKPOINT, 0, 0 },
        { "quiet", 'q', OPT_FLAG, &quiet, NULL, "Print the digest alone.", COMPLETE_NONE, 0, 0 },
        OPT_END,
};

const struct command command_template_publish = {
        .name = "template publish",
        .synopsis = "[OPTION...] SANDBOX NAME[:TAG]",
        .summary = "Make a template of a sandbox.",
        .details = "Of its disk, in whatever state it is, or with --full of its disk and memory. All that is on the disk\n"
                   "is in the template, so look for keys and passwords of yours first. Prints the digest.\n\n"
                   "  cspace template publish work data:v2\n"
                   "  cspace run --template data:v2 -- python3 app.py",
        .opts = opts,
        .min_args = 2,
        .max_args = 2,
        .command_at = -1,
        .args = { COMPLETE_SANDBOX, COMPLETE_TEMPLATE },
        .with = run,
};
