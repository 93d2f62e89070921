/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * The table of commands: one row per command, made where the command is written, gathered in
 * command.c. Parser, help text, completion and the test that holds the manual against the program
 * all read it.
 */

#include "opts.h"

#define COMMAND_ARGS_MAX 3

struct client;

struct command {
        const char *name;     /* "run", "template build" */
        const char *synopsis; /* what follows the name: "[options] SANDBOX" */
        const char *summary;  /* one line, in the list of commands */
        const char *details;  /* paragraphs; a line that starts with a blank is an example */
        const struct opt *opts;
        int min_args, max_args; /* operands; max -1: any number */
        int command_at;         /* see struct opt_spec */
        bool destructive;       /* ends or deletes something: nobody is led to it by a word that is only like it */
        bool raw;               /* parses its own arguments; opts is for help and completion only */
        enum complete args[COMMAND_ARGS_MAX]; /* of operands, see command_operand() */
        /* One of the two, with the operands (raw: name and all); returns the exit code. */
        int (*run)(int argc, char **argv);
        int (*with)(struct client *c, int argc, char **argv); /* with a client, which is made before */
};

extern const struct command command_template_build, command_template_publish, command_template_ls, command_template_rm,
        command_run,
        command_create, command_ls, command_info, command_rm, command_pause, command_resume, command_suspend,
        command_restore, command_stop, command_start, command_wake, command_checkpoint, command_checkpoint_rm,
        command_history, command_rollback, command_fork, command_diff, command_cat, command_restore_file, command_exec, command_shell, command_cp,
        command_logs, command_kill, command_ttl, command_rules, command_key_create, command_key_ls, command_key_rm, command_policy_get,
        command_policy_set, command_policy_check, command_audit, command_credential_add,
        command_credential_rotate, command_template_policy,
        command_credential_ls, command_credential_rm, command_bind, command_unbind, command_bindings, command_up, command_down,
        command_doctor, command_version, command_help, command_complete, command_log_pump;

extern const struct command *const command_table[]; /* in the order of the help text; ends with NULL */
extern const struct opt command_globals[];

/* The command that the words name, longest first; *ret_words says how many words that took. NULL:
 * none. The hidden "__complete" and "__log" are found but not in command_table[]. */
const struct command *command_find(int argc, char **argv, int *ret_words);
/* What operand i is: the last kind is repeated where there may be any number, but for a command's own arguments. */
enum complete command_operand(const struct command *c, int i);
/* Whether word starts the name of commands with two words ("template"). */
bool command_is_group(const char *word);

/* Words of other tools and what is meant by them here. Only what is named here may lead to a destructive command. */
struct command_alias {
        const char *from, *to;
};
extern const struct command_alias command_aliases[]; /* ends with from NULL */

/* The name meant by, or nearest to, what was typed; NULL: none. group is "" or the first of two words. */
const char *command_suggest(const char *group, const char *word);
