/* SPDX-License-Identifier: Apache-2.0 */
#include "opts.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/str.h"
#include "mem.h"


void opt_list_add(struct opt_list *l, const char *item) {
        l->items = mem_grow(l->items, l->n + 1, sizeof *l->items);
        l->items[l->n++] = item;
}

static const struct opt *find_name(const struct opt *o, const char *name, size_t n) {
        for (; o && o->name; o++)
                if (strlen(o->name) == n && memcmp(o->name, name, n) == 0)
                        return o;
        return NULL;
}

static const struct opt *find_letter(const struct opt *o, char letter) {
        for (; o && o->name; o++)
                if (o->letter == letter)
                        return o;
        return NULL;
}

static const struct opt *by_name(const struct opt_spec *spec, const char *name, size_t n) {
        const struct opt *o = find_name(spec->opts, name, n);

        return o ? o : find_name(spec->globals, name, n);
}

static const struct opt *by_letter(const struct opt_spec *spec, char letter) {
        const struct opt *o = find_letter(spec->opts, letter);

        return o ? o : find_letter(spec->globals, letter);
}

const struct opt *opts_find(const struct opt_spec *spec, const char *word) {
        if (str_has_prefix(word, "--"))
                return by_name(spec, word + 2, strcspn(word + 2, "="));
        return word[0] == '-' && word[1] && !word[2] ? by_letter(spec, word[1]) : NULL;
}

static const char *limit_text(const struct opt *o, uint64_t v, char out[STR_UNIT_SIZE]) {
        if (o->kind == OPT_SIZE)
                return str_from_size(v, out);
        if (o->kind == OPT_SECONDS)
                return str_from_seconds(v, out);
        (void) snprintf(out, STR_UNIT_SIZE, "%llu", (unsigned long long) v);
        return out;
}

static int in_range(const struct opt *o, const char *text, uint64_t v, struct error *err) {
        char low[STR_UNIT_SIZE], high[STR_UNIT_SIZE];

        if (o->max && (v < o->min || v > o->max))
                return error_set(err, -ERANGE, "--%s \"%s\" is outside %s to %s", o->name, text, limit_text(o, o->min, low),
                                 limit_text(o, o->max, high));
        if (v < o->min)
                return error_set(err, -ERANGE, "--%s \"%s\" is less than %s", o->name, text, limit_text(o, o->min, low));
        *(uint64_t *) o->to = v;
        return 0;
}

static int set_value(const struct opt *o, const char *v, struct error *err) {
        uint64_t n = 0;

        switch (o->kind) {
        case OPT_FLAG:
        case OPT_HELP:
                return error_set(err, -EINVAL, "--%s takes no value", o->name);
        case OPT_STRING:
                *(const char **) o->to = v;
                return 0;
        case OPT_LIST:
                opt_list_add(o->to, v);
                return 0;
        case OPT_UINT:
                if (str_to_u64(v, UINT64_MAX, &n) < 0)
                        return error_set(err, -EINVAL, "--%s \"%s\" is not a number", o->name, v);
                return in_range(o, v, n, err);
        case OPT_SIZE:
                if (str_to_size(v, &n) < 0)
                        return error_set(err, -EINVAL, "--%s \"%s\" is not a size; write it as 512M or 2G",
                                         o->name, v);
                return in_range(o, v, n, err);
        case OPT_SECONDS:
                if (str_to_seconds(v, &n) < 0)
                        return error_set(err, -EINVAL, "--%s \"%s\" is not a time; write it as 30s, 5m or 2h",
                                         o->name, v);
                return in_range(o, v, n, err);
        }
        return error_set(err, -EINVAL, "--%s has no kind", o->name);
}

struct cursor {
        int argc, i;
        char **argv;
        bool *help;
};

static int set_flag(const struct opt *o, struct cursor *c) {
        if (o->kind == OPT_HELP)
                *c->help = true;
        else
                *(bool *) o->to = true;
        return 0;
}

static int next_value(const struct opt *o, struct cursor *c, struct error *err) {
        if (c->i + 1 >= c->argc)
                return error_set(err, -EINVAL, "--%s needs a value: --%s %s", o->name, o->name, o->arg);
        return set_value(o, c->argv[++c->i], err);
}

static int parse_long(const struct opt_spec *spec, struct cursor *c, struct error *err) {
        const char *word = c->argv[c->i] + 2;
        size_t n = strcspn(word, "=");
        const struct opt *o = by_name(spec, word, n);

        if (!o)
                return error_set(err, -EINVAL, "unknown option \"--%.*s\"", (int) n, word);
        if (word[n] == '=')
                return set_value(o, word + n + 1, err);
        return opt_takes_value(o) ? next_value(o, c, err) : set_flag(o, c);
}

static int parse_short(const struct opt_spec *spec, struct cursor *c, struct error *err) {
        for (const char *p = c->argv[c->i] + 1; *p; p++) {
                const struct opt *o = by_letter(spec, *p);

                if (!o)
                        return error_set(err, -EINVAL, "unknown option \"-%c\"", *p);
                if (opt_takes_value(o))
                        return p[1] ? set_value(o, p + 1, err) : next_value(o, c, err);
                set_flag(o, c);
        }
        return 0;
}

int opts_parse(const struct opt_spec *spec, int argc, char **argv, bool *ret_help, struct error *err) {
        struct cursor c = { .argc = argc, .argv = argv, .help = ret_help };
        bool options = true;
        int operands = 0;

        for (; c.i < argc; c.i++) {
                char *word = argv[c.i];
                int r = 0;

                if (options && str_eq(word, "--")) {
                        options = false;
                        continue;
                }
                if (!options || word[0] != '-' || word[1] == '\0') {
                        argv[operands++] = word;
                        if (spec->command_at >= 0 && operands > spec->command_at)
                                options = false;
                        continue;
                }
                r = word[1] == '-' ? parse_long(spec, &c, err) : parse_short(spec, &c, err);
                if (r < 0)
                        return r;
        }
        return operands;
}
