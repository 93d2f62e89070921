/* SPDX-License-Identifier: Apache-2.0 */

/*
 * cspace __complete N WORD...: what can stand at word N (0: cspace itself), one candidate a line,
 * for the shell. The lines ":file" and ":dir" ask the shell for its own file names, ":nospace" for
 * no blank after the candidate. Nothing here may print an error: a completion that fails is empty.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/str.h"
#include "cli.h"
#include "client.h"
#include "command.h"
#include "mem.h"
#include "output.h"

#define COMPLETE_TIMEOUT_MS 2000

static void offer(const char *candidate, const char *typed) {
        /* A name that a shell would take apart is of no use as a candidate. */
        if (*candidate && str_has_prefix(candidate, typed) && !strpbrk(candidate, " \t\n\\'\"$`"))
                puts(candidate);
}

/* --- from the API ------------------------------------------------------------------------------------ */

static json_t *fetch(const char *target) {
        struct error err = ERROR_INIT;
        struct client *c = NULL;
        struct api_error e;
        json_t *j = NULL;

        if (client_new(&c, &err) < 0)
                return NULL;
        if (client_call(c, "GET", target, NULL, COMPLETE_TIMEOUT_MS, &j, &e) < 0)
                j = NULL;
        client_free(c);
        return j;
}

static void offer_sandboxes(const char *typed, const char *suffix) {
        _cleanup_json_ json_t *j = fetch("/v1/sandboxes?limit=1000");
        const json_t *s;
        size_t i;

        json_array_foreach(json_object_get(j, "sandboxes"), i, s) {
                _cleanup_free_ char *id = mem_printf("%s%s", member_str(s, "id"), suffix);
                _cleanup_free_ char *name = mem_printf("%s%s", member_str(s, "name"), suffix);

                offer(id, typed);
                if (*member_str(s, "name"))
                        offer(name, typed);
        }
}

static void offer_templates(const char *typed) {
        _cleanup_json_ json_t *j = fetch("/v1/templates");
        const json_t *t, *name;
        size_t i, k;

        json_array_foreach(json_object_get(j, "templates"), i, t)
                json_array_foreach(json_object_get(t, "names"), k, name)
                        offer(json_string_value(name) ? json_string_value(name) : "", typed);
}

static void offer_keys(const char *typed) {
        _cleanup_json_ json_t *j = fetch("/v1/keys");
        const json_t *k;
        size_t i;

        json_array_foreach(json_object_get(j, "keys"), i, k) offer(member_str(k, "id"), typed);
}

static void offer_credentials(const char *typed) {
        _cleanup_json_ json_t *j = fetch("/v1/credentials");
        const json_t *c;
        size_t i;

        json_array_foreach(json_object_get(j, "credentials"), i, c) offer(member_str(c, "name"), typed);
}

static void offer_presets(const char *typed) {
        _cleanup_json_ json_t *j = fetch("/v1/policies/presets");
        const json_t *p;
        size_t i;

        json_array_foreach(json_object_get(j, "presets"), i, p)
                if (member_str(p, "name")[0] == '@')
                        offer(member_str(p, "name"), typed);
}

static const char *first_operand; /* on the line so far */

static void offer_checkpoints(const char *typed, bool template, bool now) {
        if (!first_operand)
                return;
        _cleanup_free_ char *id = client_escape(first_operand);
        _cleanup_free_ char *target = mem_printf("/v1/sandboxes/%s/checkpoints", id);
        _cleanup_json_ json_t *j = fetch(target);
        const json_t *c;
        size_t i;

        json_array_foreach(json_object_get(j, "checkpoints"), i, c) {
                offer(member_str(c, "id"), typed);
                if (*member_str(c, "name"))
                        offer(member_str(c, "name"), typed);
        }
        if (template)
                offer("template", typed);
        if (now)
                offer("now", typed);
}

/* SANDBOX:/dir/na -> the entries of /dir in the sandbox. */
static void offer_remote(const char *typed) {
        const char *colon = strchr(typed, ':'), *slash = strrchr(colon, '/');
        if (!slash)
                return;
        _cleanup_free_ char *sandbox = mem_ndup(typed, (size_t) (colon - typed));
        _cleanup_free_ char *dir = mem_ndup(colon + 1, (size_t) (slash - colon));
        _cleanup_free_ char *id = client_escape(sandbox), *path = client_escape(dir);
        _cleanup_free_ char *target = mem_printf("/v1/sandboxes/%s/files/list?path=%s", id, path);
        _cleanup_json_ json_t *j = fetch(target);
        const json_t *entry;
        size_t i;

        puts(":nospace");
        json_array_foreach(json_object_get(j, "entries"), i, entry) {
                _cleanup_free_ char *full =
                        mem_printf("%s:%s%s%s", sandbox, dir, member_str(entry, "name"),
                                   str_eq(member_str(entry, "type"), "directory") ? "/" : "");
                offer(full, typed);
        }
}

static void offer_commands(const char *group, const char *typed) {
        size_t n = group ? strlen(group) : 0;
        const char *last = "";

        for (const struct command *const *c = command_table; *c; c++) {
                const char *word = (*c)->name;

                if (group) {
                        if (!str_has_prefix(word, group) || word[n] != ' ')
                                continue;
                        offer(word + n + 1, typed);
                        continue;
                }
                size_t len = strcspn(word, " ");
                if (strlen(last) >= len && strncmp(last, word, len) == 0)
                        continue; /* the group again */
                _cleanup_free_ char *first = mem_ndup(word, len);
                offer(first, typed);
                last = word;
        }
}

static void offer_bindings(const char *typed) {
        if (!first_operand)
                return;
        _cleanup_free_ char *id = client_escape(first_operand), *target = mem_printf("/v1/sandboxes/%s/bindings", id);
        _cleanup_json_ json_t *j = fetch(target);
        const json_t *b;
        size_t i;

        json_array_foreach(json_object_get(j, "bindings"), i, b) offer(member_str(b, "id"), typed);
}

static void offer_processes(const char *typed) {
        if (!first_operand)
                return;
        _cleanup_free_ char *id = client_escape(first_operand), *target = mem_printf("/v1/sandboxes/%s/commands", id);
        _cleanup_json_ json_t *j = fetch(target);
        const json_t *p;
        size_t i;

        json_array_foreach(json_object_get(j, "commands"), i, p)
                if (!json_is_object(json_object_get(p, "exit")))
                        offer(member_str(p, "process_id"), typed);
}

/* Values of options that take one of a few words. */
static void offer_words(const char *option, const char *typed) {
        static const struct {
                const char *option, *words[6];
        } all[] = {
                { "on-expiry", { "delete", "suspend", "stop" } },
                { "on-idle", { "pause", "suspend", "stop", "delete" } },
                { "bindings", { "none", "inherit" } },
                { "client-auth", { "basic", "body" } },
                { "kind", { "dns", "connect", "request", "packets", "lost" } },
                { "verdict", { "allow", "deny" } },
                { "state", { "running", "paused", "suspended", "stopped", "failed" } },
        };

        for (size_t i = 0; i < ARRAY_SIZE(all); i++)
                for (size_t k = 0; str_eq(all[i].option, option) && all[i].words[k]; k++)
                        offer(all[i].words[k], typed);
}

static void offer_kind(enum complete kind, const char *typed) {
        switch (kind) {
        case COMPLETE_NONE:
                break;
        case COMPLETE_FILE:
                puts(":file");
                break;
        case COMPLETE_DIR:
                puts(":dir");
                break;
        case COMPLETE_SANDBOX:
                offer_sandboxes(typed, "");
                break;
        case COMPLETE_TEMPLATE:
                offer_templates(typed);
                break;
        case COMPLETE_KEY:
                offer_keys(typed);
                break;
        case COMPLETE_CP:
                if (strchr(typed, ':')) {
                        offer_remote(typed);
                } else {
                        puts(":file");
                        puts(":nospace");
                        offer_sandboxes(typed, ":");
                }
                break;
        case COMPLETE_COMMAND:
                offer_commands(NULL, typed);
                break;
        case COMPLETE_CREDENTIAL:
                offer_credentials(typed);
                break;
        case COMPLETE_CHECKPOINT:
        case COMPLETE_PAST:
        case COMPLETE_MOMENT:
                offer_checkpoints(typed, kind != COMPLETE_CHECKPOINT, kind == COMPLETE_MOMENT);
                break;
        case COMPLETE_PRESET:
                offer_presets(typed);
                break;
        case COMPLETE_BINDING:
                offer_bindings(typed);
                break;
        case COMPLETE_PROCESS:
                offer_processes(typed);
                break;
        }
}

static void offer_options(const struct opt_spec *spec, const char *typed) {
        for (int pass = 0; pass < 2; pass++) {
                for (const struct opt *o = pass ? spec->globals : spec->opts; o && o->name; o++) {
                        _cleanup_free_ char *name = mem_printf("--%s", o->name);
                        offer(name, typed);
                }
        }
}

/* --- where the word stands ---------------------------------------------------------------------------- */

/* Walks the words before the one to complete as the parser would; gives the option whose value it
 * is, or the number of operands before it; -1: it belongs to a command in the sandbox. */
static int walk(const struct opt_spec *spec, int n, char **words, const struct opt **ret_value,
                bool *ret_options) {
        int operands = 0;

        *ret_value = NULL;
        *ret_options = true;
        first_operand = NULL;
        for (int i = 0; i < n; i++) {
                const char *w = words[i];
                const struct opt *o;

                if (*ret_options && str_eq(w, "--")) {
                        *ret_options = false;
                } else if (*ret_options && w[0] == '-' && w[1]) {
                        o = opts_find(spec, w);
                        if (!o || !opt_takes_value(o) || strchr(w, '='))
                                continue;
                        if (o->kind == OPT_STRING && o->to == &cli_globals.api && i + 1 < n)
                                cli()->api = words[i + 1];
                        if (o->kind == OPT_STRING && o->to == &cli_globals.config && i + 1 < n)
                                cli()->config = words[i + 1];
                        if (++i == n)
                                *ret_value = o;
                } else {
                        if (operands++ == 0)
                                first_operand = w;
                        if (spec->command_at >= 0 && operands > spec->command_at)
                                return -1;
                }
        }
        return operands;
}

static void complete_in(const struct command *c, int n, char **words, const char *typed) {
        const struct opt_spec spec = { c->opts, command_globals, c->command_at };
        const struct opt *value;
        bool options;
        int operands = walk(&spec, n, words, &value, &options);

        if (value) {
                offer_words(value->name, typed);
                offer_kind(value->complete, typed);
        } else if (operands >= 0 && options && typed[0] == '-') {
                offer_options(&spec, typed);
        } else if (operands >= 0) {
                offer_kind(command_operand(c, operands), typed);
        }
}

static void complete(int n, char **words, const char *typed) {
        const struct opt_spec first = { NULL, command_globals, 0 };
        const struct opt *value;
        int skip = 0, used = 0;
        bool options;

        /* Options before the command. */
        while (skip < n && words[skip][0] == '-') {
                const struct opt *o = opts_find(&first, words[skip]);
                skip += o && opt_takes_value(o) && !strchr(words[skip], '=') ? 2 : 1;
        }
        (void) walk(&first, skip < n ? skip : n, words, &value, &options);
        if (skip > n || (skip == n && value)) {
                offer_kind(value ? value->complete : COMPLETE_NONE, typed);
                return;
        }
        words += skip;
        n -= skip;
        const struct command *c = command_find(n, words, &used);
        if (c)
                complete_in(c, n - used, words + used, typed);
        else if (n == 1 && command_is_group(words[0]))
                offer_commands(words[0], typed);
        else if (n == 0 && typed[0] == '-')
                offer_options(&first, typed);
        else if (n == 0)
                offer_commands(NULL, typed);
}

static int run(int argc, char **argv) {
        uint64_t at;

        /* argv[0] is "__complete", argv[1] the number, argv[2] the word "cspace". */
        if (argc < 3 || str_to_u64(argv[1], INT32_MAX, &at) < 0 || at == 0)
                return CLI_OK;
        int n = (int) at - 1 < argc - 3 ? (int) at - 1 : argc - 3;
        complete(n, argv + 3, (int) at + 2 < argc ? argv[(int) at + 2] : "");
        return CLI_OK;
}

const struct command command_complete = {
        .name = "__complete",
        .synopsis = "N WORD...",
        .summary = "Candidates for the shell's completion.",
        .command_at = 0,
        .raw = true,
        .max_args = -1,
        .run = run,
};
