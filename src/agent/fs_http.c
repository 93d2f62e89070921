/* SPDX-License-Identifier: Apache-2.0 */

/*
 * The native file API. Unlike E2B's it acts with the rights of the user it is done for: the thread
 * takes on that user's ids, so permissions, ownership and quotas are the kernel's business.
 */
#include "fs_http.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "api.h"
#include "base/fd.h"
#include "base/str.h"
#include "download.h"
#include "entry.h"
#include "file_source.h"
#include "fsop.h"
#include "path.h"
#include "tar_pack.h"
#include "tar_unpack.h"
#include "upload.h"
#include "work.h"

#define LIST_BYTES_MAX (64u * 1024 * 1024)
#define LIST_DEPTH_MAX 1024
#define BODY_MAX (64 * 1024)

/* --- who and where -------------------------------------------------------------------------- */

static bool resolve(struct agent *a, struct http_x *x, const char *path, const char *user, struct user *ret_user,
                    char ret_path[PATH_MAX]) {
        struct error e = ERROR_INIT;
        if (!path)
                api_fail(x, 400, "invalid_argument", "\"path\" is missing");
        else if (identity_user(&a->identity, user, ret_user, &e) < 0)
                api_fail(x, 400, "user_not_found", "%s", e.msg);
        else if (path_resolve_in(path, ret_user->home, a->identity.default_workdir, ret_path, &e) < 0)
                api_fail(x, 400, "invalid_argument", "%s", e.msg);
        else
                return true;
        return false;
}

static bool resolve_query(struct agent *a, struct http_x *x, struct user *ret_user, char ret_path[PATH_MAX]) {
        _cleanup_free_ char *path = NULL, *user = NULL;
        if (api_query(x, "path", &path) < 0 || api_query(x, "user", &user) < 0) {
                api_fail(x, 400, "invalid_argument", "the query is not valid");
                return false;
        }
        return resolve(a, x, path, user, ret_user, ret_path);
}

static bool query_flag(struct http_x *x, const char *key) {
        _cleanup_free_ char *v = NULL;
        return api_query(x, key, &v) == 1 && str_eq(v, "1");
}

/* --- operations that answer with JSON -------------------------------------------------------- */

struct fs_op {
        struct http_x *x; /* NULL: the client is gone */
        int (*run)(struct fs_op *op);
        char path[PATH_MAX], to[PATH_MAX];
        unsigned depth;
        int r;
        struct error err;
        struct buf out; /* empty: 204 */
};

static int op_entry(struct fs_op *op, const char *path) {
        struct entry *e = malloc(sizeof *e);
        struct user_names *names = user_names_load();
        int r = e && names ? entry_read(path, e, &op->err) : error_set(&op->err, -ENOMEM, "out of memory");
        if (r == 0 && entry_json(e, true, names, &op->out) < 0)
                r = error_set(&op->err, -ENOMEM, "out of memory");
        user_names_free(names);
        free(e);
        return r;
}

static int op_stat(struct fs_op *op) {
        return op_entry(op, op->path);
}

static int op_list(struct fs_op *op) {
        int r = buf_puts(&op->out, "{\"entries\":");
        if (r == 0)
                r = fsop_list(op->path, op->depth, false, &op->out, &op->err);
        if (r == 0)
                r = buf_puts(&op->out, "}");
        return r < 0 && op->err.code == 0 ? error_set(&op->err, r, "the listing is too large") : r;
}

static int op_delete(struct fs_op *op) {
        struct stat st;
        if (lstat(op->path, &st) < 0)
                return error_errno(&op->err, errno, "path '%s'", op->path);
        return fsop_remove(op->path, &op->err);
}

static int op_mkdir(struct fs_op *op) {
        int r = fsop_mkdirs(op->path, NULL, &op->err);
        return r < 0 ? r : op_entry(op, op->path);
}

static int op_move(struct fs_op *op) {
        int r = fsop_move(op->path, op->to, &op->err);
        return r < 0 ? r : op_entry(op, op->to);
}

static void op_thread(void *arg) {
        struct fs_op *op = arg;
        op->r = op->run(op);
}

static void op_done(void *arg) {
        static const struct http_x_ops none = { 0 };
        struct fs_op *op = arg;
        if (op->x) {
                http_x_set_ops(op->x, &none, NULL);
                if (op->r < 0)
                        api_fail_errno(op->x, &op->err);
                else if (op->out.len == 0)
                        api_empty(op->x, 204);
                else
                        api_respond(op->x, 200, "application/json", buf_data(&op->out), op->out.len);
        }
        buf_done(&op->out);
        free(op);
}

static void op_gone(void *arg) {
        struct fs_op *op = arg;
        op->x = NULL;
}

static void op_start(struct agent *a, struct http_x *x, const struct user *u, struct fs_op *op) {
        static const struct http_x_ops ops = { .on_abort = op_gone, .on_done = op_gone };
        op->x = x;
        op->out = BUF_INIT(LIST_BYTES_MAX);
        http_x_set_ops(x, &ops, op);
        if (work_start(a->loop, u, op_thread, op_done, op) < 0) {
                op->r = error_set(&op->err, -ENOMEM, "out of memory");
                op_done(op);
        }
}

static void query_op(struct agent *a, struct http_x *x, int (*run)(struct fs_op *op)) {
        struct user u;
        struct fs_op *op = calloc(1, sizeof *op);
        if (!op) {
                api_fail(x, 500, "internal", "out of memory");
                return;
        }
        _cleanup_free_ char *depth = NULL;
        uint64_t n = 1;
        op->run = run;
        if (!resolve_query(a, x, &u, op->path))
                free(op);
        else if (api_query(x, "depth", &depth) == 1 && (str_to_u64(depth, LIST_DEPTH_MAX, &n) < 0 || n == 0)) {
                free(op);
                api_fail(x, 400, "invalid_argument", "\"depth\" must be 1 to %d", LIST_DEPTH_MAX);
        } else {
                op->depth = (unsigned) n;
                op_start(a, x, &u, op);
        }
}

/* {"path","user"?} or {"source","destination","user"?}; path and user may be in the query instead. */
static void body_op(struct agent *a, struct http_x *x, struct buf *body, bool move) {
        struct error e = ERROR_INIT;
        _cleanup_json_ json_t *req = NULL;
        _cleanup_free_ char *q_path = NULL, *q_user = NULL;
        const char *path = NULL, *to = NULL, *user = NULL;
        if (api_query(x, "path", &q_path) < 0 || api_query(x, "user", &q_user) < 0) {
                api_fail(x, 400, "invalid_argument", "the query is not valid");
                return;
        }
        path = q_path;
        user = q_user;
        int r = body->len > 0 ? json_parse(buf_data(body), body->len, BODY_MAX, &req, &e) : 0;
        if (r == 0 && req)
                r = json_read_str(req, move ? "source" : "path", false, LIMIT_PATH - 1, &path, &e);
        if (r == 0 && req)
                r = json_read_str(req, "destination", false, LIMIT_PATH - 1, &to, &e);
        if (r == 0 && req)
                r = json_read_str(req, "user", false, USER_NAME_MAX - 1, &user, &e);
        if (r == 0 && move && (!path || !to))
                r = error_set(&e, -EINVAL, "\"source\" and \"destination\" are needed");
        if (r < 0) {
                api_fail(x, 400, "invalid_argument", "%s", e.msg);
                return;
        }
        struct user u;
        struct fs_op *op = calloc(1, sizeof *op);
        if (!op) {
                api_fail(x, 500, "internal", "out of memory");
                return;
        }
        op->run = move ? op_move : op_mkdir;
        if (!resolve(a, x, path, user, &u, op->path) || (move && !resolve(a, x, to, user, &u, op->to)))
                free(op);
        else
                op_start(a, x, &u, op);
}

static void mkdir_body(void *arg, struct http_x *x, struct buf *body) {
        body_op(arg, x, body, false);
}

static void move_body(void *arg, struct http_x *x, struct buf *body) {
        body_op(arg, x, body, true);
}

/* --- PUT ------------------------------------------------------------------------------------ */

struct fs_put {
        char path[PATH_MAX];
        bool has_mode;
        struct tar_unpack_how how;
        char *as; /* how.as */
        mode_t mode;
        int fd;
        bool created;
        uint64_t bytes;
        struct tar_unpack *unpack;
        struct tar_unpack_result result;
};

static int file_open(struct fs_put *p, struct error *err) {
        if (p->fd >= 0)
                return 0;
        int r = fsop_make_parents(p->path, NULL, err);
        return r < 0 ? r : fsop_open_write(p->path, p->has_mode ? p->mode : 0644, NULL, &p->fd, &p->created, err);
}

static int file_consume(void *ctx, const uint8_t *data, size_t n, struct error *err) {
        struct fs_put *p = ctx;
        int r = file_open(p, err);
        if (r == 0 && fd_write_all(p->fd, data, n, err) < 0)
                r = error_wrap(err, "cannot write '%s'", p->path);
        p->bytes += n;
        return r;
}

static int file_finish(void *ctx, struct error *err) {
        struct fs_put *p = ctx;
        int r = file_open(p, err);
        if (r == 0 && p->has_mode && fchmod(p->fd, p->mode) < 0)
                r = error_errno(err, errno, "cannot set the mode of '%s'", p->path);
        if (r == 0 && close(fd_steal(&p->fd)) < 0)
                r = error_errno(err, errno, "cannot write '%s'", p->path);
        return r;
}

static void file_discard(void *ctx) {
        struct fs_put *p = ctx;
        if (p->fd >= 0 && p->created)
                (void) unlink(p->path);
        p->fd = fd_close(p->fd);
}

static void file_answer(void *ctx, struct http_x *x, int r, const struct error *e) {
        struct fs_put *p = ctx;
        if (r < 0)
                api_fail_errno(x, e);
        else
                api_json(x, p->created ? 201 : 200, json_pack("{s:s,s:I}", "path", p->path, "bytes", (json_int_t) p->bytes));
}

/* A file in the place of a folder that comes back gives way, as those in it do. */
static void clear_folder_way(const struct fs_put *p) {
        struct stat st;
        if (p->how.owner && !p->how.as && lstat(p->path, &st) == 0 && S_ISREG(st.st_mode))
                (void) unlink(p->path); /* else the folder is not made, and the error says so */
}

static int tar_begin(struct fs_put *p, struct error *err) {
        if (!p->unpack)
                clear_folder_way(p);
        int r = p->unpack ? 0 : fsop_mkdirs(p->path, NULL, err);
        return r == 0 && !p->unpack ? tar_unpack_open(p->path, &p->how, &p->unpack, err) : r;
}

static int tar_consume(void *ctx, const uint8_t *data, size_t n, struct error *err) {
        struct fs_put *p = ctx;
        int r = tar_begin(p, err);
        return r < 0 ? r : tar_unpack_write(p->unpack, data, n, err);
}

static int tar_finish(void *ctx, struct error *err) {
        struct fs_put *p = ctx;
        int r = tar_begin(p, err);
        return r < 0 ? r : tar_unpack_finish(p->unpack, &p->result, err);
}

static void tar_discard(void *ctx) {
        struct fs_put *p = ctx;
        tar_unpack_free(p->unpack);
        p->unpack = NULL;
}

/* A name is bytes; one that is no text is told as far as it is. */
static json_t *name_json(const char *name) {
        json_t *j = json_string(name);
        if (j)
                return j;
        char text[PATH_MAX];
        size_t n = 0;
        for (; n < sizeof text - 1 && name[n]; n++)
                text[n] = (signed char) name[n] < 0 ? '?' : name[n];
        text[n] = '\0';
        return json_string(text);
}

static void tar_answer(void *ctx, struct http_x *x, int r, const struct error *e) {
        struct fs_put *p = ctx;
        size_t n = 0;
        if (r < 0) {
                api_fail_errno(x, e);
                return;
        }
        json_t *kept = json_array();
        const char *const *paths = tar_unpack_kept(p->unpack, &n);
        for (size_t i = 0; i < n; i++)
                (void) json_array_append_new(kept, name_json(paths[i]));
        api_json(x, 200, json_pack("{s:I,s:I,s:I,s:I,s:o,s:b,s:I}", "entries", (json_int_t) p->result.entries, "bytes",
                                   (json_int_t) p->result.bytes, "skipped", (json_int_t) p->result.skipped, "kept",
                                   (json_int_t) p->result.kept, "kept_paths", kept, "owner", p->how.owner, "xattrs_lost",
                                   (json_int_t) p->result.xattrs_lost));
}

static void put_release(void *ctx) {
        struct fs_put *p = ctx;
        fd_close(p->fd);
        tar_unpack_free(p->unpack);
        free(p->as);
        free(p);
}

static int parse_mode(const char *text, mode_t *ret) {
        char *end;
        unsigned long v = strtoul(text, &end, 8);
        if (!*text || *end || text[0] == '-' || v > 07777)
                return -EINVAL;
        *ret = (mode_t) v;
        return 0;
}

static bool is_name(const char *s) {
        return s[0] && !strchr(s, '/') && !str_eq(s, ".") && !str_eq(s, "..") && strlen(s) <= NAME_MAX;
}

static void put(struct agent *a, struct http_x *x) {
        static const struct upload_ops file_ops = {
                .consume = file_consume, .finish = file_finish, .discard = file_discard, .answer = file_answer,
                .release = put_release
        };
        static const struct upload_ops tar_ops = {
                .consume = tar_consume, .finish = tar_finish, .discard = tar_discard, .answer = tar_answer,
                .release = put_release
        };
        _cleanup_free_ char *mode = NULL, *as = NULL;
        const char *coding = http1_get(http_x_head(x), "Content-Encoding");
        struct user u;
        struct fs_put *p = calloc(1, sizeof *p);
        if (!p) {
                api_fail(x, 500, "internal", "out of memory");
                return;
        }
        p->fd = -EBADF;
        bool gzip = coding && str_case_eq_n(coding, strlen(coding), "gzip");
        if (!resolve_query(a, x, &u, p->path))
                free(p);
        else if (coding && !gzip && !str_case_eq_n(coding, strlen(coding), "identity")) {
                free(p);
                api_fail(x, 415, "not_supported", "Content-Encoding must be gzip or absent");
        } else if (api_query(x, "mode", &mode) == 1 && parse_mode(mode, &p->mode) < 0) {
                free(p);
                api_fail(x, 400, "invalid_argument", "\"mode\" must be octal permissions");
        } else if (api_query(x, "as", &as) == 1 && !is_name(as)) {
                free(p);
                api_fail(x, 400, "invalid_argument", "\"as\" must be a name in the folder");
        } else {
                p->has_mode = mode != NULL;
                p->as = STEAL(as);
                p->how = (struct tar_unpack_how){ .set_id = u.uid == 0, .owner = query_flag(x, "owner"), .as = p->as };
                upload_start(a, x, &u, gzip, query_flag(x, "tar") ? &tar_ops : &file_ops, p);
        }
}

/* --- GET ?tar=1 ----------------------------------------------------------------------------- */

struct fs_tar {
        struct agent *a;
        struct http_x *x; /* NULL: the client is gone */
        struct user user;
        char path[PATH_MAX];
        struct tar_pack *pack;
        int r;
        struct error err;
};

static void pack_release(void *ctx) {
        struct fs_tar *t = ctx;
        tar_pack_free(t->pack);
        free(t);
}

static ssize_t pack_read(void *ctx, uint8_t *out, size_t cap, struct error *err) {
        struct fs_tar *t = ctx;
        return tar_pack_read(t->pack, out, cap, err);
}

static void pack_open(void *arg) {
        struct fs_tar *t = arg;
        t->r = tar_pack_open(t->path, &t->pack, &t->err);
}

static void pack_opened(void *arg) {
        static const struct http_x_ops none = { 0 };
        static const struct download_ops ops = { .read = pack_read, .release = pack_release };
        struct fs_tar *t = arg;
        struct http_x *x = t->x;
        if (x)
                http_x_set_ops(x, &none, NULL);
        struct api_headers h = { .n = 0 };
        api_header(&h, "Content-Type", "application/x-tar");
        if (x && t->r == 0 && http_x_start(x, 200, h.h, h.n, -1) == 0) {
                download_start(t->a, x, &t->user, &ops, t);
                return;
        }
        if (x)
                api_fail_errno(x, &t->err);
        pack_release(t);
}

static void pack_gone(void *arg) {
        struct fs_tar *t = arg;
        t->x = NULL;
}

static void get_tar(struct agent *a, struct http_x *x, const struct user *u, const char *path) {
        static const struct http_x_ops ops = { .on_abort = pack_gone, .on_done = pack_gone };
        struct fs_tar *t = calloc(1, sizeof *t);
        if (!t) {
                api_fail(x, 500, "internal", "out of memory");
                return;
        }
        t->a = a;
        t->x = x;
        t->user = *u;
        (void) str_copy(t->path, sizeof t->path, path);
        http_x_set_ops(x, &ops, t);
        if (work_start(a->loop, u, pack_open, pack_opened, t) < 0) {
                t->r = error_set(&t->err, -ENOMEM, "out of memory");
                pack_opened(t);
        }
}

static void get(struct agent *a, struct http_x *x) {
        struct user u;
        char path[PATH_MAX];
        if (!resolve_query(a, x, &u, path))
                return;
        if (query_flag(x, "tar"))
                get_tar(a, x, &u, path);
        else
                file_source_answer(a, x, path, &u, FILE_STYLE_NATIVE);
}

/* --- routes --------------------------------------------------------------------------------- */

void fs_http(struct agent *a, struct http_x *x, const char *rest) {
        const char *m = http_x_head(x)->method;
        bool is_get = str_eq(m, "GET"), is_post = str_eq(m, "POST");
        if (str_eq(rest, "") && (is_get || str_eq(m, "HEAD")))
                get(a, x);
        else if (str_eq(rest, "") && str_eq(m, "PUT"))
                put(a, x);
        else if (str_eq(rest, "") && str_eq(m, "DELETE"))
                query_op(a, x, op_delete);
        else if (str_eq(rest, "/stat") && is_get)
                query_op(a, x, op_stat);
        else if (str_eq(rest, "/list") && is_get)
                query_op(a, x, op_list);
        else if (str_eq(rest, "/mkdir") && is_post)
                (void) api_collect(x, BODY_MAX, mkdir_body, NULL, a);
        else if (str_eq(rest, "/move") && is_post)
                (void) api_collect(x, BODY_MAX, move_body, NULL, a);
        else
                api_fail(x, 404, "not_found", "there is no %s files%s", m, rest);
}
