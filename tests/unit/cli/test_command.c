/* SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "command.h"
#include "test.h"

/* What the parser takes for granted of the table. */
static void check_opts(const char *name, const struct opt *list, const struct opt *beside) {
        for (const struct opt *o = list; o && o->name; o++) {
                const struct opt *rest[] = { o + 1, beside };

                if (!o->help || (opt_takes_value(o) != (o->arg != NULL)) || (o->kind != OPT_HELP && !o->to))
                        fail_msg("%s --%s: incomplete", name, o->name);
                for (size_t i = 0; i < 2; i++)
                        for (const struct opt *p = rest[i]; p && p->name; p++)
                                if (strcmp(o->name, p->name) == 0 || (o->letter && o->letter == p->letter))
                                        fail_msg("%s: --%s and --%s collide", name, o->name, p->name);
        }
}

static void test_table(void **state) {
        (void) state;
        for (const struct command *const *c = command_table; *c; c++) {
                const struct command *k = *c;

                assert_non_null(k->name);
                assert_non_null(k->summary);
                assert_true((k->run != NULL) != (k->with != NULL)); /* one of the two */
                assert_non_null(k->synopsis);
                assert_true(k->summary[strlen(k->summary) - 1] == '.');
                assert_true(k->max_args < 0 || k->max_args >= k->min_args);
                if (k->command_at == 0 && k->max_args == 0)
                        fail_msg("%s: command_at is 0 for a command without operands", k->name);
                check_opts(k->name, k->opts, command_globals);
        }
        check_opts("globals", command_globals, NULL);
}

static void find(const char *a, const char *b, const char *name, int words) {
        char first[32], second[32];
        char *argv[] = { strcpy(first, a), strcpy(second, b ? b : ""), NULL };
        int used = 0;
        const struct command *c = command_find(b ? 2 : 1, argv, &used);

        if (!name) {
                assert_null(c);
                return;
        }
        assert_non_null(c);
        assert_string_equal(c->name, name);
        assert_int_equal(used, words);
}

static void test_find(void **state) {
        (void) state;
        find("run", NULL, "run", 1);
        find("run", "template", "run", 1);
        find("checkpoint", "x", "checkpoint", 1); /* the longest, wherever it stands */
        find("checkpoint", "rm", "checkpoint rm", 2);
        find("template", "build", "template build", 2);
        find("template", NULL, NULL, 0);
        find("template", "run", NULL, 0);
        find("ru", NULL, NULL, 0);
        find("__complete", NULL, "__complete", 1);
        assert_true(command_is_group("template"));
        assert_true(command_is_group("key"));
        assert_false(command_is_group("templ"));
        assert_false(command_is_group("run"));
}

static void test_suggest(void **state) {
        (void) state;
        assert_string_equal(command_suggest("", "rnu"), "run");
        assert_string_equal(command_suggest("", "creat"), "create");
        assert_string_equal(command_suggest("", "delete"), "rm");
        assert_string_equal(command_suggest("", "destroy"), "rm");
        assert_string_equal(command_suggest("", "images"), "template ls");
        assert_string_equal(command_suggest("", "versoin"), "version");
        assert_string_equal(command_suggest("", "top"), "info");
        assert_string_equal(command_suggest("template", "list"), "template ls");
        assert_string_equal(command_suggest("template", "delete"), "template rm");
        assert_string_equal(command_suggest("template", "biuld"), "template build");
        assert_string_equal(command_suggest("key", "crate"), "key create");
        assert_null(command_suggest("key", "ssh"));
        assert_null(command_suggest("", "xylophone"));
        assert_null(command_suggest("", "x"));
        assert_null(command_suggest("", "zp"));
        assert_null(command_suggest("", ""));
}

static const struct command *named(const char *name) {
        for (const struct command *const *c = command_table; *c; c++)
                if (strcmp((*c)->name, name) == 0)
                        return *c;
        return NULL;
}

static void test_aliases(void **state) {
        (void) state;
        for (const struct command_alias *a = command_aliases; a->from; a++) {
                if (named(a->from))
                        fail_msg("\"%s\" is a command, and an alias too", a->from);
                if (!named(a->to))
                        fail_msg("\"%s\" leads to \"%s\", which is no command", a->from, a->to);
        }
}

static void harmless(const char *word) {
        const char *to = command_suggest("", word);

        const struct command *c = to ? named(to) : NULL;

        if (c && c->destructive)
                fail_msg("\"%s\" suggests \"%s\"", word, to);
}

/* A word that is only like another must lead nobody to where things are deleted. */
static void test_suggests_nothing_destructive(void **state) {
        static const char *const words[] = { "stop", "start", "dawn", "dwon", "don", "dow", "kill", "rn", "mr", "r" };
        unsigned n = 0;

        (void) state;
        for (const struct command *const *c = command_table; *c; c++) {
                char word[64];

                n += (*c)->destructive;
                for (size_t i = 0; (*c)->name[i]; i++) {
                        strcpy(word, (*c)->name);
                        word[i] = 'z';
                        harmless(word);
                        memmove(word + i, word + i + 1, strlen(word + i));
                        harmless(word);
                }
        }
        for (size_t i = 0; i < sizeof words / sizeof words[0]; i++)
                harmless(words[i]);
        assert_true(n >= 4);
        assert_true(command_down.destructive && command_rm.destructive);
}

int main(void) {
        const struct CMUnitTest tests[] = { cmocka_unit_test(test_table), cmocka_unit_test(test_find),
                                            cmocka_unit_test(test_suggest), cmocka_unit_test(test_aliases),
                                            cmocka_unit_test(test_suggests_nothing_destructive) };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
