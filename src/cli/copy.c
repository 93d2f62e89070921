/* SPDX-License-Identifier: Apache-2.0 */
#include "copy.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/fd.h"
#include "base/str.h"
#include "cli.h"
#include "mem.h"
#include "pack.h"
#include "unpack.h"

#define COPY_READ (256u * 1024)

/* --- paths ---------------------------------------------------------------------------------------- */

static size_t without_slashes(const char *s) {
        size_t n = strlen(s);

        while (n > 1 && s[n - 1] == '/')
                n--;
        return n;
}

char *copy_basename(const char *path) {
        size_t n = without_slashes(path);
        const char *slash = memrchr(path, '/', n);
        const char *base = slash ? slash + 1 : path;
        size_t len = (size_t) (path + n - base);

        if (len == 0 || (len == 1 && base[0] == '.') || (len == 2 && base[0] == '.' && base[1] == '.'))
                return mem_dup("");
        return mem_ndup(base, len);
}

char *copy_dirname(const char *path) {
        size_t n = without_slashes(path);
        const char *slash = memrchr(path, '/', n);

        if (!slash)
                return mem_dup(".");
        size_t len = (size_t) (slash - path);
        return len == 0 ? mem_dup("/") : mem_ndup(path, len);
}

char *copy_join(const char *dir, const char *name) {
        if (!*name)
                return mem_dup(dir);
        return mem_printf("%s%s%s", dir, *dir && !str_has_suffix(dir, "/") ? "/" : "", name);
}

static bool ends_in_slash(const char *s) {
        return str_has_suffix(s, "/");
}

/* Where a source goes: into folder `dir`, under the name `as` ("": its contents alone). */
struct place {
        char *dir, *as;
        bool replaces; /* an existing file */
};

static void place_done(struct place *p) {
        free(p->dir);
        free(p->as);
}
#define _cleanup_place_ _cleanup_(place_done)

enum kind { KIND_MISSING, KIND_FILE, KIND_DIR };

/* The table in copy.h. shown: the destination as the user wrote it. */
static int find_place(const char *src, bool src_is_dir, const char *dst, enum kind kind, bool several,
                      const char *shown, struct place *ret) {
        if (kind == KIND_DIR) {
                ret->dir = mem_dup(dst);
                ret->as = copy_basename(src);
                return CLI_OK;
        }
        if (several)
                return cli_fail("\"%s\" is not a folder, but several sources go there", shown);
        if (kind == KIND_FILE && src_is_dir)
                return cli_fail("\"%s\" is a file; the folder \"%s\" cannot replace it", shown, src);
        if (!src_is_dir && ends_in_slash(dst))
                return cli_fail(kind == KIND_FILE ? "\"%s\" is not a folder"
                                                  : "the folder \"%s\" does not exist",
                                shown);
        ret->dir = copy_dirname(dst);
        ret->as = copy_basename(dst);
        ret->replaces = kind == KIND_FILE;
        if (!*ret->as)
                return cli_fail("\"%s\" does not exist", shown);
        return CLI_OK;
}

/* --- up ------------------------------------------------------------------------------------------- */

static int send_bytes(struct copy *c, struct xfer *x, int fd, const char *name, int64_t size,
                      struct api_error *e) {
        _cleanup_free_ uint8_t *piece = mem_new(COPY_READ);
        int64_t done = 0;

        while (size < 0 || done < size) {
                size_t want = size < 0 || size - done > COPY_READ ? COPY_READ : (size_t) (size - done);
                ssize_t n = read(fd, piece, want);

                if (n < 0 && errno == EINTR)
                        continue;
                if (n < 0)
                        return api_error_set(e, "failure", "cannot read \"%s\": %s", name, strerror(errno));
                if (n == 0 && size >= 0)
                        return api_error_set(e, "failure", "\"%s\" became shorter while it was read", name);
                if (n == 0)
                        break;
                if (xfer_write(x, piece, (size_t) n, e) < 0)
                        return -1;
                done += n;
                progress_bytes(c->progress, name, (uint64_t) done, size > 0 ? (uint64_t) size : 0);
        }
        return xfer_finish(x, e);
}

static int upload_fd(struct copy *c, int fd, const char *name, const char *path, mode_t mode, bool replaces,
                     int64_t size) {
        _cleanup_free_ char *query = replaces ? NULL : mem_printf("mode=%o", (unsigned) mode & 0777u);
        struct xfer *x = NULL;
        struct api_error e;

        int r = remote_put(&c->remote, path, query, size, &x, &e);
        if (r == 0)
                r = send_bytes(c, x, fd, name, size, &e);
        xfer_free(x);
        progress_clear(c->progress);
        return r < 0 ? api_error_print(&e) : CLI_OK;
}

struct packing {
        struct copy *c;
        struct xfer *x;
        const char *name;
        uint64_t done, total;
        struct api_error err;
};

static int on_packed(void *arg, const void *data, size_t n) {
        struct packing *p = arg;

        if (xfer_write(p->x, data, n, &p->err) < 0)
                return -1;
        p->done += n;
        progress_bytes(p->c->progress, p->name, p->done, p->total);
        return 0;
}

static int upload_tree(struct copy *c, const char *src, const struct place *to) {
        struct packing p = { .c = c, .name = src, .total = pack_size(src) };
        struct error err = ERROR_INIT;
        struct pack *pack = NULL;

        if (remote_put(&c->remote, to->dir, "tar=1", -1, &p.x, &p.err) < 0)
                return api_error_print(&p.err);
        int r = pack_new(on_packed, &p, &pack, &err);
        if (r == 0)
                r = pack_add(pack, src, to->as, &err);
        if (r == 0)
                r = pack_finish(pack, &err);
        if (r == 0 && xfer_finish(p.x, &p.err) < 0)
                r = -ECANCELED;
        if (pack)
                c->skipped += pack_skipped(pack);
        pack_free(pack);
        xfer_free(p.x);
        progress_clear(c->progress);
        if (r == -ECANCELED)
                return api_error_print(&p.err);
        return r < 0 ? cli_fail_err(&err) : CLI_OK;
}

static int upload_stdin(struct copy *c, const char *dst, const struct remote_stat *st) {
        if (c->tar) {
                struct xfer *x = NULL;
                struct api_error e;

                int r = remote_put(&c->remote, dst, "tar=1", -1, &x, &e);
                if (r == 0)
                        r = send_bytes(c, x, STDIN_FILENO, "stdin", -1, &e);
                xfer_free(x);
                progress_clear(c->progress);
                return r < 0 ? api_error_print(&e) : CLI_OK;
        }
        if (st->type == REMOTE_DIR || ends_in_slash(dst))
                return cli_fail(
                        "\"%s\" is a folder and stdin has no name: name the file, or unpack an archive "
                        "with --tar",
                        dst);
        return upload_fd(c, STDIN_FILENO, "stdin", dst, 0644, st->type == REMOTE_FILE, -1);
}

static enum kind kind_of_remote(const struct remote_stat *st) {
        return st->type == REMOTE_MISSING ? KIND_MISSING : st->type == REMOTE_DIR ? KIND_DIR : KIND_FILE;
}

/* A name's folder must be there already: cp(1) makes none. */
static int check_remote_dir(struct copy *c, const char *dir) {
        struct remote_stat st;
        struct api_error e;

        if (remote_stat(&c->remote, dir, &st, &e) < 0)
                return api_error_print(&e);
        if (st.type == REMOTE_DIR)
                return CLI_OK;
        return cli_fail(st.type == REMOTE_MISSING ? "the folder \"%s\" does not exist in the sandbox"
                                                  : "\"%s\" is not a folder in the sandbox",
                        dir);
}

int copy_upload(struct copy *c, const char *src, const char *dst, bool several) {
        _cleanup_place_ struct place to = { 0 };
        struct remote_stat rs;
        struct api_error e;
        struct stat st;

        if (!*dst)
                dst = "."; /* "SANDBOX:" is the user's folder */
        if (remote_stat(&c->remote, dst, &rs, &e) < 0)
                return api_error_print(&e);
        if (str_eq(src, "-"))
                return upload_stdin(c, dst, &rs);
        if (stat(src, &st) < 0)
                return cli_fail("cannot read \"%s\": %s", src, strerror(errno));
        bool dir = S_ISDIR(st.st_mode);
        int rc = find_place(src, dir, dst, kind_of_remote(&rs), several, dst, &to);
        if (rc == CLI_OK && rs.type != REMOTE_DIR)
                rc = check_remote_dir(c, to.dir);
        if (rc != CLI_OK)
                return rc;
        if (dir)
                return upload_tree(c, src, &to);
        _cleanup_free_ char *path = copy_join(to.dir, to.as);
        if (rs.type == REMOTE_DIR) {
                if (remote_stat(&c->remote, path, &rs, &e) < 0)
                        return api_error_print(&e);
                if (rs.type == REMOTE_DIR)
                        return cli_fail("\"%s\" is a folder; the file \"%s\" cannot replace it", path, src);
                to.replaces = rs.type == REMOTE_FILE;
        }
        _cleanup_fd_ int fd = open(src, O_RDONLY | O_CLOEXEC | O_NOCTTY);
        if (fd < 0)
                return cli_fail("cannot open \"%s\": %s", src, strerror(errno));
        bool sized = S_ISREG(st.st_mode) && st.st_size > 0; /* files of /proc have size 0 */
        return upload_fd(c, fd, src, path, st.st_mode, to.replaces, sized ? (int64_t) st.st_size : -1);
}

/* --- down ----------------------------------------------------------------------------------------- */

struct receiving {
        struct copy *c;
        struct xfer *x;
        const char *name;
        uint64_t done, total;
        struct api_error err;
};

static ssize_t on_piece(void *arg, const uint8_t **ret) {
        struct receiving *r = arg;

        ssize_t n = xfer_read(r->x, ret, &r->err);
        if (n > 0) {
                r->done += (uint64_t) n;
                progress_bytes(r->c->progress, r->name, r->done, r->total);
        }
        return n;
}

static int receive(struct receiving *r, int fd, const char *path) {
        struct error err = ERROR_INIT;
        const uint8_t *data;
        ssize_t n;

        while ((n = on_piece(r, &data)) > 0) {
                if (fd_write_all(fd, data, (size_t) n, &err) < 0) {
                        progress_clear(r->c->progress);
                        return cli_fail("cannot write \"%s\": %s", path, err.msg);
                }
        }
        progress_clear(r->c->progress);
        return n < 0 ? api_error_print(&r->err) : CLI_OK;
}

static int download_file(struct copy *c, const char *src, const struct remote_stat *st, const char *path) {
        struct receiving r = { .c = c, .name = src, .total = st->size };

        /* Ask first: a file that cannot be read must not truncate the one that is here. */
        if (remote_get(&c->remote, src, NULL, &r.x, &r.err) < 0)
                return api_error_print(&r.err);
        _cleanup_fd_ int fd =
                open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOCTTY, st->mode & 0777);
        int rc = fd < 0 ? cli_fail("cannot write \"%s\": %s", path, strerror(errno)) : receive(&r, fd, path);
        xfer_free(r.x);
        return rc;
}

static int download_tree(struct copy *c, const char *src, const struct place *to) {
        struct receiving r = { .c = c, .name = src };
        struct unpack_result done = { 0 };
        struct error err = ERROR_INIT;

        _cleanup_fd_ int dirfd = open(to->dir, O_DIRECTORY | O_RDONLY | O_CLOEXEC);
        if (dirfd < 0)
                return cli_fail("cannot open the folder \"%s\": %s", to->dir, strerror(errno));
        if (remote_get(&c->remote, src, "tar=1", &r.x, &r.err) < 0)
                return api_error_print(&r.err);
        int u = unpack(dirfd, "", to->as, on_piece, &r, &done, &err);
        c->skipped += done.skipped;
        xfer_free(r.x);
        progress_clear(c->progress);
        if (u == -ECANCELED)
                return api_error_print(&r.err);
        return u < 0 ? cli_fail_err(&err) : CLI_OK;
}

static int download_stdout(struct copy *c, const char *src, const struct remote_stat *st) {
        struct receiving r = { .c = c, .name = src };

        if (st->type == REMOTE_DIR && !c->tar)
                return cli_fail("\"%s\" is a folder; --tar writes it to stdout as an archive", src);
        if (remote_get(&c->remote, src, c->tar ? "tar=1" : NULL, &r.x, &r.err) < 0)
                return api_error_print(&r.err);
        int rc = receive(&r, STDOUT_FILENO, "stdout");
        xfer_free(r.x);
        return rc;
}

int copy_download(struct copy *c, const char *src, const char *dst, bool several) {
        _cleanup_place_ struct place to = { 0 };
        struct remote_stat rs;
        struct api_error e;
        struct stat st;

        if (!*src)
                src = ".";
        if (remote_stat(&c->remote, src, &rs, &e) < 0)
                return api_error_print(&e);
        if (rs.type == REMOTE_MISSING)
                return cli_fail_code("not_found", "\"%s\" does not exist in the sandbox", src);
        if (rs.type == REMOTE_OTHER)
                return cli_fail("\"%s\" is neither a file nor a folder in the sandbox", src);
        if (rs.type == REMOTE_FILE && ends_in_slash(src))
                return cli_fail("\"%s\" is not a folder in the sandbox", src);
        if (str_eq(dst, "-"))
                return download_stdout(c, src, &rs);
        enum kind kind = stat(dst, &st) < 0 ? KIND_MISSING : S_ISDIR(st.st_mode) ? KIND_DIR : KIND_FILE;
        if (kind == KIND_MISSING && errno != ENOENT && errno != ENOTDIR)
                return cli_fail("cannot look at \"%s\": %s", dst, strerror(errno));
        int rc = find_place(src, rs.type == REMOTE_DIR, dst, kind, several, dst, &to);
        if (rc != CLI_OK)
                return rc;
        if (rs.type == REMOTE_DIR)
                return download_tree(c, src, &to);
        _cleanup_free_ char *path = copy_join(to.dir, to.as);
        if (stat(path, &st) == 0 && S_ISDIR(st.st_mode))
                return cli_fail("\"%s\" is a folder; the file \"%s\" cannot replace it", path, src);
        return download_file(c, src, &rs, path);
}
