/* SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>

#include "base/cleanup.h"
#include "cli.h"
#include "client.h"
#include "command.h"
#include "mem.h"
#include "output.h"
#include "table.h"
#include "text.h"

static bool quiet;

static int create_key(struct client *c, const char *name) {
        _cleanup_json_ json_t *body = json_object(), *answer = NULL;
        struct api_error e;

        if (name && json_object_set_new(body, "name", json_string(name)) < 0)
                return cli_usage("the name is not UTF-8");
        if (client_call(c, "POST", "/v1/keys", body, 0, &answer, &e) < 0)
                return api_error_print(&e);
        const char *key = member_str(answer, "key");
        if (!*key)
                return cli_fail_code(
                        "protocol",
                        "the key was made but its text got lost; remove it and make another: cspace key rm "
                        "%s",
                        member_str(answer, "id"));
        if (cli()->json) {
                output_json(answer);
                return CLI_OK;
        }
        text_put(stdout, key);
        putchar('\n');
        if (!quiet)
                cli_note("this is shown once; `cspace key rm %s` revokes it", member_str(answer, "id"));
        return CLI_OK;
}

static int list_keys(struct client *c) {
        static const char *const headers[] = { "ID", "NAME", "KEY", "CREATED", "LAST USED", NULL };
        _cleanup_json_ json_t *answer = NULL;
        struct api_error e;
        json_t *list = NULL, *k;
        char when[TEXT_SIZE];
        size_t i;

        if (client_call(c, "GET", "/v1/keys", NULL, 0, &answer, &e) < 0)
                return api_error_print(&e);
        if (json_read_array(answer, "keys", true, SIZE_MAX, &list, NULL) < 0)
                return cli_fail_code("protocol", "cspaced sent no list of keys");
        if (cli()->json) {
                output_json(list);
                return CLI_OK;
        }
        if (json_array_size(list) == 0) {
                cli_note("no keys; `cspace key create` makes one");
                return CLI_OK;
        }
        struct table *t = table_new(headers);
        json_array_foreach(list, i, k) {
                table_cell(t, member_str(k, "id"));
                table_cell(t, member_str(k, "name"));
                table_cellf(t, "%s...", member_str(k, "prefix"));
                text_relative_rfc3339(json_string_value(json_object_get(k, "created_at")), when);
                table_cell(t, when);
                text_relative_rfc3339(json_string_value(json_object_get(k, "last_used_at")), when);
                table_cell(t, when);
        }
        table_print(t, stdout);
        table_free(t);
        return CLI_OK;
}

static int remove_keys(struct client *c, int argc, char **argv) {
        return client_delete_each(c, "/v1/keys", argc, argv);
}

static int do_create(struct client *c, int argc, char **argv) {
        return create_key(c, argc > 0 ? argv[0] : NULL);
}

static int do_list(struct client *c, int argc, char **argv) {
        (void) argc;
        (void) argv;
        return list_keys(c);
}

static const struct opt opts_create[] = {
        { "quiet", 'q', OPT_FLAG, &quiet, NULL, "Print the key alone.", COMPLETE_NONE, 0, 0 },
        OPT_END,
};

const struct command command_key_create = {
        .name = "key create",
        .synopsis = "[OPTION...] [NAME]",
        .summary = "Make an API key and print it, this once.",
        .details =
                "Keys are for clients that come over TCP: the E2B SDK, or `cspace --api http://...`. NAME "
                "is for you, to "
                "tell keys apart. Only root and the group cspace can do this, over the local socket.\n\n"
                "  export E2B_API_KEY=$(cspace key create --quiet laptop)",
        .opts = opts_create,
        .max_args = 1,
        .command_at = -1,
        .with = do_create,
};

const struct command command_key_ls = {
        .name = "key ls",
        .synopsis = "",
        .summary = "List API keys, without their text.",
        .max_args = 0,
        .command_at = -1,
        .with = do_list,
};

const struct command command_key_rm = {
        .name = "key rm",
        .destructive = true,
        .synopsis = "ID...",
        .summary = "Revoke API keys, at once.",
        .min_args = 1,
        .max_args = -1,
        .command_at = -1,
        .args = { COMPLETE_KEY },
        .with = remove_keys,
};
