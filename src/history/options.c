/* SPDX-License-Identifier: Apache-2.0 */
#include "options.h"

#include <errno.h>
#include <stddef.h>
#include <string.h>

#include "base/str.h"
#include "bounds.h"

static int take_path(const char *v, const char **ret, struct error *err) {
        if (v[0] != '/' || strlen(v) >= LIMIT_PATH)
                return error_set(err, -EINVAL, "a path must be absolute and shorter than %d bytes", LIMIT_PATH);
        *ret = v;
        return 0;
}

static int take_number(const char *name, const char *v, uint64_t max, uint64_t *ret, struct error *err) {
        uint64_t n = 0;

        if (str_to_u64(v, max, &n) < 0 || n == 0)
                return error_set(err, -EINVAL, "%s must be a number from 1 to %llu", name, (unsigned long long) max);
        *ret = n;
        return 0;
}

/* "/a//b/" is /a/b. A prefix is compared with paths, so "." and ".." have no meaning in it. */
static int take_prefix(struct options *o, const char *v, struct error *err) {
        size_t n = 0;

        int r = take_path(v, &v, err);
        for (const char *p = v; r == 0 && *p;) {
                p += strspn(p, "/");
                size_t part = strcspn(p, "/");
                if ((part == 1 && p[0] == '.') || (part == 2 && p[0] == '.' && p[1] == '.'))
                        return error_set(err, -EINVAL, "--prefix must be a path without \".\" and \"..\"");
                if (part > 0) {
                        o->prefix_buf[n++] = '/';
                        memcpy(o->prefix_buf + n, p, part);
                        n += part;
                }
                p += part;
        }
        o->prefix_buf[n] = '\0';
        if (r == 0)
                o->prefix = n ? o->prefix_buf : "/";
        return r;
}

static int take_cursor(struct options *o, const char *v, struct error *err) {
        uint8_t bytes[LIMIT_PATH + 16];
        size_t n = strlen(v);

        if (n == 0 || n > LIMIT_PATH / 3 * 4 + 4)
                return error_set(err, -EINVAL, "--cursor is not from an answer");
        ssize_t got = base64_decode(v, n, bytes);
        if (got <= 0 || got >= LIMIT_PATH || bytes[0] != '/' || memchr(bytes, '\0', (size_t) got))
                return error_set(err, -EINVAL, "--cursor is not from an answer");
        memcpy(o->cursor, bytes, (size_t) got);
        o->cursor[got] = '\0';
        return 0;
}

static const struct {
        const char *name;
        enum verb verb;
} verbs[] = { { "diff", VERB_DIFF }, { "cat", VERB_CAT }, { "extract", VERB_EXTRACT } };

/* -ENOENT: no option of this verb. */
static int take_value(struct options *o, const char *name, const char *v, struct error *err) {
        if (o->verb == VERB_DIFF) {
                if (str_eq(name, "--prefix"))
                        return take_prefix(o, v, err);
                if (str_eq(name, "--limit"))
                        return take_number(name, v, HISTORY_LIMIT_MAX, &o->limit, err);
                if (str_eq(name, "--cursor"))
                        return take_cursor(o, v, err);
                return -ENOENT;
        }
        if (str_eq(name, "--path"))
                return take_path(v, &o->path, err);
        if (str_eq(name, "--max-bytes"))
                return take_number(name, v, HISTORY_BYTES_MAX, &o->max_bytes, err);
        return -ENOENT;
}

int options_parse(int argc, char **argv, struct options *ret, struct error *err) {
        struct options *o = ret;
        size_t verb = 0;

        *o = (struct options){ .prefix = "/", .limit = HISTORY_LIMIT_DEFAULT, .max_bytes = HISTORY_BYTES_DEFAULT };
        while (verb < sizeof verbs / sizeof verbs[0] && !(argc > 1 && str_eq(argv[1], verbs[verb].name)))
                verb++;
        if (verb == sizeof verbs / sizeof verbs[0])
                return error_set(err, -EINVAL, "usage: cspace-history diff|cat|extract [OPTION...]");
        o->verb = verbs[verb].verb;
        for (int i = 2; i < argc; i++) {
                if (o->verb == VERB_DIFF && str_eq(argv[i], "--patch")) {
                        o->patch = true;
                        continue;
                }
                if (o->verb == VERB_EXTRACT && str_eq(argv[i], "--no-follow")) {
                        o->no_follow = true;
                        continue;
                }
                if (i + 1 >= argc)
                        return error_set(err, -EINVAL, "option \"%s\" is not known or lacks its value", argv[i]);
                int r = take_value(o, argv[i], argv[i + 1], err);
                if (r == -ENOENT)
                        return error_set(err, -EINVAL, "%s has no option \"%s\"", verbs[verb].name, argv[i]);
                if (r < 0)
                        return r;
                i++;
        }
        if (o->verb != VERB_DIFF && !o->path)
                return error_set(err, -EINVAL, "%s needs --path", verbs[verb].name);
        return 0;
}
