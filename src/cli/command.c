/* SPDX-License-Identifier: Apache-2.0 */
#include "command.h"

#include <stdio.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/str.h"
#include "cli.h"

const struct command *const command_table[] = {
        &command_run,
        &command_create,
        &command_ls,
        &command_info,
        &command_rm,
        &command_pause,
        &command_resume,
        &command_suspend,
        &command_restore,
        &command_stop,
        &command_start,
        &command_wake,
        &command_checkpoint,
        &command_checkpoint_rm,
        &command_history,
        &command_rollback,
        &command_fork,
        &command_diff,
        &command_cat,
        &command_restore_file,
        &command_exec,
        &command_shell,
        &command_cp,
        &command_logs,
        &command_kill,
        &command_ttl,
        &command_rules,
        &command_policy_get,
        &command_policy_set,
        &command_policy_check,
        &command_audit,
        &command_credential_add,
        &command_credential_rotate,
        &command_credential_ls,
        &command_credential_rm,
        &command_bind,
        &command_unbind,
        &command_bindings,
        &command_template_build,
        &command_template_publish,
        &command_template_ls,
        &command_template_policy,
        &command_template_rm,
        &command_key_create,
        &command_key_ls,
        &command_key_rm,
        &command_up,
        &command_down,
        &command_doctor,
        &command_version,
        &command_help,
        NULL,
};

const struct opt command_globals[] = {
        { "api", 0, OPT_STRING, &cli_globals.api, "URL",
          "Where cspaced listens: unix:PATH or http://HOST:PORT.", COMPLETE_NONE, 0, 0 },
        { "config", 0, OPT_STRING, &cli_globals.config, "FILE",
          "Configuration file instead of /etc/cspace/cspace.conf.", COMPLETE_FILE, 0, 0 },
        { "help", 'h', OPT_HELP, NULL, NULL, "Show help.", COMPLETE_NONE, 0, 0 },
        { "json", 0, OPT_FLAG, &cli_globals.json, NULL, "Print data, and errors, as JSON.", COMPLETE_NONE, 0,
          0 },
        { "key", 0, OPT_STRING, &cli_globals.key, "KEY", "API key; better given in CSPACE_API_KEY.",
          COMPLETE_NONE, 0, 0 },
        OPT_END,
};

/* Whether the words are those of the name; returns how many, 0 if not. */
static int match(const char *name, int argc, char **argv) {
        int words = 0;

        for (const char *p = name; *p;) {
                size_t n = strcspn(p, " ");

                if (words >= argc || strlen(argv[words]) != n || memcmp(argv[words], p, n) != 0)
                        return 0;
                words++;
                p += n + (p[n] == ' ');
        }
        return words;
}

const struct command *command_find(int argc, char **argv, int *ret_words) {
        const struct command *longest = NULL;
        int most = 0;

        for (const struct command *const *c = command_table; *c; c++) {
                int words = match((*c)->name, argc, argv);

                if (words > most) {
                        most = words;
                        longest = *c;
                }
        }
        if (longest) {
                *ret_words = most;
                return longest;
        }
        static const struct command *const hidden[] = { &command_complete, &command_log_pump };
        for (size_t i = 0; i < ARRAY_SIZE(hidden); i++) {
                if (match(hidden[i]->name, argc, argv)) {
                        *ret_words = 1;
                        return hidden[i];
                }
        }
        return NULL;
}

bool command_is_group(const char *word) {
        size_t n = strlen(word);

        for (const struct command *const *c = command_table; *c; c++)
                if (str_has_prefix((*c)->name, word) && (*c)->name[n] == ' ')
                        return true;
        return false;
}

/* Sorted by what is meant. */
const struct command_alias command_aliases[] = {
        { "copy", "cp" },
        { "download", "cp" },
        { "get", "cp" },
        { "pull", "cp" },
        { "push", "cp" },
        { "put", "cp" },
        { "scp", "cp" },
        { "upload", "cp" },
        { "new", "create" },
        { "check", "doctor" },
        { "status", "doctor" },
        { "describe", "info" },
        { "inspect", "info" },
        { "show", "info" },
        { "stats", "info" },
        { "top", "info" },
        { "keys", "key ls" },
        { "log", "logs" },
        { "events", "logs" },
        { "list", "ls" },
        { "ps", "ls" },
        { "sandboxes", "ls" },
        { "freeze", "pause" },
        { "continue", "resume" },
        { "unpause", "resume" },
        { "delete", "rm" },
        { "destroy", "rm" },
        { "remove", "rm" },
        { "terminate", "rm" },
        { "launch", "run" },
        { "attach", "shell" },
        { "bash", "shell" },
        { "console", "shell" },
        { "enter", "shell" },
        { "sh", "shell" },
        { "ssh", "shell" },
        { "boot", "start" },
        { "halt", "stop" },
        { "poweroff", "stop" },
        { "shutdown", "stop" },
        { "hibernate", "suspend" },
        { "build", "template build" },
        { "image", "template ls" },
        { "images", "template ls" },
        { "templates", "template ls" },
        { "init", "up" },
        { "setup", "up" },
        { NULL, NULL },
};

#define WORD_MAX 32

static size_t least3(size_t a, size_t b, size_t c) {
        size_t m = a < b ? a : b;

        return m < c ? m : c;
}

/* Edit distance of two short words; two letters that changed places are one edit. */
static size_t distance(const char *a, const char *b, size_t bn) {
        size_t row[WORD_MAX + 1], before[WORD_MAX + 1], two_before[WORD_MAX + 1], an = strlen(a);

        if (an > WORD_MAX || bn > WORD_MAX)
                return WORD_MAX;
        for (size_t j = 0; j <= bn; j++)
                row[j] = before[j] = j;
        for (size_t i = 1; i <= an; i++) {
                memcpy(two_before, before, sizeof before);
                memcpy(before, row, sizeof row);
                row[0] = i;
                for (size_t j = 1; j <= bn; j++) {
                        row[j] = least3(before[j - 1] + (a[i - 1] != b[j - 1]), before[j] + 1, row[j - 1] + 1);
                        if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] &&
                            two_before[j - 2] + 1 < row[j])
                                row[j] = two_before[j - 2] + 1;
                }
        }
        return row[bn];
}

/* Of two letters anything is like anything. */
static size_t edits_allowed(size_t n) {
        return n < 3 ? 0 : n < 6 ? 1 : 2;
}

static const struct command *by_name(const char *name) {
        for (const struct command *const *c = command_table; *c; c++)
                if (str_eq((*c)->name, name))
                        return *c;
        return NULL;
}

static const char *by_alias(const char *group, const char *word) {
        for (const struct command_alias *a = command_aliases; a->from; a++) {
                char name[2 * WORD_MAX];

                if (!str_eq(a->from, word))
                        continue;
                if (!*group)
                        return a->to;
                (void) snprintf(name, sizeof name, "%s %s", group, a->to);
                const struct command *c = by_name(name);
                if (c)
                        return c->name;
        }
        return NULL;
}

const char *command_suggest(const char *group, const char *word) {
        const char *best = by_alias(group, word);
        size_t least = edits_allowed(strlen(word)) + 1, skip = *group ? strlen(group) + 1 : 0;

        if (best)
                return best;
        for (const struct command *const *c = command_table; *c; c++) {
                if ((*c)->destructive || (skip && (!str_has_prefix((*c)->name, group) || (*c)->name[skip - 1] != ' ')))
                        continue;
                const char *name = (*c)->name + skip;
                size_t d = distance(word, name, strlen(name));

                if (d < least) {
                        least = d;
                        best = (*c)->name;
                }
        }
        return best;
}

enum complete command_operand(const struct command *c, int i) {
        int last = 0;

        while (last + 1 < COMMAND_ARGS_MAX && c->args[last + 1] != 0)
                last++;
        return i <= last ? c->args[i] : c->max_args < 0 && c->command_at <= 0 ? c->args[last] : COMPLETE_NONE;
}
