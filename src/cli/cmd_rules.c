/* SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>

#include "base/cleanup.h"
#include "cli.h"
#include "client.h"
#include "command.h"
#include "mem.h"
#include "output.h"
#include "sandbox.h"

/* What happens with a sandbox by itself: shown, or changed as create gives it. */

static struct sandbox_options rules;
static bool no_wake;

static int change(struct client *c, const char *sandbox, const json_t *body, json_t **ret, struct api_error *e) {
        _cleanup_free_ char *id = client_escape(sandbox), *target = mem_printf("/v1/sandboxes/%s", id);
        int r = client_call(c, "PATCH", target, body, 0, ret, e);

        if (r < 0)
                sandbox_error_words(e);
        return r;
}

static int run(struct client *c, int argc, char **argv) {
        _cleanup_json_ json_t *body = json_object(), *s = NULL;
        struct api_error e;

        (void) argc;
        if (no_wake && rules.wake)
                return cli_usage("--wake and --no-wake exclude each other");
        int r = sandbox_add_rules(body, &rules, &e);
        if (no_wake)
                json_object_set_new(body, "wake", json_false());
        if (r >= 0)
                r = json_object_size(body) > 0 ? change(c, argv[0], body, &s, &e) : sandbox_get(c, argv[0], &s, &e);
        if (r < 0)
                return api_error_print(&e);
        if (cli()->json) {
                output_json(s);
                return CLI_OK;
        }
        output_time("Expires:", json_string_value(json_object_get(s, "expires_at")));
        sandbox_print_rules(s);
        return CLI_OK;
}

static const struct opt opts[] = {
        SANDBOX_RULE_OPTS(rules),
        { "no-wake", 0, OPT_FLAG, &no_wake, NULL, "Wake it no more.", COMPLETE_NONE, 0, 0 },
        OPT_END,
};

const struct command command_rules = {
        .name = "rules",
        .synopsis = "[OPTION...] SANDBOX",
        .summary = "Show or change what happens with a sandbox by itself.",
        .details = "What no option names stays as it is; --ttl counts from now, and 0 ends a rule.\n\n"
                   "  cspace rules work\n"
                   "  cspace rules --idle 10m --on-idle suspend --wake work\n"
                   "  cspace rules --checkpoint-every 0 work",
        .opts = opts,
        .min_args = 1,
        .max_args = 1,
        .command_at = -1,
        .args = { COMPLETE_SANDBOX },
        .with = run,
};
