/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* A command in a sandbox, from its preparation to this program's exit code; shared by run, exec
 * and shell. */

#include "attach.h"
#include "opts.h"

struct exec_options {
        const char *user, *workdir;
        struct opt_list env;
        uint64_t timeout_s; /* 0: none */
        bool tty, interactive, no_stdin;
        const char *escape; /* one character or "none"; for terminals */
};

/* Rows for a command's option table. */
#define EXEC_OPTS(o)                                                                                         \
        { "env",                                                                                             \
          'e',                                                                                               \
          OPT_LIST,                                                                                          \
          &(o).env,                                                                                          \
          "NAME=VALUE",                                                                                      \
          "Set a variable; NAME alone takes the value it has here.",                                         \
          COMPLETE_NONE,                                                                                     \
          0,                                                                                                 \
          0 },                                                                                               \
                { "user",        'u', OPT_STRING, &(o).user, "USER", "User in the sandbox (root).",          \
                  COMPLETE_NONE, 0,   0 },                                                                   \
        {                                                                                                    \
                "workdir", 'w', OPT_STRING, &(o).workdir, "DIR", "Folder to start in.", COMPLETE_NONE, 0, 0  \
        }

#define EXEC_STREAM_OPTS(o)                                                                                  \
        { "interactive", 'i', OPT_FLAG, &(o).interactive, NULL, "Pass stdin; this is the default.",          \
          COMPLETE_NONE, 0,   0 },                                                                           \
                { "no-stdin",    'n',  OPT_FLAG,                                                             \
                  &(o).no_stdin, NULL, "Leave stdin alone; the command reads its end.",                      \
                  COMPLETE_NONE, 0,    0 },                                                                  \
        {                                                                                                    \
                "tty", 't', OPT_FLAG, &(o).tty, NULL, "Give the command a terminal.", COMPLETE_NONE, 0, 0    \
        }

/* CLI_OK, or an error told: a terminal in the sandbox that nobody could type into would wait for ever. */
int exec_check_terminal(const struct exec_options *o);

/* {"A":"x"} from the list; NULL: err says which item is wrong. */
json_t *exec_env(const struct opt_list *env, struct error *err);

/* Prepares argv (argc 0: the user's login shell). *ret_process and *ret_target are malloc'd. */
int exec_prepare(struct client *c, const char *sandbox, const struct exec_options *o, int argc, char **argv,
                 char **ret_process, char **ret_target, struct api_error *e);
/* Starts it without attaching. */
int exec_start(struct client *c, const char *sandbox, const struct exec_options *o, int argc, char **argv,
               char **ret_process, struct api_error *e);
char *exec_target(const char *sandbox, const char *process) __attribute__((malloc, returns_nonnull));

struct exec_stream {
        struct client *client;
        const char *sandbox, *process, *target;
        const struct exec_options *options;
        bool stays;           /* the sandbox is not deleted afterwards: a command that is lost can be attached to again */
        uint64_t *started_us; /* where to note when the command had started; may be NULL */
};
/* Streams until the end. While it runs, signals are forwarded. Prints what went wrong. Returns the
 * exit code; *ret (may be NULL) has how it ended. */
int exec_stream(const struct exec_stream *s, struct attach_result *ret);
