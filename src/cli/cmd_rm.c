/* SPDX-License-Identifier: Apache-2.0 */
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

static bool all, force;

struct removal {
        char *sandbox, *id, *operation;
};

struct removals {
        struct removal *list;
        size_t n;
        int rc;
};

static void add(struct removals *r, const char *sandbox, const char *id) {
        r->list = mem_grow(r->list, r->n + 1, sizeof *r->list);
        r->list[r->n++] = (struct removal) { .sandbox = mem_dup(sandbox), .id = mem_dup(id) };
}

static int on_sandbox(void *arg, json_t *s) {
        add(arg, member_str(s, "id"), member_str(s, "id"));
        return 0;
}

/* One may be named twice, by its id and by its name. */
static void add_one_of(struct client *c, struct removals *r, const char *sandbox) {
        _cleanup_json_ json_t *s = NULL;
        struct api_error e;

        if (sandbox_get(c, sandbox, &s, &e) < 0) {
                if (!(force && api_error_is(&e, "sandbox_not_found")))
                        r->rc = api_error_print(&e);
                return;
        }
        for (size_t i = 0; i < r->n; i++)
                if (str_eq(r->list[i].id, member_str(s, "id")))
                        return;
        add(r, sandbox, member_str(s, "id"));
}

/* Asks for all first: the host takes them apart side by side. */
static void ask(struct client *c, struct removals *all_of, struct removal *r) {
        _cleanup_free_ char *id = client_escape(r->id), *target = mem_printf("/v1/sandboxes/%s", id);
        _cleanup_json_ json_t *answer = NULL;
        struct api_error e;

        if (client_call(c, "DELETE", target, NULL, 0, &answer, &e) == 0) {
                r->operation = mem_dup(member_str(json_object_get(answer, "operation"), "id"));
                return;
        }
        if (!(force && api_error_is(&e, "sandbox_not_found")))
                all_of->rc = api_error_print(&e);
}

static void await(struct client *c, struct removals *all_of, struct removal *r, json_t *done) {
        struct api_error e;

        if (!r->operation)
                return;
        if (*r->operation && operation_wait(c, r->operation, NULL, NULL, &e) < 0 &&
            !api_error_is(&e, "operation_not_found")) {
                all_of->rc =
                        cli_fail_code(e.code, "sandbox \"%s\" was not deleted: %s", r->sandbox, e.message);
                return;
        }
        json_array_append_new(done, json_string(r->sandbox));
        if (!cli()->json)
                puts(r->sandbox);
}

static int remove_all(struct client *c, int argc, char **argv) {
        struct removals r = { 0 };
        struct api_error e;
        _cleanup_json_ json_t *done = json_array();

        for (int i = 0; i < argc; i++)
                if (argc == 1)
                        add(&r, argv[i], argv[i]);
                else if (!cli_named_before(argv, i))
                        add_one_of(c, &r, argv[i]);
        if (all && client_list(c, "/v1/sandboxes", "sandboxes", on_sandbox, &r, &e) < 0)
                r.rc = api_error_print(&e);
        for (size_t i = 0; i < r.n; i++)
                ask(c, &r, &r.list[i]);
        for (size_t i = 0; i < r.n; i++)
                await(c, &r, &r.list[i], done);
        if (cli()->json)
                output_json(done);
        for (size_t i = 0; i < r.n; i++) {
                free(r.list[i].sandbox);
                free(r.list[i].id);
                free(r.list[i].operation);
        }
        free(r.list);
        return r.rc;
}

static int run(struct client *c, int argc, char **argv) {
        if (argc == 0 && !all)
                return cli_usage("which sandbox? give an id or name, or --all");
        if (argc > 0 && all)
                return cli_usage("--all and names exclude each other");
        return remove_all(c, argc, argv);
}

static const struct opt opts[] = {
        { "all", 'a', OPT_FLAG, &all, NULL, "Delete all sandboxes.", COMPLETE_NONE, 0, 0 },
        { "force", 'f', OPT_FLAG, &force, NULL, "One that does not exist is no error.", COMPLETE_NONE, 0, 0 },
        OPT_END,
};

const struct command command_rm = {
        .name = "rm",
        .destructive = true,
        .synopsis = "[OPTION...] SANDBOX...",
        .summary = "Delete sandboxes.",
        .details = "In whatever state they are; what runs in them is not asked. Prints those that are gone.",
        .opts = opts,
        .max_args = -1,
        .command_at = -1,
        .args = { COMPLETE_SANDBOX },
        .with = run,
};
