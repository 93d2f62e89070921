/* SPDX-License-Identifier: Apache-2.0 */

/*
 * E2B's plain file transfer. As in the original, the agent acts as root here: whoever holds the
 * token may read and write everything, and the user named in the request becomes the owner of
 * what is written and of the folders made for it.
 */
#include "files_http.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

#include "api.h"
#include "base/fd.h"
#include "base/str.h"
#include "entry.h"
#include "file_source.h"
#include "files_auth.h"
#include "fsop.h"
#include "jsonw.h"
#include "path.h"
#include "upload.h"
#include "wire/multipart.h"

#define FILES_MAX 65536     /* of one upload */
#define METADATA_HEADER "X-Metadata-"

/* --- upload --------------------------------------------------------------------------------- */

struct put {
        struct agent *a;
        struct user user;
        char *path; /* from the query, or NULL */
        struct metadata metadata;
        struct multipart_parser *mp; /* NULL: the body is the file */
        /* the file being written */
        int fd;
        bool created;
        char current[PATH_MAX];
        /* what has been written */
        char **paths;
        size_t n_paths;
};

static void put_release(void *ctx) {
        struct put *p = ctx;
        fd_close(p->fd);
        multipart_free(p->mp);
        metadata_done(&p->metadata);
        for (size_t i = 0; i < p->n_paths; i++)
                free(p->paths[i]);
        free(p->paths);
        free(p->path);
        free(p);
}

static int remember(struct put *p, struct error *err) {
        for (size_t i = 0; i < p->n_paths; i++)
                if (str_eq(p->paths[i], p->current))
                        return error_set(err, -EINVAL, "you cannot upload multiple files to the same path '%s' in one request",
                                         p->current);
        if (p->n_paths >= FILES_MAX)
                return error_set(err, -EINVAL, "one upload may have at most %d files", FILES_MAX);
        if ((p->n_paths & (p->n_paths + 1)) == 0 || p->n_paths == 0) {
                char **more = realloc(p->paths, (2 * p->n_paths + 2) * sizeof *more);
                if (!more)
                        return error_set(err, -ENOMEM, "out of memory");
                p->paths = more;
        }
        char *copy = strdup(p->current);
        if (!copy)
                return error_set(err, -ENOMEM, "out of memory");
        p->paths[p->n_paths++] = copy;
        return 0;
}

static int open_file(struct put *p, const char *name, struct error *err) {
        struct stat st;
        int r = path_resolve(name, p->user.home, p->a->identity.default_workdir, p->current, err);
        if (r == 0)
                r = remember(p, err);
        if (r == 0 && stat(p->current, &st) == 0 && S_ISDIR(st.st_mode))
                r = error_set(err, -EISDIR, "path is a directory: %s", p->current);
        if (r == 0)
                r = fsop_make_parents(p->current, &p->user, err);
        if (r == 0)
                r = fsop_open_write(p->current, 0644, &p->user, &p->fd, &p->created, err);
        return r;
}

static int close_file(struct put *p, struct error *err) {
        int r = metadata_write(p->fd, &p->metadata, err);
        int fd = fd_steal(&p->fd);
        if (close(fd) < 0 && r == 0)
                r = error_errno(err, errno, "cannot write '%s'", p->current);
        return r;
}

static int put_raw(void *ctx, const uint8_t *data, size_t n, struct error *err) {
        struct put *p = ctx;
        int r = p->fd < 0 ? open_file(p, p->path, err) : 0;
        if (r == 0 && fd_write_all(p->fd, data, n, err) < 0)
                r = error_wrap(err, "cannot write '%s'", p->current);
        return r;
}

static int finish_raw(void *ctx, struct error *err) {
        struct put *p = ctx;
        int r = p->fd < 0 ? open_file(p, p->path, err) : 0;
        return r < 0 ? r : close_file(p, err);
}

static int put_event(struct put *p, const struct multipart_event *ev, struct error *err) {
        switch (ev->type) {
        case MULTIPART_PART: {
                if (!str_eq(ev->part->name, "file"))
                        return 0;
                const char *name = p->path ? p->path : ev->part->filename;
                if (!name || !*name)
                        return error_set(err, -EINVAL, "a part named \"file\" has no filename, and there is no path");
                return open_file(p, name, err);
        }
        case MULTIPART_DATA:
                if (p->fd >= 0 && fd_write_all(p->fd, ev->data, ev->n, err) < 0)
                        return error_wrap(err, "cannot write '%s'", p->current);
                return 0;
        case MULTIPART_PART_END:
                return p->fd >= 0 ? close_file(p, err) : 0;
        case MULTIPART_ERROR:
                return error_set(err, -EINVAL, "the multipart body is not valid: %s", ev->reason);
        case MULTIPART_NEED_DATA:
        case MULTIPART_END:
        default:
                return 0;
        }
}

static int put_multipart(void *ctx, const uint8_t *data, size_t n, struct error *err) {
        struct put *p = ctx;
        int r = 0;
        struct multipart_event ev = { .type = MULTIPART_DATA };
        while (r == 0 && ev.type != MULTIPART_NEED_DATA) {
                size_t used = 0;
                multipart_parse(p->mp, data, n, &used, &ev);
                data += used;
                n -= used;
                r = put_event(p, &ev, err);
        }
        return r;
}

static int finish_multipart(void *ctx, struct error *err) {
        struct put *p = ctx;
        if (multipart_eof(p->mp) < 0)
                return error_set(err, -EINVAL, "the multipart body was cut short");
        return 0;
}

/* A file that was there before has lost its content either way; a new one does not stay half. */
static void put_discard(void *ctx) {
        struct put *p = ctx;
        if (p->fd < 0)
                return;
        p->fd = fd_close(p->fd);
        if (p->created)
                (void) unlink(p->current);
}

static int write_infos(const struct put *p, struct buf *b) {
        int r = buf_puts(b, "[");
        for (size_t i = 0; r == 0 && i < p->n_paths; i++) {
                r = buf_puts(b, i ? ",{" : "{");
                if (r == 0)
                        r = jsonw_member(b, true, "name", path_base(p->paths[i]));
                if (r == 0)
                        r = jsonw_member(b, false, "path", p->paths[i]);
                if (r == 0)
                        r = jsonw_member(b, false, "type", "file");
                if (r == 0 && p->metadata.n > 0)
                        r = metadata_json(p->paths[i], b);
                if (r == 0)
                        r = buf_puts(b, "}");
        }
        return r < 0 ? r : buf_puts(b, "]");
}

static void put_answer(void *ctx, struct http_x *x, int r, const struct error *e) {
        const char *code;
        _cleanup_buf_ struct buf b = BUF_INIT(0);
        if (r < 0)
                api_fail_e2b(x, api_status_of_errno(r, &code), "%s", e->msg);
        else if (write_infos(ctx, &b) < 0)
                api_fail_e2b(x, 500, "out of memory");
        else
                api_respond(x, 200, "application/json", buf_data(&b), b.len);
}

static int read_metadata(const struct http1_head *h, struct metadata *m, struct error *err) {
        for (size_t i = 0; i < h->n_fields; i++) {
                const struct http1_field *f = &h->fields[i];
                if (strncasecmp(f->name, METADATA_HEADER, sizeof METADATA_HEADER - 1) != 0)
                        continue;
                int r = metadata_add(m, f->name + sizeof METADATA_HEADER - 1, f->value, err);
                if (r < 0)
                        return r;
        }
        return 0;
}

static void post(struct agent *a, struct http_x *x) {
        static const struct upload_ops raw = {
                .consume = put_raw, .finish = finish_raw, .discard = put_discard, .answer = put_answer, .release = put_release
        };
        static const struct upload_ops multi = {
                .consume = put_multipart, .finish = finish_multipart, .discard = put_discard, .answer = put_answer,
                .release = put_release
        };
        const struct http1_head *h = http_x_head(x);
        const char *type = http1_get(h, "Content-Type"), *coding = http1_get(h, "Content-Encoding");
        struct error e = ERROR_INIT;
        struct files_request req = { .path = NULL };
        if (!files_authorise(a, x, "write", &req))
                return;
        struct put *p = calloc(1, sizeof *p);
        if (!p) {
                free(req.path);
                api_fail_e2b(x, 500, "out of memory");
                return;
        }
        *p = (struct put){ .a = a, .user = req.user, .path = req.path, .fd = -EBADF };
        if (p->path && !*p->path) {
                free(p->path);
                p->path = NULL;
        }
        bool gzip = coding && strcasecmp(coding, "gzip") == 0;
        bool is_multi = type && strncasecmp(type, "multipart/", 10) == 0;
        bool is_raw = type && str_case_eq_n(type, strcspn(type, "; "), "application/octet-stream");
        if (coding && !gzip && strcasecmp(coding, "identity") != 0)
                api_fail_e2b(x, 415, "Content-Encoding '%s' is not supported; gzip is", coding);
        else if (!is_multi && !is_raw)
                api_fail_e2b(x, 400, "Content-Type must be multipart/form-data or application/octet-stream");
        else if (is_raw && !p->path)
                api_fail_e2b(x, 400, "path is missing");
        else if (is_multi && multipart_new(type, &p->mp, &e) < 0)
                api_fail_e2b(x, 400, "%s", e.msg);
        else if (read_metadata(h, &p->metadata, &e) < 0)
                api_fail_e2b(x, 400, "%s", e.msg);
        else {
                upload_start(a, x, NULL, gzip, is_multi ? &multi : &raw, p);
                return;
        }
        put_release(p);
}

/* --- download ------------------------------------------------------------------------------- */

static void get(struct agent *a, struct http_x *x) {
        struct files_request req = { .path = NULL };
        struct error e = ERROR_INIT;
        char path[PATH_MAX];
        if (!files_authorise(a, x, "read", &req))
                return;
        if (path_resolve(req.path ? req.path : "", req.user.home, a->identity.default_workdir, path, &e) < 0)
                api_fail_e2b(x, 400, "%s", e.msg);
        else
                file_source_answer(a, x, path, NULL, FILE_STYLE_E2B);
        free(req.path);
}

void files_http(struct agent *a, struct http_x *x) {
        const char *method = http_x_head(x)->method;
        if (str_eq(method, "GET") || str_eq(method, "HEAD"))
                get(a, x);
        else if (str_eq(method, "POST"))
                post(a, x);
        else
                api_fail_e2b(x, 405, "%s is not allowed here", method);
}
