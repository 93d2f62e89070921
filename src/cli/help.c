/* SPDX-License-Identifier: Apache-2.0 */
#include "help.h"

#include <stdlib.h>
#include <string.h>

#include "base/str.h"
#include "cli.h"
#include "text.h"

#define HELP_INDENT 2
#define HELP_COLUMN 26 /* where the explanations start */
#define HELP_WIDTH 80

static void print_row(FILE *f, const char *left, const char *right) {
        size_t n = strlen(left);

        fprintf(f, "%*s%s", HELP_INDENT, "", left);
        if (n + 2 > HELP_COLUMN - HELP_INDENT) {
                fputc('\n', f);
                text_wrap(f, right, HELP_COLUMN, HELP_WIDTH);
                return;
        }
        /* The first line stands beside the left part: wrap all of it, then drop the first indent. */
        char *wrapped = NULL;
        size_t size = 0;
        FILE *m = open_memstream(&wrapped, &size);
        if (!m) {
                fprintf(f, "  %s\n", right);
                return;
        }
        text_wrap(m, right, HELP_COLUMN, HELP_WIDTH);
        fclose(m);
        fprintf(f, "%*s%s", (int) (HELP_COLUMN - HELP_INDENT - n), "", wrapped + HELP_COLUMN);
        free(wrapped);
}

static void print_options(FILE *f, const struct opt *o) {
        for (; o && o->name; o++) {
                char left[80], letter[8] = "    ";

                if (o->letter)
                        snprintf(letter, sizeof letter, "-%c, ", o->letter);
                snprintf(left, sizeof left, "%s--%s%s%s", letter, o->name, o->arg ? " " : "",
                         o->arg ? o->arg : "");
                print_row(f, left, o->help);
        }
}

void help_overview(FILE *f) {
        fputs("Usage: cspace [OPTION...] COMMAND [ARGUMENT...]\n\n"
              "Runs code in microVMs of their own: one sandbox, one Linux computer.\n\nCommands:\n",
              f);
        for (const struct command *const *c = command_table; *c; c++)
                print_row(f, (*c)->name, (*c)->summary);
        fputs("\nOptions of every command:\n", f);
        print_options(f, command_globals);
        fputs("\n`cspace help COMMAND` explains one command. The manual: cspace(1).\n\n"
              "First steps:\n"
              "  cspace up                                start the services\n"
              "  cspace run -- python3 -c 'print(6*7)'    run a command in a new sandbox\n",
              f);
}

void help_group(FILE *f, const char *group) {
        fprintf(f, "Usage: cspace %s COMMAND [ARGUMENT...]\n\nCommands:\n", group);
        for (const struct command *const *c = command_table; *c; c++)
                if (str_has_prefix((*c)->name, group) && (*c)->name[strlen(group)] == ' ')
                        print_row(f, (*c)->name, (*c)->summary);
}

void help_command(FILE *f, const struct command *c) {
        fprintf(f, "Usage: cspace %s%s%s\n\n", c->name, *c->synopsis ? " " : "", c->synopsis);
        text_wrap(f, c->summary, 0, HELP_WIDTH);
        if (c->details) {
                fputc('\n', f);
                text_wrap(f, c->details, 0, HELP_WIDTH);
        }
        if (c->opts && c->opts->name) {
                fputs("\nOptions:\n", f);
                print_options(f, c->opts);
        }
        fputs("\nOptions of every command:\n", f);
        print_options(f, command_globals);
}
