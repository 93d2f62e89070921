/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * What every command of cspace(1) shares: the global options, the exit codes, and how an error is
 * told. The CLI is a one-shot program: memory that runs out ends it (mem.h), and what main()
 * leaves to the kernel at exit is not freed by hand.
 */

#include <stdbool.h>
#include <stddef.h>

#include "base/error.h"

enum cli_exit {
        CLI_OK = 0,
        CLI_USAGE = 2,            /* the command line is wrong; nothing was done */
        CLI_FAILURE = 125,        /* cspace itself failed */
        CLI_NOT_EXECUTABLE = 126, /* the command in the sandbox could not be executed */
        CLI_NOT_FOUND = 127,      /* the command does not exist in the sandbox */
        CLI_SIGNAL = 128,         /* plus the signal's number */
};

struct cli_globals {
        const char *config; /* --config, NULL: the default file */
        const char *api;    /* --api or CSPACE_API_URL, NULL: the local socket */
        const char *key;    /* --key or CSPACE_API_KEY, may be NULL */
        bool json;
        const char *command; /* "template build", for messages */
        const char *sandbox; /* the one that is spoken of, as it was named; NULL: none, or several */
        bool stuck;          /* a worker thread cannot be joined: end by _exit() */
};
extern struct cli_globals cli_globals;
static inline struct cli_globals *cli(void) {
        return &cli_globals;
}

/* Prints "cspace: message" to stderr (an object {"error":{"code","message"}} with --json), with
 * control bytes escaped. Returns CLI_FAILURE. */
int cli_fail(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
int cli_fail_code(const char *code, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* The message of err. */
int cli_fail_err(const struct error *err);
/* As cli_fail(), with a pointer to the command's help. Returns CLI_USAGE. */
int cli_usage(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
/* A remark that is no error; silent with --json. */
void cli_note(const char *fmt, ...) __attribute__((format(printf, 1, 2)));

/* Whether names[i] stands among those before it: who names a thing twice means it once. */
bool cli_named_before(char *const *names, int i);

/* Flushes stdout; an output that could not be written is a failure whatever came before. */
int cli_finish(int rc);
