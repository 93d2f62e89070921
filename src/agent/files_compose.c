/* SPDX-License-Identifier: Apache-2.0 */

/* E2B's POST /files/compose: several files become one, and are gone afterwards. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "api.h"
#include "base/fd.h"
#include "base/str.h"
#include "files_http.h"
#include "fsop.h"
#include "path.h"
#include "work.h"

#define COMPOSE_MAX 1024

struct compose {
        struct agent *a;
        struct http_x *x;
        struct user user;
        char (*sources)[PATH_MAX];
        size_t n;
        char dest[PATH_MAX], tmp[PATH_MAX];
        int r;
        struct error err;
};

static int append_file(const char *path, int out, struct error *err) {
        _cleanup_fd_ int in = -EBADF;
        struct stat st;
        int r = fsop_open_read(path, &in, &st, err);
        if (r == 0 && fsop_copy_bytes(in, out, err) < 0)
                r = error_wrap(err, "cannot append '%s'", path);
        return r;
}

/* Beside the destination first: it may be one of the sources, and is whole or not there. */
static int compose_run(struct compose *c) {
        bool created;
        _cleanup_fd_ int out = -EBADF;
        struct stat st;
        int r = 0;
        if (stat(c->dest, &st) == 0 && S_ISDIR(st.st_mode))
                return error_set(&c->err, -EISDIR, "path is a directory: %s", c->dest);
        r = fsop_make_parents(c->dest, &c->user, &c->err);
        if (r == 0)
                r = fsop_open_write(c->tmp, 0644, &c->user, &out, &created, &c->err);
        for (size_t i = 0; r == 0 && i < c->n; i++)
                r = append_file(c->sources[i], out, &c->err);
        if (r == 0 && rename(c->tmp, c->dest) < 0)
                r = error_errno(&c->err, errno, "cannot write '%s'", c->dest);
        if (r < 0) {
                (void) unlink(c->tmp);
                return r;
        }
        for (size_t i = 0; i < c->n; i++)
                if (!str_eq(c->sources[i], c->dest))
                        (void) unlink(c->sources[i]);
        return 0;
}

static void compose_thread(void *arg) {
        struct compose *c = arg;
        c->r = compose_run(c);
}

static void compose_free(struct compose *c) {
        free(c->sources);
        free(c);
}

static void compose_done(void *arg) {
        static const struct http_x_ops none = { 0 };
        struct compose *c = arg;
        const char *code;
        if (c->x) {
                http_x_set_ops(c->x, &none, NULL);
                if (c->r == -ENOENT)
                        api_fail_e2b(c->x, 404, "%s", c->err.msg);
                else if (c->r < 0)
                        api_fail_e2b(c->x, api_status_of_errno(c->r, &code), "%s", c->err.msg);
                else
                        api_json(c->x, 200, json_pack("{s:s,s:s,s:s}", "name", path_base(c->dest), "path", c->dest, "type",
                                                      "file"));
        }
        compose_free(c);
}

static void compose_gone(void *arg) {
        struct compose *c = arg;
        c->x = NULL;
}

static int compose_read(struct compose *c, const json_t *req, struct error *err) {
        json_t *sources = NULL;
        const char *dest = NULL, *user = NULL, *wd = c->a->identity.default_workdir;
        int r = json_read_array(req, "source_paths", true, COMPOSE_MAX, &sources, err);
        if (r == 0)
                r = json_read_str(req, "destination", true, LIMIT_PATH - 1, &dest, err);
        if (r == 0)
                r = json_read_str(req, "username", false, USER_NAME_MAX - 1, &user, err);
        if (r == 0 && (json_array_size(sources) == 0 || !*dest))
                r = error_set(err, -EINVAL, "source_paths and destination must not be empty");
        if (r == 0)
                r = identity_user(&c->a->identity, user, &c->user, err);
        if (r < 0)
                return r;
        c->sources = calloc(json_array_size(sources), sizeof *c->sources);
        if (!c->sources)
                return error_set(err, -ENOMEM, "out of memory");
        for (; r == 0 && c->n < json_array_size(sources); c->n++) {
                const char *s = json_string_value(json_array_get(sources, c->n));
                r = s && *s ? path_resolve(s, c->user.home, wd, c->sources[c->n], err)
                            : error_set(err, -EINVAL, "source_paths must be an array of paths");
        }
        if (r == 0)
                r = path_resolve(dest, c->user.home, wd, c->dest, err);
        if (r == 0 && snprintf(c->tmp, sizeof c->tmp, "%s.compose-%p", c->dest, (void *) c) >= PATH_MAX)
                r = error_set(err, -ENAMETOOLONG, "the path is too long");
        return r;
}

static void compose_body(void *arg, struct http_x *x, struct buf *body) {
        static const struct http_x_ops ops = { .on_abort = compose_gone, .on_done = compose_gone };
        struct agent *a = arg;
        struct error e = ERROR_INIT;
        _cleanup_json_ json_t *req = NULL;
        struct compose *c = calloc(1, sizeof *c);
        if (!c) {
                api_fail_e2b(x, 500, "out of memory");
                return;
        }
        c->a = a;
        c->x = x;
        int r = json_parse(buf_data(body), body->len, LIMIT_JSON_BODY, &req, &e);
        if (r == 0)
                r = compose_read(c, req, &e);
        if (r < 0) {
                api_fail_e2b(x, r == -ENOENT ? 401 : r == -ENOMEM ? 500 : 400, "%s", e.msg);
                compose_free(c);
                return;
        }
        http_x_set_ops(x, &ops, c);
        if (work_start(a->loop, NULL, compose_thread, compose_done, c) < 0) {
                c->r = error_set(&c->err, -ENOMEM, "out of memory");
                compose_done(c);
        }
}

void files_compose_http(struct agent *a, struct http_x *x) {
        if (!str_eq(http_x_head(x)->method, "POST"))
                api_fail_e2b(x, 405, "%s is not allowed here", http_x_head(x)->method);
        else
                (void) api_collect(x, LIMIT_JSON_BODY, compose_body, NULL, a);
}
