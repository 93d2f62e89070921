/* SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <string.h>

#include "base/cleanup.h"
#include "cli.h"
#include "client.h"
#include "command.h"
#include "mem.h"
#include "output.h"
#include "table.h"
#include "text.h"

static const char *state, *template;
static struct opt_list metadata;
static bool quiet;

struct listing {
        struct table *table;
        json_t *all;
        size_t n;
};

static int on_sandbox(void *arg, json_t *s) {
        struct listing *l = arg;
        char when[TEXT_SIZE], ends[TEXT_SIZE], memory[TEXT_SIZE];
        const char *st = member_str(s, "state"), *tmpl = member_str(s, "template");

        l->n++;
        if (cli()->json) {
                json_array_append(l->all, s);
                return 0;
        }
        if (quiet) {
                text_put(stdout, member_str(s, "id"));
                putchar('\n');
                return 0;
        }
        text_relative_rfc3339(json_string_value(json_object_get(s, "created_at")), when);
        text_relative_rfc3339(json_string_value(json_object_get(s, "expires_at")), ends);
        text_size((uint64_t) member_int(s, "memory_mb", 0) << 20, memory);
        table_cell(l->table, member_str(s, "id"));
        table_cell(l->table, member_str(s, "name"));
        table_cell(l->table, st);
        table_colour(l->table, output_state_colour(st));
        if (*tmpl)
                table_cell(l->table, tmpl);
        else
                table_cellf(l->table, "%.12s", member_str(s, "digest"));
        table_cell(l->table, memory);
        table_cellf(l->table, "%lld", (long long) member_int(s, "cpus", 0));
        table_cell(l->table, when);
        table_cell(l->table, ends);
        return 0;
}

static char *query(struct error *err) {
        char *target = mem_dup("/v1/sandboxes?order=newest");

        if (state) {
                _cleanup_free_ char *old = target, *v = client_escape(state);
                target = mem_printf("%s&state=%s", old, v);
        }
        if (template) {
                _cleanup_free_ char *old = target, *v = client_escape(template);
                target = mem_printf("%s&template=%s", old, v);
        }
        for (size_t i = 0; i < metadata.n; i++) {
                const char *eq = strchr(metadata.items[i], '=');
                if (!eq || eq == metadata.items[i]) {
                        error_set(err, -1, "--metadata \"%s\" is not KEY=VALUE", metadata.items[i]);
                        free(target);
                        return NULL;
                }
                _cleanup_free_ char *old = target,
                                    *key = mem_ndup(metadata.items[i], (size_t) (eq - metadata.items[i]));
                _cleanup_free_ char *k = client_escape(key), *v = client_escape(eq + 1);
                target = mem_printf("%s&metadata.%s=%s", old, k, v);
        }
        return target;
}

static int run(struct client *c, int argc, char **argv) {
        static const char *const headers[] = { "ID",   "NAME",    "STATE",   "TEMPLATE", "MEMORY",
                                               "CPUS", "CREATED", "EXPIRES", NULL };
        struct error err = ERROR_INIT;
        struct api_error e;
        int rc = CLI_OK;

        (void) argc;
        (void) argv;
        _cleanup_free_ char *target = query(&err);
        if (!target)
                return cli_usage("%s", err.msg);
        struct listing l = { .table = table_new(headers), .all = json_array() };
        if (client_list(c, target, "sandboxes", on_sandbox, &l, &e) < 0)
                rc = api_error_print(&e);
        else if (cli()->json)
                output_json(l.all);
        else if (!quiet && l.n == 0)
                cli_note("no sandboxes; `cspace create` makes one");
        else if (!quiet)
                table_print(l.table, stdout);
        json_decref(l.all);
        table_free(l.table);
        return rc;
}

static const struct opt opts[] = {
        { "state", 0, OPT_STRING, &state, "STATE",
          "Only those in these states, as running,paused,suspended,stopped,failed.", COMPLETE_NONE, 0, 0 },
        { "template", 'T', OPT_STRING, &template, "NAME[:TAG]", "Only those made from this template.",
          COMPLETE_TEMPLATE, 0, 0 },
        { "metadata", 0, OPT_LIST, &metadata, "KEY=VALUE", "Only those with this note.", COMPLETE_NONE, 0,
          0 },
        { "quiet", 'q', OPT_FLAG, &quiet, NULL, "Print ids alone.", COMPLETE_NONE, 0, 0 },
        OPT_END,
};

const struct command command_ls = {
        .name = "ls",
        .synopsis = "[OPTION...]",
        .summary = "List sandboxes, newest first.",
        .opts = opts,
        .max_args = 0,
        .command_at = -1,
        .with = run,
};
