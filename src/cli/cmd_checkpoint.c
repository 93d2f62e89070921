/* SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <string.h>

#include "base/cleanup.h"
#include "cli.h"
#include "client.h"
#include "command.h"
#include "mem.h"
#include "operation.h"
#include "output.h"
#include "table.h"
#include "text.h"

/* checkpoint, checkpoint rm, history, rollback. */

static const char *name;
static bool full;

/* Asks for an operation and waits for its end; who is told to end says goes_on. */
static int operate(struct client *c, const char *sandbox, const char *verb, const json_t *body, const char *goes_on, json_t **ret) {
        _cleanup_free_ char *id = client_escape(sandbox), *target = mem_printf("/v1/sandboxes/%s/%s", id, verb);
        _cleanup_json_ json_t *answer = NULL, *op = NULL;
        struct api_error e;

        int r = client_call(c, "POST", target, body, 0, &answer, &e);
        if (r >= 0)
                r = operation_watch(c, member_str(json_object_get(answer, "operation"), "id"), NULL, goes_on, &op, &e);
        if (r < 0)
                return api_error_print(&e);
        *ret = STEAL(op);
        return r; /* CLI_OK, or that of a signal */
}

static int run_checkpoint(struct client *c, int argc, char **argv) {
        _cleanup_json_ json_t *body = json_pack("{s:s, s:s?}", "kind", full ? "full" : "disk", "name", name), *op = NULL;
        _cleanup_free_ char *goes_on = mem_printf("it is taken all the same; `cspace history %s` shows it", argv[0]);

        (void) argc;
        if (!body)
                return cli_usage("--name is not UTF-8");
        int rc = operate(c, argv[0], "checkpoints", body, goes_on, &op);
        if (rc != CLI_OK)
                return rc;
        if (cli()->json)
                output_json(op);
        else
                puts(member_str(json_object_get(op, "result"), "checkpoint"));
        return CLI_OK;
}

static int run_rollback(struct client *c, int argc, char **argv) {
        _cleanup_json_ json_t *body = json_pack("{s:s}", "checkpoint", argv[1]), *op = NULL;
        _cleanup_free_ char *goes_on = mem_printf("the rollback goes on all the same; `cspace info %s` shows its state", argv[0]);

        (void) argc;
        if (!body)
                return cli_usage("the checkpoint's name is not UTF-8");
        int rc = operate(c, argv[0], "rollback", body, goes_on, &op);
        if (rc == CLI_OK && cli()->json)
                output_json(op);
        else if (rc == CLI_OK)
                puts(argv[0]);
        return rc;
}

static int run_rm(struct client *c, int argc, char **argv) {
        _cleanup_free_ char *id = client_escape(argv[0]), *folder = mem_printf("/v1/sandboxes/%s/checkpoints", id);

        return client_delete_each(c, folder, argc - 1, argv + 1);
}

/* ---- history --------------------------------------------------------------------------------- */

static bool same(const char *a, const char *b) {
        return strcmp(a, b) == 0;
}

/* Those that went on from `parent`, and after each those that went on from it; a branch is indented. */
static void add_children(struct table *t, const json_t *all, const char *parent, const char *head, unsigned depth) {
        size_t i;
        json_t *c;

        json_array_foreach(all, i, c) {
                char when[TEXT_SIZE], size[TEXT_SIZE];
                const char *id = member_str(c, "id");

                if (!same(member_str(c, "parent"), parent))
                        continue;
                text_relative_rfc3339(json_string_value(json_object_get(c, "created_at")), when);
                int64_t bytes = member_int(c, "disk_bytes", -1);
                if (bytes >= 0)
                        text_size((uint64_t) bytes, size);
                table_cellf(t, "%*s%s%s", (int) (2 * depth), "", id, same(id, head) ? " *" : "");
                table_cell(t, member_str(c, "name"));
                table_cellf(t, "%s%s%s", member_str(c, "kind"), json_is_true(json_object_get(c, "automatic")) ? ", by itself" : "",
                            json_is_true(json_object_get(c, "consistent")) ? "" : " (rough)");
                table_cell(t, bytes >= 0 ? size : NULL);
                table_cell(t, when);
                add_children(t, all, id, head, depth + 1 > 20 ? 20 : depth + 1);
        }
}

static int run_history(struct client *c, int argc, char **argv) {
        static const char *const headers[] = { "CHECKPOINT", "NAME", "KIND", "SIZE", "TAKEN", NULL };
        _cleanup_free_ char *id = client_escape(argv[0]), *target = mem_printf("/v1/sandboxes/%s/checkpoints", id);
        _cleanup_json_ json_t *answer = NULL;
        struct api_error e;

        (void) argc;
        int r = client_call(c, "GET", target, NULL, 0, &answer, &e);
        int rc = r < 0 ? api_error_print(&e) : CLI_OK;
        const json_t *all = json_object_get(answer, "checkpoints");
        if (r >= 0 && cli()->json) {
                output_json(answer);
        } else if (r >= 0 && json_array_size(all) == 0) {
                cli_note("no checkpoints; `cspace checkpoint %s` takes one", argv[0]);
        } else if (r >= 0) {
                struct table *t = table_new(headers);
                add_children(t, all, "", member_str(answer, "head"), 0);
                table_print(t, stdout);
                table_free(t);
        }
        return rc;
}

/* ---- the table's rows ------------------------------------------------------------------------- */

static const struct opt no_opts[] = { OPT_END };
static const struct opt checkpoint_opts[] = {
        { "full", 0, OPT_FLAG, &full, NULL, "With its memory: rollback then goes on with its processes.", COMPLETE_NONE, 0, 0 },
        { "name", 0, OPT_STRING, &name, "NAME", "A name that can stand for its id.", COMPLETE_NONE, 0, 0 },
        OPT_END,
};

const struct command command_checkpoint = {
        .name = "checkpoint",
        .synopsis = "[OPTION...] SANDBOX",
        .summary = "Keep what a sandbox is now, to go back to it.",
        .details = "Its disk, while it runs; what changes afterwards takes room. Prints the checkpoint's id.",
        .opts = checkpoint_opts,
        .min_args = 1,
        .max_args = 1,
        .command_at = -1,
        .args = { COMPLETE_SANDBOX },
        .with = run_checkpoint,
};

const struct command command_checkpoint_rm = {
        .name = "checkpoint rm",
        .synopsis = "SANDBOX CHECKPOINT...",
        .summary = "Forget checkpoints.",
        .details = "What came of one goes on below the one before it. The sandbox stays as it is.",
        .opts = no_opts,
        .min_args = 2,
        .max_args = -1,
        .command_at = -1,
        .args = { COMPLETE_SANDBOX, COMPLETE_CHECKPOINT },
        .with = run_rm,
};

const struct command command_history = {
        .name = "history",
        .synopsis = "SANDBOX",
        .summary = "Show a sandbox's checkpoints.",
        .details = "As a tree: each below the one that the sandbox had gone on from. A star marks the one it goes on from\n"
                   "now; a rough one is as after a power cut, because the guest did not answer.",
        .opts = no_opts,
        .min_args = 1,
        .max_args = 1,
        .command_at = -1,
        .args = { COMPLETE_SANDBOX },
        .with = run_history,
};

const struct command command_rollback = {
        .name = "rollback",
        .synopsis = "SANDBOX CHECKPOINT",
        .summary = "Go back to a checkpoint.",
        .details = "What the sandbox is now is given up; take a checkpoint of it first to keep it. From a full\n"
                   "checkpoint its processes go on, from others it is booted.",
        .opts = no_opts,
        .min_args = 2,
        .max_args = 2,
        .command_at = -1,
        .args = { COMPLETE_SANDBOX, COMPLETE_CHECKPOINT },
        .with = run_rollback,
};
