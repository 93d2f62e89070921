/* SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <stdlib.h>

#include "base/cleanup.h"
#include "base/str.h"
#include "cli.h"
#include "client.h"
#include "command.h"
#include "mem.h"
#include "output.h"
#include "policy_option.h"
#include "text.h"

#define EXIT_DENIED 1

static struct opt_list allow;
static const char *method;
static bool removed;

static char *target_of(const char *sandbox, const char *rest) {
        _cleanup_free_ char *id = client_escape(sandbox);

        return mem_printf("/v1/sandboxes/%s/policy%s", id, rest);
}

/* --- get ---------------------------------------------------------------------------------------- */

/* ASCII alone, in several lines: to be read, edited and set again. */
static void print_policy(const json_t *policy) {
        _cleanup_free_ char *text =
                json_dumps(policy, JSON_INDENT(2) | JSON_ENSURE_ASCII | JSON_PRESERVE_ORDER | JSON_ENCODE_ANY);

        puts(text ? text : "null");
}

static int get(struct client *c, int argc, char **argv) {
        _cleanup_free_ char *target = target_of(argv[0], "");
        _cleanup_json_ json_t *answer = NULL;
        struct api_error e;

        (void) argc;
        if (client_call(c, "GET", target, NULL, 0, &answer, &e) < 0)
                return api_error_print(&e);
        if (cli()->json)
                output_json(answer);
        else
                print_policy(json_object_get(answer, "policy"));
        return CLI_OK;
}

/* --- set ---------------------------------------------------------------------------------------- */

static int set(struct client *c, int argc, char **argv) {
        _cleanup_free_ char *target = target_of(argv[0], "");
        _cleanup_json_ json_t *body = json_object(), *answer = NULL;
        struct api_error e;

        if (argc < 2 && allow.n == 0)
                return cli_usage("a FILE, \"-\", none, @packages or --allow is needed");
        if (policy_option(body, &allow, argc > 1 ? argv[1] : NULL, &e) < 0 ||
            client_call(c, "PUT", target, body, 0, &answer, &e) < 0)
                return api_error_print(&e);
        const json_t *egress = json_object_get(answer, "egress");
        if (cli()->json)
                output_json(answer);
        else if (str_eq(member_str(egress, "state"), "off"))
                cli_note("the sandbox does not run; the policy holds when it does");
        policy_tell_warnings(egress);
        return CLI_OK;
}

/* --- check -------------------------------------------------------------------------------------- */

static void print_check(const json_t *answer) {
        const json_t *stages = json_object_get(answer, "stages"), *s;
        size_t i;

        output_field("Verdict:", member_str(answer, "verdict"));
        output_field("Rule:", member_str(answer, "rule"));
        output_fieldf("Why:", "%s (%s)", member_str(answer, "message"), member_str(answer, "reason"));
        json_array_foreach(stages, i, s) {
                output_fieldf(i == 0 ? "Stages:" : "", "%s: %s, rule %s (%s)", member_str(s, "stage"), member_str(s, "verdict"),
                              member_str(s, "rule"), member_str(s, "reason"));
        }
}

static int check(struct client *c, int argc, char **argv) {
        _cleanup_free_ char *target = target_of(argv[0], "/check");
        _cleanup_json_ json_t *body = json_pack("{s:s, s:s*}", "url", argv[1], "method", method), *answer = NULL;
        struct api_error e;

        (void) argc;
        if (!body)
                return cli_usage("URL or --method is not UTF-8");
        if (client_call(c, "POST", target, body, 0, &answer, &e) < 0)
                return api_error_print(&e);
        if (cli()->json)
                output_json(answer);
        else
                print_check(answer);
        policy_tell_warnings(answer);
        return str_eq(member_str(answer, "verdict"), "deny") ? EXIT_DENIED : CLI_OK;
}

/* --- of a template ------------------------------------------------------------------------------ */

static int of_template(struct client *c, int argc, char **argv) {
        _cleanup_free_ char *ref = client_escape(argv[0]), *target = mem_printf("/v1/templates/%s/policy", ref);
        _cleanup_json_ json_t *body = json_object(), *answer = NULL;
        bool set = argc > 1 || allow.n > 0;
        struct api_error e;
        int r;

        if (removed && set)
                return cli_usage("--remove takes no policy");
        if (removed)
                return client_call(c, "DELETE", target, NULL, 0, NULL, &e) < 0 ? api_error_print(&e) : CLI_OK;
        r = set ? policy_option(body, &allow, argc > 1 ? argv[1] : NULL, &e) : 0;
        if (r >= 0)
                r = client_call(c, set ? "PUT" : "GET", target, set ? body : NULL, 0, &answer, &e);
        if (r < 0)
                return api_error_print(&e);
        const json_t *policy = json_object_get(answer, "policy");
        policy_tell_warnings(answer);
        if (cli()->json)
                output_json(answer);
        else if (!set && (!policy || json_is_null(policy)))
                cli_note("the template has no policy: sandboxes that are created without one reach nothing");
        else if (!set)
                print_policy(policy);
        return CLI_OK;
}

const struct command command_policy_get = {
        .name = "policy get",
        .synopsis = "SANDBOX",
        .summary = "Print what a sandbox may reach, as JSON.",
        .details = "With --json also what its gateway makes of it.\n\n"
                   "  cspace policy get work > policy.json",
        .min_args = 1,
        .max_args = 1,
        .command_at = -1,
        .args = { COMPLETE_SANDBOX },
        .with = get,
};

static const struct opt opts_set[] = {
        { "allow", 0, OPT_LIST, &allow, "HOST",
          "In place of a file: a name, *.SUFFIX, NAME:PORT, an address or @packages. Again for more.", COMPLETE_PRESET, 0, 0 },
        OPT_END,
};

const struct command command_policy_set = {
        .name = "policy set",
        .synopsis = "[OPTION...] SANDBOX [FILE]",
        .summary = "Change what a sandbox may reach, at once.",
        .details = "FILE is JSON as the page on egress describes it; \"-\" reads it from stdin, and none and @packages stand for "
                   "themselves. Connections that are still allowed go on. What is not a policy changes nothing.\n\n"
                   "  cspace policy set work policy.json\n"
                   "  cspace policy set --allow @packages --allow api.example.com work",
        .opts = opts_set,
        .min_args = 1,
        .max_args = 2,
        .command_at = -1,
        .args = { COMPLETE_SANDBOX, COMPLETE_FILE },
        .with = set,
};

static const struct opt opts_template[] = {
        { "allow", 0, OPT_LIST, &allow, "HOST",
          "In place of a file: a name, *.SUFFIX, NAME:PORT, an address or @packages. Again for more.", COMPLETE_PRESET, 0, 0 },
        { "remove", 0, OPT_FLAG, &removed, NULL, "Have none.", COMPLETE_NONE, 0, 0 },
        OPT_END,
};

const struct command command_template_policy = {
        .name = "template policy",
        .synopsis = "[OPTION...] TEMPLATE [FILE]",
        .summary = "Print or set what sandboxes of a template may reach that are created without a policy.",
        .details = "FILE is as for `cspace policy set`. It holds for sandboxes that are created from now on. By NAME[:TAG] it belongs to that "
                   "name, by digest it counts where the name has none.\n\n"
                   "  cspace template policy base\n"
                   "  cspace template policy --allow @packages base",
        .opts = opts_template,
        .min_args = 1,
        .max_args = 2,
        .command_at = -1,
        .args = { COMPLETE_TEMPLATE, COMPLETE_FILE },
        .with = of_template,
};

static const struct opt opts_check[] = {
        { "method", 'X', OPT_STRING, &method, "METHOD", "Of a request; GET without it.", COMPLETE_NONE, 0, 0 },
        OPT_END,
};

const struct command command_policy_check = {
        .name = "policy check",
        .synopsis = "[OPTION...] SANDBOX URL",
        .summary = "Tell what the policy of a sandbox says of a URL, and why.",
        .details = "Nothing is resolved or connected. URL begins with https://, http://, tcp:// or tls://. The exit code is 1 when it "
                   "is denied. The verdict \"ask\" is that of tls://: each request is judged.\n\n"
                   "  cspace policy check -X POST work https://api.example.com/v1/things",
        .opts = opts_check,
        .min_args = 2,
        .max_args = 2,
        .command_at = -1,
        .args = { COMPLETE_SANDBOX, COMPLETE_NONE },
        .with = check,
};
