/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "opts.h"
#include "test.h"

static bool flag, other;
static const char *text;
static struct opt_list list;
static uint64_t number, size, seconds;
static bool json;

static const struct opt opts[] = {
        { "flag", 'f', OPT_FLAG, &flag, NULL, "", COMPLETE_NONE, 0, 0 },
        { "other", 'o', OPT_FLAG, &other, NULL, "", COMPLETE_NONE, 0, 0 },
        { "text", 't', OPT_STRING, &text, "TEXT", "", COMPLETE_NONE, 0, 0 },
        { "list", 'l', OPT_LIST, &list, "ITEM", "", COMPLETE_NONE, 0, 0 },
        { "number", 0, OPT_UINT, &number, "N", "", COMPLETE_NONE, 1, 10 },
        { "size", 0, OPT_SIZE, &size, "SIZE", "", COMPLETE_NONE, 0, 0 },
        { "seconds", 0, OPT_SECONDS, &seconds, "TIME", "", COMPLETE_NONE, 0, 0 },
        OPT_END,
};
static const struct opt globals[] = {
        { "json", 0, OPT_FLAG, &json, NULL, "", COMPLETE_NONE, 0, 0 },
        { "help", 'h', OPT_HELP, NULL, NULL, "", COMPLETE_NONE, 0, 0 },
        OPT_END,
};

/* words: separated by blanks. What is left over comes back joined with "|". */
static int parse(const char *words, int command_at, char *ret_rest, bool *ret_help, struct error *err) {
        static char copy[512];
        char *argv[64];
        int argc = 0;

        flag = other = json = false;
        text = NULL;
        free(list.items);
        list = (struct opt_list) { 0 };
        number = size = seconds = 0;
        *ret_help = false;
        strcpy(copy, words);
        for (char *save = NULL, *w = strtok_r(copy, " ", &save); w; w = strtok_r(NULL, " ", &save))
                argv[argc++] = w;
        const struct opt_spec spec = { opts, globals, command_at };
        int n = opts_parse(&spec, argc, argv, ret_help, err);
        ret_rest[0] = '\0';
        for (int i = 0; i < n; i++) {
                strcat(ret_rest, i ? "|" : "");
                strcat(ret_rest, argv[i]);
        }
        return n;
}

static void good(const char *words, int command_at, const char *rest) {
        struct error err = ERROR_INIT;
        char got[512];
        bool help;

        assert_true(parse(words, command_at, got, &help, &err) >= 0);
        assert_string_equal(got, rest);
}

static void bad(const char *words, const char *part) {
        struct error err = ERROR_INIT;
        char got[512];
        bool help;

        assert_true(parse(words, -1, got, &help, &err) < 0);
        if (!strstr(err.msg, part))
                fail_msg("\"%s\" does not have \"%s\"", err.msg, part);
}

static void test_forms(void **state) {
        (void) state;
        good("-f a --text x b", -1, "a|b");
        assert_true(flag && !other);
        assert_string_equal(text, "x");
        good("-fo --text=x=y", -1, "");
        assert_true(flag && other);
        assert_string_equal(text, "x=y");
        good("-fotvalue", -1, "");
        assert_string_equal(text, "value");
        good("-t -f a", -1, "a"); /* a value may look like an option */
        assert_string_equal(text, "-f");
        good("--text= a", -1, "a");
        assert_string_equal(text, "");
        good("-l a --list b -lc", -1, "");
        assert_int_equal(list.n, 3);
        assert_string_equal(list.items[2], "c");
        good("--number 7 --size 2M --seconds 5m --json", -1, "");
        assert_true(number == 7 && size == 2 << 20 && seconds == 300 && json);
        good("- a", -1, "-|a");
        good("a -- -f --text", -1, "a|-f|--text");
        assert_false(flag);
}

static void test_command(void **state) {
        (void) state;
        good("-f ls -o", 0, "ls|-o");
        assert_true(flag && !other);
        good("-f -- ls -o", 0, "ls|-o");
        good("id -f ls -o --", 1, "id|ls|-o|--");
        assert_true(flag && !other);
        good("id -- -o", 1, "id|-o");
        assert_false(other);
        good("id -- ls -- x", 1, "id|ls|--|x");
        good("ls -- x", 0, "ls|--|x");
}

static void test_help(void **state) {
        (void) state;
        struct error err = ERROR_INIT;
        char got[512];
        bool help;

        assert_int_equal(parse("a -h", -1, got, &help, &err), 1);
        assert_true(help);
        parse("a --help", -1, got, &help, &err);
        assert_true(help);
        parse("ls --help", 0, got, &help, &err);
        assert_false(help);
}

static void test_wrong(void **state) {
        (void) state;
        bad("--nope", "\"--nope\"");
        bad("--fla", "\"--fla\""); /* never abbreviated */
        bad("--nope=x", "\"--nope\"");
        bad("-x", "\"-x\"");
        bad("-fx", "\"-x\"");
        bad("--flag=1", "takes no value");
        bad("--text", "needs a value");
        bad("-t", "needs a value");
        bad("--number x", "not a number");
        bad("--number -1", "not a number");
        bad("--number 0", "outside 1 to 10");
        bad("--number 11", "outside 1 to 10");
        bad("--number 99999999999999999999999", "not a number");
        bad("--size 5X", "not a size");
        bad("--seconds 1y", "not a time");
        bad("--seconds 1.5", "not a time");
}

static void test_find(void **state) {
        (void) state;
        const struct opt_spec spec = { opts, globals, -1 };

        assert_ptr_equal(opts_find(&spec, "--text"), &opts[2]);
        assert_ptr_equal(opts_find(&spec, "--text=x"), &opts[2]);
        assert_ptr_equal(opts_find(&spec, "-t"), &opts[2]);
        assert_ptr_equal(opts_find(&spec, "--json"), &globals[0]);
        assert_null(opts_find(&spec, "--"));
        assert_null(opts_find(&spec, "-"));
        assert_null(opts_find(&spec, "text"));
}

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(test_forms), cmocka_unit_test(test_command), cmocka_unit_test(test_help),
                cmocka_unit_test(test_wrong), cmocka_unit_test(test_find),
        };
        int r = cmocka_run_group_tests(tests, NULL, NULL);
        free(list.items);
        return r;
}
