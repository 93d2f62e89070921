/* SPDX-License-Identifier: Apache-2.0 */

/* cspace template ls and rm; building is in cmd_template_build.c. */
#include <stdio.h>

#include "base/cleanup.h"
#include "base/str.h"
#include "cli.h"
#include "client.h"
#include "command.h"
#include "mem.h"
#include "output.h"
#include "table.h"
#include "template.h"
#include "text.h"

static bool quiet;

static void add_row(struct table *t, const json_t *tmpl, const char *name) {
        const json_t *variants = json_object_get(tmpl, "variants"), *v;
        char disk[TEXT_SIZE], when[TEXT_SIZE];
        char *sizes = mem_dup("");
        size_t i;

        json_array_foreach(variants, i, v) {
                _cleanup_free_ char *old = sizes;
                sizes = mem_printf("%s%s%lldM/%lld", old, *old ? " " : "",
                                   (long long) member_int(v, "memory_mb", 0),
                                   (long long) member_int(v, "cpus", 0));
        }
        text_size((uint64_t) member_int(tmpl, "disk_mb", 0) << 20, disk);
        text_relative_rfc3339(json_string_value(json_object_get(tmpl, "created_at")), when);
        table_cell(t, name);
        table_cellf(t, "%.12s", member_str(tmpl, "digest"));
        table_cell(t, disk);
        table_cell(t, sizes);
        const char *kind = member_str(json_object_get(tmpl, "source"), "kind");
        if (json_is_object(json_object_get(tmpl, "snapshot")))
                table_cell(t, "sandbox, with memory");
        else
                table_cell(t, *kind ? kind : NULL);
        table_cellf(t, "%lld", (long long) member_int(tmpl, "sandboxes", 0));
        table_cell(t, when);
        free(sizes);
}

static void print(const json_t *list) {
        static const char *const headers[] = { "NAME", "DIGEST", "DISK", "PREPARED", "MADE OF", "SANDBOXES", "CREATED", NULL };
        struct table *t = table_new(headers);
        const json_t *tmpl, *name;
        size_t i, k;

        json_array_foreach(list, i, tmpl) {
                const json_t *names = json_object_get(tmpl, "names");

                if (json_array_size(names) == 0 && !quiet)
                        add_row(t, tmpl, str_eq(member_str(tmpl, "state"), "building") ? "(building)" : NULL);
                json_array_foreach(names, k, name) {
                        const char *n = json_string_value(name) ? json_string_value(name) : "";
                        if (!quiet) {
                                add_row(t, tmpl, n);
                                continue;
                        }
                        text_put(stdout, n);
                        putchar('\n');
                }
        }
        if (!quiet && json_array_size(list) == 0)
                cli_note("no templates; `cspace template build base` makes the first");
        else if (!quiet)
                table_print(t, stdout);
        table_free(t);
        for (i = 0; !quiet && i < json_array_size(list); i++) {
                _cleanup_free_ char *todo = template_renew(json_array_get(list, i));
                if (todo)
                        cli_note("the agent in %s is not this cspace's; what an upgrade brought to it comes with: %s",
                                 template_shown(json_array_get(list, i)), todo);
        }
}

static int list_templates(struct client *c) {
        _cleanup_json_ json_t *answer = NULL;
        struct api_error e;
        json_t *list = NULL;

        if (client_call(c, "GET", "/v1/templates", NULL, 0, &answer, &e) < 0)
                return api_error_print(&e);
        if (json_read_array(answer, "templates", true, SIZE_MAX, &list, NULL) < 0)
                return cli_fail_code("protocol", "cspaced sent no list of templates");
        if (cli()->json)
                output_json(list);
        else
                print(list);
        return CLI_OK;
}

static int run_ls(struct client *c, int argc, char **argv) {
        (void) argc;
        (void) argv;
        return list_templates(c);
}

static int run_rm(struct client *c, int argc, char **argv) {
        return client_delete_each(c, "/v1/templates", argc, argv);
}

static const struct opt opts_ls[] = {
        { "quiet", 'q', OPT_FLAG, &quiet, NULL, "Print names alone.", COMPLETE_NONE, 0, 0 },
        OPT_END,
};

const struct command command_template_ls = {
        .name = "template ls",
        .synopsis = "[OPTION...]",
        .summary = "List templates.",
        .details =
                "PREPARED are the sizes (memory/CPUs) that have a snapshot; other sizes are prepared at "
                "their first use.",
        .opts = opts_ls,
        .max_args = 0,
        .command_at = -1,
        .with = run_ls,
};

const struct command command_template_rm = {
        .name = "template rm",
        .destructive = true,
        .synopsis = "TEMPLATE...",
        .summary = "Remove templates.",
        .details =
                "TEMPLATE is NAME[:TAG], which removes that name, or a digest, which removes all names. "
                "Content without "
                "a name is deleted, unless sandboxes use it: then it is an error.",
        .min_args = 1,
        .max_args = -1,
        .command_at = -1,
        .args = { COMPLETE_TEMPLATE },
        .with = run_rm,
};
