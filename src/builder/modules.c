/* SPDX-License-Identifier: Apache-2.0 */
#include "modules.h"

#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/str.h"

enum module_state {
        MODULE_NEW,
        MODULE_OPEN, /* its dependencies are being added: meeting it again is a circle */
        MODULE_DONE, /* in the order */
};

struct module {
        const char *path;
        char *deps; /* blank-separated paths */
        enum module_state state;
};

/* Compares the file name of path, without ".ko" and a compression's suffix, with a module's name. */
static bool has_name(const char *path, size_t n, const char *name) {
        const char *base = memrchr(path, '/', n);

        base = base ? base + 1 : path;
        size_t len = (size_t) (path + n - base), i = 0;
        for (; i < len && name[i]; i++) {
                char a = base[i] == '-' ? '_' : base[i], b = name[i] == '-' ? '_' : name[i];
                if (a != b)
                        return false;
        }
        return !name[i] && len - i >= 3 && memcmp(base + i, ".ko", 3) == 0;
}

static size_t count_lines(const char *text) {
        size_t n = 0;

        for (; *text; text++)
                n += *text == '\n';
        return n + 1;
}

int modules_init(struct modules *m, const char *dep, const char *builtin, struct error *err) {
        size_t lines = count_lines(dep);

        *m = (struct modules){ 0 };
        if (lines > MODULES_MAX)
                return error_set(err, -E2BIG, "modules.dep has more than %d lines", MODULES_MAX);
        m->text = strdup(dep);
        m->builtin = strdup(builtin);
        m->list = calloc(lines, sizeof *m->list);
        m->order = calloc(lines, sizeof *m->order);
        if (!m->text || !m->builtin || !m->list || !m->order) {
                modules_done(m);
                return error_set(err, -ENOMEM, "out of memory");
        }
        for (char *save = NULL, *line = strtok_r(m->text, "\n", &save); line; line = strtok_r(NULL, "\n", &save)) {
                char *colon = strchr(line, ':');
                if (!colon)
                        continue;
                *colon = '\0';
                m->list[m->n].path = line;
                m->list[m->n++].deps = colon + 1;
        }
        return 0;
}

void modules_done(struct modules *m) {
        free(m->text);
        free(m->builtin);
        free(m->list);
        free((void *) m->order);
        *m = (struct modules){ 0 };
}

static struct module *by_path(const struct modules *m, const char *path, size_t n) {
        for (size_t i = 0; i < m->n; i++)
                if (strlen(m->list[i].path) == n && memcmp(m->list[i].path, path, n) == 0)
                        return &m->list[i];
        return NULL;
}

static struct module *by_name(const struct modules *m, const char *name) {
        for (size_t i = 0; i < m->n; i++)
                if (has_name(m->list[i].path, strlen(m->list[i].path), name))
                        return &m->list[i];
        return NULL;
}

static bool is_builtin(const struct modules *m, const char *name) {
        for (const char *p = m->builtin; *p;) {
                size_t n = strcspn(p, "\n");
                if (has_name(p, n, name))
                        return true;
                p += n + (p[n] == '\n');
        }
        return false;
}

/* Recursion is bounded by MODULES_DEPTH. */
static int add(struct modules *m, struct module *mod, unsigned depth, struct error *err) {
        if (mod->state == MODULE_DONE)
                return 0;
        if (mod->state == MODULE_OPEN || depth > MODULES_DEPTH)
                return error_set(err, -ELOOP, "kernel module %s depends on itself", mod->path);
        mod->state = MODULE_OPEN;
        /* depmod lists what must be loaded first last. */
        for (size_t end = strlen(mod->deps); end > 0;) {
                while (end > 0 && mod->deps[end - 1] == ' ')
                        end--;
                size_t start = end;
                while (start > 0 && mod->deps[start - 1] != ' ')
                        start--;
                if (start == end)
                        break;
                struct module *dep = by_path(m, mod->deps + start, end - start);
                if (!dep)
                        return error_set(err, -ENOENT, "kernel module %s depends on %.*s, which does not exist", mod->path,
                                         (int) (end - start), mod->deps + start);
                int r = add(m, dep, depth + 1, err);
                if (r < 0)
                        return r;
                end = start;
        }
        mod->state = MODULE_DONE;
        m->order[m->n_order++] = mod->path;
        return 0;
}

int modules_want(struct modules *m, const char *name, struct error *err) {
        struct module *mod = by_name(m, name);

        if (mod)
                return add(m, mod, 0, err);
        if (is_builtin(m, name))
                return 0;
        return error_set(err, -ENOENT, "the kernel has no module \"%s\"", name);
}

int modules_want_folder(struct modules *m, const char *prefix, struct error *err) {
        for (size_t i = 0; i < m->n; i++) {
                if (!str_has_prefix(m->list[i].path, prefix))
                        continue;
                int r = add(m, &m->list[i], 0, err);
                if (r < 0)
                        return r;
        }
        return 0;
}
