/* SPDX-License-Identifier: Apache-2.0 */
#include "command.h"

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
        &command_exec,
        &command_shell,
        &command_cp,
        &command_logs,
        &command_template_build,
        &command_template_ls,
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
        for (const struct command *const *c = command_table; *c; c++) {
                int words = match((*c)->name, argc, argv);

                if (words > 0) {
                        *ret_words = words;
                        return *c;
                }
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

/* Edit distance (Levenshtein) of two short words. */
static size_t distance(const char *a, const char *b) {
        enum { MAX = 32 };
        size_t row[MAX + 1], an = strlen(a), bn = strlen(b);

        if (an > MAX || bn > MAX)
                return MAX;
        for (size_t j = 0; j <= bn; j++)
                row[j] = j;
        for (size_t i = 1; i <= an; i++) {
                size_t diagonal = row[0];

                row[0] = i;
                for (size_t j = 1; j <= bn; j++) {
                        size_t best = diagonal + (a[i - 1] != b[j - 1]);

                        if (row[j] + 1 < best)
                                best = row[j] + 1;
                        if (row[j - 1] + 1 < best)
                                best = row[j - 1] + 1;
                        diagonal = row[j];
                        row[j] = best;
                }
        }
        return row[bn];
}

const char *command_suggest(const char *word) {
        static const struct {
                const char *from, *to;
        } aliases[] = {
                { "list", "ls" },
                { "ps", "ls" },
                { "delete", "rm" },
                { "kill", "rm" },
                { "ssh", "shell" },
                { "attach", "shell" },
                { "copy", "cp" },
                { "show", "info" },
                { "inspect", "info" },
                { "status", "doctor" },
                { "build", "template build" },
        };
        const char *best = NULL;
        size_t least = 3;

        for (size_t i = 0; i < ARRAY_SIZE(aliases); i++)
                if (str_eq(aliases[i].from, word))
                        return aliases[i].to;
        for (const struct command *const *c = command_table; *c; c++) {
                size_t d = distance(word, (*c)->name);

                if (d < least && d < strlen(word)) {
                        least = d;
                        best = (*c)->name;
                }
        }
        return best;
}
