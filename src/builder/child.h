/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* Runs one tool to its end: its output goes to the build's log, its failure is an error that names it. */

#include "build.h"

struct child {
        const char *const *argv;  /* argv[0] is looked up on the builder's fixed path */
        const char *const *env;   /* "KEY=VALUE", added to the fixed environment; NULL: none */
        int in_fd;                /* stdin; < 0: /dev/null */
        int out_fd;               /* stdout; < 0: the log */
        bool no_network;          /* in a network namespace with a loopback device only */
        const char *root;         /* changes its root to this folder first */
        int (*call)(void *arg);   /* instead of argv: runs in the child, result is its exit status */
        void *call_arg;
        void (*on_line)(void *arg, const char *line); /* for each line that goes to the log; runs in the parent */
        void *line_arg;
        const char *unlogged;     /* lines that begin so are for on_line alone; NULL: none */
};

#define CHILD_INIT ((struct child){ .in_fd = -1, .out_fd = -1 })

/* 0, or -EIO when it failed (the message has its last line), -ETIMEDOUT, or another negative errno. */
int child_run(struct build *b, const struct child *c, struct error *err);
/* As above, and with its exit status in *ret_status: a status other than 0 is then no error. */
int child_run_status(struct build *b, const struct child *c, int *ret_status, struct error *err);
/* The output of a tool, at most max bytes; malloc'd, NUL-terminated. */
int child_output(struct build *b, const struct child *c, size_t max, char **ret, struct error *err);
