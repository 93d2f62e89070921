/* SPDX-License-Identifier: Apache-2.0 */

/*
 * cspace(1). main() reads the global options that stand before the command, finds the command in
 * the table (command.c), parses its options by its row, and runs it. Everything a command does it
 * does through the native API; `up`, `down` and `doctor` look after the services themselves.
 */
#include <fcntl.h>
#include <locale.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/str.h"
#include "cli.h"
#include "client.h"
#include "command.h"
#include "help.h"

/* A terminal or pipe may hand the program fewer than three descriptors; a socket that became
 * number 1 would receive the output. */
static void sane_descriptors(void) {
        int fd;

        do
                fd = open("/dev/null", O_RDWR | O_CLOEXEC);
        while (fd >= 0 && fd <= 2);
        if (fd > 2)
                close(fd);
}

static const char *non_empty(const char *s) {
        return s && *s ? s : NULL;
}

/* The operand at this place of a synopsis: a word in capitals that is in no brackets, or the one before "...". */
static size_t operand_name(const char *synopsis, int index, const char **ret) {
        int depth = 0;

        for (const char *p = synopsis; *p;) {
                size_t n = strspn(p, "ABCDEFGHIJKLMNOPQRSTUVWXYZ");

                depth += *p == '[';
                depth -= *p == ']';
                if (n > 1 && depth == 0 && index-- == 0) {
                        *ret = p;
                        return n;
                }
                p += n ? n : 1;
        }
        return 0;
}

static int check_operands(const struct command *c, int n, char **argv) {
        const char *name = NULL;
        size_t len = n < c->min_args ? operand_name(c->synopsis, n, &name) : 0;

        if (len)
                return cli_usage("%.*s is missing: cspace %s %s", (int) len, name, c->name, c->synopsis);
        if (n < c->min_args)
                return cli_usage("an argument is missing: cspace %s %s", c->name, c->synopsis);
        if (c->max_args >= 0 && n > c->max_args)
                return cli_usage("argument \"%s\" is one too many", argv[c->max_args]);
        /* As from "$box" when the variable is not set: as part of a path it would name something else. */
        for (int i = 0; i < n; i++) {
                enum complete kind = command_operand(c, i);
                if (!*argv[i] && (kind == COMPLETE_SANDBOX || kind == COMPLETE_TEMPLATE))
                        return cli_usage("the %s's name is empty", kind == COMPLETE_SANDBOX ? "sandbox" : "template");
        }
        return CLI_OK;
}

/* One sandbox, and not any number of them. */
static bool names_one_sandbox(const struct command *c, int n) {
        return n > 0 && c->args[0] == COMPLETE_SANDBOX && (c->max_args >= 0 || c->command_at > 0 || c->args[1] != COMPLETE_NONE);
}

/* An error that ends the parsing must still have the form that was asked for behind it. */
static void look_ahead_for_json(int argc, char **argv) {
        for (int i = 0; i < argc && !str_eq(argv[i], "--"); i++)
                if (str_eq(argv[i], "--json"))
                        cli()->json = true;
}

static int run_command(const struct command *c, int words, int argc, char **argv) {
        const struct opt_spec spec = { c->opts, command_globals, c->command_at };
        struct error err = ERROR_INIT;
        bool help = false;

        cli()->command = c->name;
        if (c->raw && !(argc > words && (str_eq(argv[words], "--help") || str_eq(argv[words], "-h"))))
                return c->run(argc - words + 1, argv + words - 1);
        int n = opts_parse(&spec, argc - words, argv + words, &help, &err);
        if (help) {
                help_command(stdout, c);
                return CLI_OK;
        }
        if (n < 0) {
                look_ahead_for_json(argc, argv);
                return cli_usage("%s", err.msg);
        }
        int rc = check_operands(c, n, argv + words);
        if (rc != CLI_OK)
                return rc;
        if (names_one_sandbox(c, n))
                cli()->sandbox = argv[words];
        return c->with ? client_with(c->with, n, argv + words) : c->run(n, argv + words);
}

/* One word of two, or a second word that is none. */
static int run_group(int argc, char **argv) {
        cli()->command = argv[0];
        look_ahead_for_json(argc, argv);
        if (argc == 1 && !cli()->json) {
                help_group(stderr, argv[0]);
                return CLI_USAGE;
        }
        if (argc == 1)
                return cli_usage("a command is missing");
        const char *near = command_suggest(argv[0], argv[1]);
        if (near)
                return cli_usage("there is no command \"%s %s\"; did you mean \"%s\"?", argv[0], argv[1], near);
        return cli_usage("there is no command \"%s %s\"", argv[0], argv[1]);
}

static int dispatch(int argc, char **argv) {
        int words = 0;
        const struct command *c = command_find(argc, argv, &words);

        if (c)
                return run_command(c, words, argc, argv);
        if (command_is_group(argv[0])) {
                if (argc > 1 && (str_eq(argv[1], "--help") || str_eq(argv[1], "-h"))) {
                        help_group(stdout, argv[0]);
                        return CLI_OK;
                }
                return run_group(argc, argv);
        }
        look_ahead_for_json(argc, argv);
        const char *near = command_suggest("", argv[0]);
        if (near)
                return cli_usage("there is no command \"%s\"; did you mean \"%s\"?", argv[0], near);
        return cli_usage("there is no command \"%s\"", argv[0]);
}

static int start(int argc, char **argv) {
        static bool version;
        static const struct opt first[] = {
                { "version", 'V', OPT_FLAG, &version, NULL, "", COMPLETE_NONE, 0, 0 },
                OPT_END,
        };
        const struct opt_spec spec = { first, command_globals, 0 };
        struct error err = ERROR_INIT;
        bool help = false;

        cli()->api = non_empty(getenv("CSPACE_API_URL"));
        cli()->key = non_empty(getenv("CSPACE_API_KEY"));
        int n = opts_parse(&spec, argc - 1, argv + 1, &help, &err);
        if (n < 0) {
                look_ahead_for_json(argc - 1, argv + 1);
                return cli_usage("%s", err.msg);
        }
        if (help) {
                help_overview(stdout);
                return CLI_OK;
        }
        if (version) {
                cli()->command = "version";
                return client_with(command_version.with, 0, NULL);
        }
        if (n == 0) {
                help_overview(stderr);
                return CLI_USAGE;
        }
        return dispatch(n, argv + 1);
}

int main(int argc, char **argv) {
        sane_descriptors();
        signal(SIGPIPE, SIG_IGN);
        /* Names are UTF-8 whatever the user's language; nothing is formatted by locale. */
        if (!setlocale(LC_CTYPE, "C.UTF-8"))
                setlocale(LC_CTYPE, "");
        int rc = cli_finish(start(argc, argv));
        if (cli()->stuck)
                _exit(rc); /* exit handlers would wait for the thread */
        return rc;
}
