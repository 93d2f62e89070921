/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * Options as rows of a table. One row gives the parser, the line in the help text and the
 * completion. Values go straight to the variable that the row names.
 *
 * Syntax: --name, --name=value, --name value, -n, -nvalue, -n value, -abc for flags; "--" ends the
 * options. Names are never abbreviated: a script must not break when an option is added.
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"

enum opt_kind {
        OPT_FLAG,    /* bool: set to true */
        OPT_STRING,  /* const char * */
        OPT_LIST,    /* struct opt_list: may be given again and again */
        OPT_UINT,    /* uint64_t within min..max */
        OPT_SIZE,    /* uint64_t, bytes: "512M" */
        OPT_SECONDS, /* uint64_t: "30", "5m" */
        OPT_HELP,    /* prints the command's help */
};

/* What can stand at a place of the command line, for completion. */
enum complete {
        COMPLETE_NONE,
        COMPLETE_FILE,
        COMPLETE_DIR,
        COMPLETE_SANDBOX,
        COMPLETE_TEMPLATE,
        COMPLETE_KEY,
        COMPLETE_CP,      /* a file or SANDBOX:PATH */
        COMPLETE_COMMAND, /* of cspace itself */
        COMPLETE_PRESET,  /* of a policy */
        COMPLETE_CREDENTIAL,
        COMPLETE_CHECKPOINT, /* of the sandbox named before, as the next four */
        COMPLETE_PAST,       /* also what it was created with */
        COMPLETE_MOMENT,     /* also what it is now */
        COMPLETE_BINDING,
        COMPLETE_PROCESS, /* that runs */
};

struct opt {
        const char *name;
        char letter; /* 0: none */
        enum opt_kind kind;
        void *to;
        const char *arg; /* metavariable; NULL for flags */
        const char *help;
        enum complete complete;
        uint64_t min, max; /* max 0: no limit */
};
#define OPT_END                                                                                              \
        { .name = NULL }

struct opt_list {
        const char **items;
        size_t n;
};
void opt_list_add(struct opt_list *l, const char *item);

struct opt_spec {
        const struct opt *opts, *globals; /* each ends with OPT_END; either may be NULL */
        int command_at; /* after this many operands the rest is a command and not looked at; -1: never */
};

/*
 * Parses argv[0..argc) (no program name). Operands are moved to the front of argv in order; their
 * number is returned. *ret_help is set when -h or --help was seen. -EINVAL: err says what is wrong.
 */
int opts_parse(const struct opt_spec *spec, int argc, char **argv, bool *ret_help, struct error *err);

/* The row that a word of the command line names ("--name", "--name=x", "-n"), or NULL. */
const struct opt *opts_find(const struct opt_spec *spec, const char *word);
static inline bool opt_takes_value(const struct opt *o) {
        return o->kind != OPT_FLAG && o->kind != OPT_HELP;
}
