/* SPDX-License-Identifier: Apache-2.0 */

/* diff: what changed on a sandbox's disk, as a tree. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/str.h"
#include "cli.h"
#include "client.h"
#include "command.h"
#include "mem.h"
#include "output.h"
#include "text.h"

#define DIFF_TIMEOUT_MS (11 * 60 * 1000) /* beyond that of the server */
#define DEPTH_MAX 128

static bool patch;
static const char *prefix;

/* ---- printing --------------------------------------------------------------------------------- */

struct tree {
        char *last; /* path of the line before; its parts need not be printed again */
        bool colour;
};

static const struct sign {
        const char *status;
        char sign;
        const char *sgr;
} signs[] = { { "added", '+', "32" },   { "deleted", '-', "31" },    { "changed", '~', "33" },
              { "renamed", '>', "36" }, { "unreadable", '!', "35" } };

static const struct sign *sign_of(const json_t *change) {
        static const struct sign other = { "", '?', "35" };
        for (size_t i = 0; i < ARRAY_SIZE(signs); i++)
                if (str_eq(member_str(change, "status"), signs[i].status))
                        return &signs[i];
        return &other;
}

/* How many folders both paths begin with, and where in b what comes after them begins. */
static int shared(const char *a, const char *b, const char **ret_rest) {
        int n = 0;
        const char *rest = b + (*b == '/');
        for (a += *a == '/'; *a && *rest; n++) {
                size_t len = strcspn(rest, "/");
                if (strcspn(a, "/") != len || memcmp(a, rest, len) != 0 || !rest[len])
                        break;
                rest += len + 1;
                a += len + (a[len] == '/');
        }
        *ret_rest = rest;
        return n;
}

static void put_indent(int depth) {
        printf("%*s", 2 * (depth < DEPTH_MAX ? depth : DEPTH_MAX), "");
}

/* The folders above it that the line before was not in; gives the name that is left and its depth. */
static const char *put_parents(const struct tree *t, const char *path, int *ret_depth) {
        const char *rest;
        int depth = shared(t->last ? t->last : "", path, &rest);
        for (const char *slash; (slash = strchr(rest, '/')) && slash[1]; rest = slash + 1, depth++) {
                _cleanup_free_ char *name = text_safe_n(rest, (size_t) (slash - rest));
                fputs("  ", stdout);
                put_indent(depth);
                printf("%s/\n", name);
        }
        *ret_depth = depth;
        return rest;
}

static void put_sizes(const json_t *change) {
        const json_t *old = json_object_get(change, "old"), *new = json_object_get(change, "new");
        int64_t from = member_int(old, "size", 0), to = member_int(new, "size", 0);
        char a[TEXT_SIZE] = "", b[TEXT_SIZE] = "";
        if (str_eq(member_str(old, "type"), "file"))
                text_size((uint64_t) from, a);
        if (str_eq(member_str(new, "type"), "file"))
                text_size((uint64_t) to, b);
        if (a[0] && b[0] && from != to && str_eq(a, b)) /* they differ by less than is shown */
                printf("  %lld B -> %lld B", (long long) from, (long long) to);
        else if (a[0] && b[0] && from != to)
                printf("  %s -> %s", a, b);
        else if (a[0] || b[0])
                printf("  %s", b[0] ? b : a);
}

/* What kind of change it is, where the sign does not say so. */
static void put_words(const json_t *change) {
        const json_t *old = json_object_get(change, "old"), *new = json_object_get(change, "new"), *word;
        const char *status = member_str(change, "status"), *target = member_str(new ? new : old, "link_target");
        size_t i;
        if (target[0]) {
                fputs("  -> ", stdout);
                text_put(stdout, target);
        }
        if (str_eq(status, "renamed")) {
                fputs("  from ", stdout);
                text_put(stdout, member_str(change, "from"));
        }
        json_array_foreach(json_object_get(change, "what"), i, word) {
                const char *w = json_string_value(word);
                if (!w || (str_eq(w, "content") && json_array_size(json_object_get(change, "what")) == 1))
                        continue;
                if (str_eq(w, "mode"))
                        printf("  mode %04o -> %04o", (unsigned) member_int(old, "mode", 0), (unsigned) member_int(new, "mode", 0));
                else if (str_eq(w, "owner"))
                        printf("  owner %lld:%lld -> %lld:%lld", (long long) member_int(old, "uid", 0),
                               (long long) member_int(old, "gid", 0), (long long) member_int(new, "uid", 0),
                               (long long) member_int(new, "gid", 0));
                else
                        printf("  %s", w);
        }
        const char *error = member_str(change, "error");
        if (error[0])
                printf("  (%s)", error);
}

static void put_patch_line(const struct tree *t, const char *line, size_t n) {
        const char *sgr = line[0] == '+' ? "32" : line[0] == '-' ? "31" : line[0] == '@' ? "36" : NULL;
        if (t->colour && sgr)
                printf("\033[%sm", sgr);
        for (const char *end = line + n; line < end;) { /* a tab is text here */
                const char *tab = memchr(line, '\t', (size_t) (end - line));
                _cleanup_free_ char *piece = text_safe_n(line, (size_t) ((tab ? tab : end) - line));
                fputs(piece, stdout);
                if (tab)
                        putchar('\t');
                line = tab ? tab + 1 : end;
        }
        fputs(t->colour && sgr ? "\033[0m\n" : "\n", stdout);
}

static void put_patch(const struct tree *t, const json_t *change) {
        const char *text = member_str(change, "patch"), *why = member_str(change, "patch_omitted");
        for (size_t n; *text; text += n + (text[n] == '\n')) {
                n = strcspn(text, "\n");
                put_patch_line(t, text, n);
        }
        if (why[0])
                printf("(no patch: %s)\n", why);
}

static void put_change(struct tree *t, const json_t *change) {
        const struct sign *s = sign_of(change);
        const json_t *new = json_object_get(change, "new"), *is = new ? new : json_object_get(change, "old");
        const char *path = member_str(change, "path");
        int depth;
        const char *rest = put_parents(t, path, &depth);
        _cleanup_free_ char *name = text_safe(*rest ? rest : "/");
        if (t->colour)
                printf("\033[%sm%c\033[0m ", s->sgr, s->sign);
        else
                printf("%c ", s->sign);
        put_indent(depth);
        printf("%s%s", name, str_eq(member_str(is, "type"), "directory") && *rest ? "/" : "");
        put_sizes(change);
        put_words(change);
        putchar('\n');
        put_patch(t, change);
        free(t->last);
        /* What is below a folder is printed below it. */
        t->last = str_eq(member_str(is, "type"), "directory") ? mem_printf("%s/", path) : mem_dup(path);
}

/* ---- asking ------------------------------------------------------------------------------------ */

static char *target_of(char **argv, int argc, const char *cursor) {
        _cleanup_free_ char *id = client_escape(argv[0]), *from = client_escape(argc > 1 ? argv[1] : "template"),
                            *to = client_escape(argc > 2 ? argv[2] : "now"), *below = client_escape(prefix ? prefix : "/"),
                            *after = cursor ? client_escape(cursor) : NULL;
        return mem_printf("/v1/sandboxes/%s/diff?from=%s&to=%s&prefix=%s%s%s%s", id, from, to, below, patch ? "&patch=1" : "",
                          after ? "&cursor=" : "", after ? after : "");
}

static void tell_page(struct tree *t, const json_t *page, json_t *all, size_t *count) {
        const json_t *changes = json_object_get(page, "changes");
        json_t *change;
        size_t i;
        *count += json_array_size(changes);
        json_array_foreach(changes, i, change) {
                if (all)
                        (void) json_array_append(all, change);
                else
                        put_change(t, change);
        }
}

static void tell_warnings(const json_t *page) {
        const json_t *word;
        size_t i;
        json_array_foreach(json_object_get(page, "warnings"), i, word)
                cli_note("the sandbox's filesystem: %s", json_string_value(word) ? json_string_value(word) : "?");
}

static int ask(struct client *c, int argc, char **argv, struct api_error *e) {
        struct tree t = { .colour = text_colour(stdout) };
        _cleanup_json_ json_t *all = cli()->json ? json_array() : NULL, *page = NULL;
        _cleanup_free_ char *cursor = NULL;
        size_t count = 0;
        int r;
        do {
                _cleanup_free_ char *target = target_of(argv, argc, cursor);
                json_decref(page);
                page = NULL;
                r = client_call(c, "GET", target, NULL, DIFF_TIMEOUT_MS, &page, e);
                if (r < 0)
                        break;
                tell_page(&t, page, all, &count);
                free(cursor);
                const char *next = member_str(page, "next_cursor");
                cursor = *next ? mem_dup(next) : NULL;
        } while (cursor);
        free(t.last);
        if (r < 0)
                return r;
        if (all) {
                (void) json_object_set(page, "changes", all);
                (void) json_object_del(page, "next_cursor");
                output_json(page);
        } else if (count == 0) {
                cli_note("nothing changed");
        }
        tell_warnings(page);
        return 0;
}

static int run(struct client *c, int argc, char **argv) {
        struct api_error e;
        if (prefix && prefix[0] != '/')
                return cli_usage("--prefix takes an absolute path, not \"%s\"", prefix);
        return ask(c, argc, argv, &e) < 0 ? api_error_print(&e) : CLI_OK;
}

static const struct opt opts[] = {
        { "patch", 'p', OPT_FLAG, &patch, NULL, "Show how text files changed.", COMPLETE_NONE, 0, 0 },
        { "prefix", 0, OPT_STRING, &prefix, "PATH", "Only this path and what is below it.", COMPLETE_NONE, 0, 0 },
        OPT_END,
};

const struct command command_diff = {
        .name = "diff",
        .synopsis = "[OPTION...] SANDBOX [FROM [TO]]",
        .summary = "Show which files of a sandbox changed.",
        .details = "FROM and TO are checkpoints, \"template\" (what it was created with, and the default for FROM) or\n"
                   "\"now\" (the default for TO). Read on the host from the disks, in every state of the sandbox.\n\n"
                   "+ added, - deleted, ~ changed, > renamed, ! cannot be read.\n\n"
                   "  cspace diff SANDBOX\n"
                   "  cspace diff --patch --prefix /etc SANDBOX before-upgrade",
        .opts = opts,
        .min_args = 1,
        .max_args = 3,
        .command_at = -1,
        .args = { COMPLETE_SANDBOX, COMPLETE_MOMENT, COMPLETE_MOMENT },
        .with = run,
};
