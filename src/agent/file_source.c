/* SPDX-License-Identifier: Apache-2.0 */
#include "file_source.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/uio.h>
#include <unistd.h>
#include <zlib.h>

#include "api.h"
#include "base/fd.h"
#include "base/str.h"
#include "download.h"
#include "fsop.h"
#include "http_cond.h"
#include "path.h"
#include "work.h"

#define GZIP_LEVEL 1
#define GZIP_WINDOW (15 + 16)
#define RAW_CHUNK (128u * 1024)
#define PROBE_MAX 4096 /* of a file that claims to be empty, as those of /proc do */

struct source {
        struct agent *a;
        struct http_x *x; /* NULL: the client is gone */
        enum file_style style;
        char path[PATH_MAX];
        struct user as;
        bool switch_user;
        /* the opened file */
        int fd, r;
        struct stat st;
        struct error err;
        uint8_t probe[PROBE_MAX];
        size_t probe_n, probe_off;
        /* what is sent */
        uint64_t off, end; /* end UINT64_MAX: to the end of the file */
        bool gzip, z_open, z_done;
        z_stream z;
        uint8_t *raw;
};

static void source_free(void *arg) {
        struct source *s = arg;
        if (s->z_open)
                (void) deflateEnd(&s->z);
        free(s->raw);
        fd_close(s->fd);
        free(s);
}

/* --- bytes ---------------------------------------------------------------------------------- */

static ssize_t file_read(struct source *s, uint8_t *out, size_t cap, int flags) {
        if (s->probe_off < s->probe_n) {
                size_t n = s->probe_n - s->probe_off;
                n = n < cap ? n : cap;
                memcpy(out, s->probe + s->probe_off, n);
                s->probe_off += n;
                s->off += n;
                return (ssize_t) n;
        }
        if (s->end - s->off < cap)
                cap = (size_t) (s->end - s->off);
        if (cap == 0)
                return 0;
        struct iovec v = { .iov_base = out, .iov_len = cap };
        ssize_t n = preadv2(s->fd, &v, 1, (off_t) s->off, flags);
        if (n > 0)
                s->off += (uint64_t) n;
        return n < 0 ? -errno : n;
}

static ssize_t plain_read(void *ctx, uint8_t *out, size_t cap, struct error *err) {
        struct source *s = ctx;
        ssize_t n = file_read(s, out, cap, 0);
        if (n < 0)
                return error_errno(err, (int) n, "cannot read '%s'", s->path);
        if (n == 0 && s->end != UINT64_MAX && s->off < s->end)
                return error_set(err, -EIO, "'%s' became shorter while it was read", s->path);
        return n;
}

/* What lies in the page cache is read without leaving the loop. */
static ssize_t plain_read_now(void *ctx, uint8_t *out, size_t cap) {
        struct source *s = ctx;
        if (s->off >= s->end)
                return 0;
        ssize_t n = file_read(s, out, cap, RWF_NOWAIT);
        return n <= 0 ? -EAGAIN : n;
}

static ssize_t gzip_read(void *ctx, uint8_t *out, size_t cap, struct error *err) {
        struct source *s = ctx;
        if (!s->z_open) {
                s->raw = malloc(RAW_CHUNK);
                if (!s->raw || deflateInit2(&s->z, GZIP_LEVEL, Z_DEFLATED, GZIP_WINDOW, 8, Z_DEFAULT_STRATEGY) != Z_OK)
                        return error_set(err, -ENOMEM, "out of memory");
                s->z_open = true;
        }
        s->z.next_out = out;
        s->z.avail_out = (unsigned) cap;
        while (s->z.avail_out == cap && !s->z_done) {
                if (s->z.avail_in == 0) {
                        ssize_t n = plain_read(s, s->raw, RAW_CHUNK, err);
                        if (n < 0)
                                return n;
                        s->z.next_in = s->raw;
                        s->z.avail_in = (unsigned) n;
                }
                s->z_done = deflate(&s->z, s->z.avail_in ? Z_NO_FLUSH : Z_FINISH) == Z_STREAM_END;
        }
        return (ssize_t) (cap - s->z.avail_out);
}

/* --- the answer ----------------------------------------------------------------------------- */

static void fail(struct source *s, struct http_x *x) {
        const char *code;
        if (s->style == FILE_STYLE_NATIVE)
                api_fail_errno(x, &s->err);
        else if (s->r == -ENOENT || s->r == -ENOTDIR)
                api_fail_e2b(x, 404, "path '%s' does not exist", s->path);
        else
                api_fail_e2b(x, api_status_of_errno(s->r, &code), "%s", s->err.msg);
}

static const char *media_type(const char *path) {
        static const char *const types[][2] = {
                { ".txt", "text/plain; charset=utf-8" }, { ".html", "text/html; charset=utf-8" },
                { ".css", "text/css; charset=utf-8" },   { ".csv", "text/csv; charset=utf-8" },
                { ".js", "text/javascript; charset=utf-8" }, { ".json", "application/json" },
                { ".pdf", "application/pdf" }, { ".png", "image/png" }, { ".jpg", "image/jpeg" },
                { ".jpeg", "image/jpeg" }, { ".gif", "image/gif" }, { ".svg", "image/svg+xml" },
                { ".webp", "image/webp" }, { ".xml", "text/xml; charset=utf-8" }, { ".mp4", "video/mp4" },
        };
        for (size_t i = 0; i < ARRAY_SIZE(types); i++)
                if (str_has_suffix(path, types[i][0]))
                        return types[i][1];
        return "application/octet-stream";
}

/* inline; filename*=utf-8''... (RFC 6266, RFC 8187); plain names in quotes as well. */
static void disposition(const char *name, struct buf *out) {
        bool plain = true;
        for (const char *p = name; *p; p++)
                plain = plain && (unsigned char) *p >= 0x20 && (unsigned char) *p < 0x7f && !strchr("\"\\%", *p);
        if (plain) {
                (void) buf_printf(out, "inline; filename=\"%s\"", name);
                return;
        }
        (void) buf_puts(out, "inline; filename*=utf-8''");
        for (const char *p = name; *p; p++) {
                unsigned char c = (unsigned char) *p;
                if ((c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || (c && strchr("-._~", c)))
                        (void) buf_append(out, p, 1);
                else
                        (void) buf_printf(out, "%%%02X", c);
        }
}

struct answer {
        int status;
        int64_t length; /* -1: chunked */
        char etag[64], modified[HTTP_DATE_SIZE], range[80];
};

static void plan(struct source *s, const struct http1_head *h, struct answer *p) {
        uint64_t size = (uint64_t) s->st.st_size, first, last;
        (void) snprintf(p->etag, sizeof p->etag, "\"%llx-%llx-%llx\"", (unsigned long long) s->st.st_ino,
                        (unsigned long long) size,
                        (unsigned long long) s->st.st_mtim.tv_sec * 1000000000ULL + (unsigned long long) s->st.st_mtim.tv_nsec);
        http_date(s->st.st_mtim.tv_sec, p->modified);
        s->end = size;
        p->length = (int64_t) size;
        p->status = http_check_conditions(h, p->etag, s->st.st_mtim.tv_sec);
        if (p->status)
                return;
        p->status = 200;
        if (s->probe_n > 0) { /* its size is not known: no range, no length */
                s->end = UINT64_MAX;
                p->length = -1;
                return;
        }
        enum http_range range = http_read_range(h, p->etag, s->st.st_mtim.tv_sec, size, &first, &last);
        if (range == HTTP_RANGE_BAD) {
                p->status = 416;
                (void) snprintf(p->range, sizeof p->range, "bytes */%llu", (unsigned long long) size);
        } else if (range == HTTP_RANGE_PART) {
                p->status = 206;
                s->off = first;
                s->end = last + 1;
                p->length = (int64_t) (s->end - s->off);
                (void) snprintf(p->range, sizeof p->range, "bytes %llu-%llu/%llu", (unsigned long long) first,
                                (unsigned long long) last, (unsigned long long) size);
        }
}

static void begin(struct source *s, struct http_x *x) {
        static const struct download_ops plain = { .read = plain_read, .read_now = plain_read_now, .release = source_free };
        static const struct download_ops gzip = { .read = gzip_read, .release = source_free };
        const struct http1_head *h = http_x_head(x);
        struct answer p = { .status = 0 };
        plan(s, h, &p);
        enum http_coding coding = http_choose_coding(http1_get(h, "Accept-Encoding"));
        if (p.status == 200 && coding == HTTP_NONE) {
                api_fail_e2b(x, 406, "no acceptable content coding: identity and gzip are there");
                source_free(s);
                return;
        }
        s->gzip = p.status == 200 && coding == HTTP_GZIP && p.length != 0;
        _cleanup_buf_ struct buf disp = BUF_INIT(LIMIT_HTTP_HEAD);
        disposition(path_base(s->path), &disp);
        struct api_headers hd = { .n = 0 };
        api_header(&hd, "Content-Type", media_type(s->path));
        api_header(&hd, "X-Content-Type-Options", "nosniff");
        api_header(&hd, "Accept-Ranges", "bytes");
        api_header(&hd, "Vary", "Accept-Encoding");
        if (!s->gzip)
                api_header(&hd, "ETag", p.etag);
        else
                api_header(&hd, "Content-Encoding", "gzip");
        api_header(&hd, "Last-Modified", p.modified);
        const char *d = buf_str(&disp);
        if (d)
                api_header(&hd, "Content-Disposition", d);
        if (p.range[0])
                api_header(&hd, "Content-Range", p.range);
        api_cors(&hd);
        bool body = p.status == 200 || p.status == 206;
        if (!body || str_eq(h->method, "HEAD") || p.length == 0) {
                int64_t len = body ? (s->gzip ? -1 : p.length) : 0;
                if (http_x_start(x, p.status, hd.h, hd.n, len < 0 && p.length == 0 ? 0 : len) == 0)
                        (void) http_x_end(x);
                source_free(s);
                return;
        }
        if (http_x_start(x, p.status, hd.h, hd.n, s->gzip ? -1 : p.length) < 0) {
                api_fail_e2b(x, 500, "out of memory");
                source_free(s);
                return;
        }
        download_start(s->a, x, s->switch_user ? &s->as : NULL, s->gzip ? &gzip : &plain, s);
}

static void open_on_thread(void *arg) {
        struct source *s = arg;
        s->r = fsop_open_read(s->path, &s->fd, &s->st, &s->err);
        if (s->r < 0 || s->st.st_size > 0)
                return;
        ssize_t n = read(s->fd, s->probe, sizeof s->probe);
        if (n < 0)
                s->r = error_errno(&s->err, errno, "cannot read '%s'", s->path);
        else
                s->probe_n = (size_t) n;
}

static const struct http_x_ops no_ops = { 0 };

static void opened(void *arg) {
        struct source *s = arg;
        struct http_x *x = s->x;
        if (x)
                http_x_set_ops(x, &no_ops, NULL);
        if (!x || s->r < 0) {
                if (x)
                        fail(s, x);
                source_free(s);
                return;
        }
        begin(s, x);
}

static void gone(void *arg) {
        struct source *s = arg;
        s->x = NULL;
}

void file_source_answer(struct agent *a, struct http_x *x, const char *path, const struct user *as,
                        enum file_style style) {
        static const struct http_x_ops ops = { .on_abort = gone, .on_done = gone };
        struct source *s = calloc(1, sizeof *s);
        if (!s) {
                api_fail_e2b(x, 500, "out of memory");
                return;
        }
        s->a = a;
        s->x = x;
        s->style = style;
        s->fd = -EBADF;
        (void) str_copy(s->path, sizeof s->path, path);
        if (as) {
                s->as = *as;
                s->switch_user = true;
        }
        if (work_start(a->loop, as, open_on_thread, opened, s) < 0) {
                source_free(s);
                api_fail_e2b(x, 500, "out of memory");
                return;
        }
        http_x_set_ops(x, &ops, s);
}
