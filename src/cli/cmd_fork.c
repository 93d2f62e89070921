/* SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>

#include "base/cleanup.h"
#include "base/str.h"
#include "cli.h"
#include "client.h"
#include "command.h"
#include "exec.h"
#include "mem.h"
#include "operation.h"
#include "output.h"
#include "policy_option.h"
#include "sandbox.h"

static uint64_t count;
static const char *from, *name, *ttl, *policy, *bindings;
static struct opt_list env, allow;

static json_t *make_body(struct api_error *e) {
        _cleanup_json_ json_t *body = json_pack("{s:s*, s:s*, s:s*}", "checkpoint", from, "name", name, "bindings", bindings);
        struct error err = ERROR_INIT;

        if (!body) {
                api_error_set(e, "usage", "an option is not UTF-8");
                return NULL;
        }
        if (count)
                json_object_set_new(body, "n", json_integer((json_int_t) count));
        if (env.n > 0) {
                json_t *j = exec_env(&env, &err);
                if (!j) {
                        api_error_set(e, "usage", "%s", err.msg);
                        return NULL;
                }
                json_object_set_new(body, "env", j);
        }
        if (sandbox_add_time(body, "ttl_s", "ttl", ttl, e) < 0)
                return NULL;
        if (policy && str_eq(policy, "inherit") && allow.n == 0)
                return STEAL(body);
        return policy_option(body, &allow, policy, e) < 0 ? NULL : STEAL(body);
}

/* 0, < 0: *e; > 0: an exit code, this was told to end. */
static int fork_it(struct client *c, const char *sandbox, json_t **ret, struct api_error *e) {
        _cleanup_free_ char *id = client_escape(sandbox), *target = mem_printf("/v1/sandboxes/%s/fork", id);
        _cleanup_json_ json_t *body = make_body(e), *answer = NULL;

        if (!body)
                return -1;
        if (client_call(c, "POST", target, body, 0, &answer, e) < 0) {
                sandbox_error_words(e);
                return -1;
        }
        return operation_watch(c, member_str(json_object_get(answer, "operation"), "id"), NULL,
                               "the copies are made all the same; `cspace ls` shows them", ret, e);
}

/* All copies have the same policy. */
static void tell_warnings(struct client *c, const json_t *first) {
        _cleanup_free_ char *id = client_escape(json_is_string(first) ? json_string_value(first) : ""),
                            *target = mem_printf("/v1/sandboxes/%s/policy", id);
        _cleanup_json_ json_t *answer = NULL;
        struct api_error e;

        if (client_call(c, "GET", target, NULL, 0, &answer, &e) >= 0)
                policy_tell_warnings(json_object_get(answer, "egress"));
}

static int run(struct client *c, int argc, char **argv) {
        _cleanup_json_ json_t *op = NULL;
        struct api_error e;
        json_t *id;
        size_t i;

        (void) argc;
        int r = fork_it(c, argv[0], &op, &e);
        if (r != 0)
                return r < 0 ? api_error_print(&e) : r;
        if (cli()->json) {
                output_json(op);
                return CLI_OK;
        }
        json_array_foreach(json_object_get(json_object_get(op, "result"), "sandboxes"), i, id)
                puts(json_is_string(id) ? json_string_value(id) : "?");
        if (allow.n > 0 || (policy && !str_eq(policy, "inherit")))
                tell_warnings(c, json_array_get(json_object_get(json_object_get(op, "result"), "sandboxes"), 0));
        return CLI_OK;
}

static const struct opt opts[] = {
        { "count", 'n', OPT_UINT, &count, "N", "How many copies (1).", COMPLETE_NONE, 1, 64 },
        { "from", 0, OPT_STRING, &from, "CHECKPOINT", "Of this checkpoint, and not of what it is now.", COMPLETE_CHECKPOINT, 0, 0 },
        { "name", 0, OPT_STRING, &name, "NAME", "A name; of several copies NAME-1, NAME-2 and so on.", COMPLETE_NONE, 0, 0 },
        { "env", 'e', OPT_LIST, &env, "NAME=VALUE", "Set a variable for commands that are started in the copies.", COMPLETE_NONE, 0, 0 },
        { "ttl", 0, OPT_STRING, &ttl, "TIME", "Time to live; else as long as the sandbox got.", COMPLETE_NONE, 0, 0 },
        { "policy", 0, OPT_STRING, &policy, "FILE",
          "What they may reach: inherit (the default), none, @packages, or JSON in a file.", COMPLETE_FILE, 0, 0 },
        { "allow", 0, OPT_LIST, &allow, "HOST", "Let them reach this instead. Again for more.", COMPLETE_PRESET, 0, 0 },
        { "bindings", 0, OPT_STRING, &bindings, "WHAT", "Credentials that they may use: none (the default) or inherit.",
          COMPLETE_NONE, 0, 0 },
        OPT_END,
};

const struct command command_fork = {
        .name = "fork",
        .synopsis = "[OPTION...] SANDBOX",
        .summary = "Make running copies of a sandbox, and print their ids.",
        .details = "Its files, processes and memory, as they are at that moment or as a checkpoint has them; ids, host names\n"
                   "and tokens are the copies' own. All of them are made or none. The sandbox stands still while what it\n"
                   "changed in memory is copied, and goes on; streams into it end and are attached to again.\n\n"
                   "  cspace fork -n 10 work\n"
                   "  cspace fork --from before --name try work",
        .opts = opts,
        .min_args = 1,
        .max_args = 1,
        .command_at = -1,
        .args = { COMPLETE_SANDBOX },
        .with = run,
};
