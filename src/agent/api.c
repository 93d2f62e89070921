/* SPDX-License-Identifier: Apache-2.0 */
#include "api.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

void api_header(struct api_headers *h, const char *name, const char *value) {
        if (h->n < API_HEADERS_MAX)
                h->h[h->n++] = (struct http_header){ name, value };
}

void api_cors(struct api_headers *h) {
        api_header(h, "Access-Control-Allow-Origin", "*");
        api_header(h, "Access-Control-Expose-Headers",
                   "Location, Cache-Control, X-Content-Type-Options, Content-Disposition, Content-Encoding, "
                   "Connect-Content-Encoding, Connect-Protocol-Version, Grpc-Status, Grpc-Message, "
                   "Grpc-Status-Details-Bin");
}

void api_respond(struct http_x *x, int status, const char *content_type, const void *body, size_t n) {
        struct api_headers h = { .n = 0 };
        if (content_type)
                api_header(&h, "Content-Type", content_type);
        api_cors(&h);
        (void) http_x_respond(x, status, h.h, h.n, body, n);
}

void api_empty(struct http_x *x, int status) {
        api_respond(x, status, NULL, NULL, 0);
}

void api_json(struct http_x *x, int status, json_t *body) {
        _cleanup_free_ char *text = body ? json_to_str(body) : NULL;
        json_decref(body);
        if (text)
                api_respond(x, status, "application/json", text, strlen(text));
        else
                api_fail_e2b(x, 500, "out of memory");
}

void api_fail_e2b(struct http_x *x, int status, const char *fmt, ...) {
        char msg[ERROR_MSG_MAX];
        va_list ap;
        va_start(ap, fmt);
        (void) vsnprintf(msg, sizeof msg, fmt, ap);
        va_end(ap);
        _cleanup_json_ json_t *j = json_pack("{s:i,s:s}", "code", status, "message", msg);
        _cleanup_free_ char *text = j ? json_to_str(j) : NULL;
        static const char plain[] = "{\"code\":500,\"message\":\"error\"}";
        api_respond(x, status, "application/json", text ? text : plain, strlen(text ? text : plain));
}

void api_fail(struct http_x *x, int status, const char *code, const char *fmt, ...) {
        char msg[ERROR_MSG_MAX];
        va_list ap;
        va_start(ap, fmt);
        (void) vsnprintf(msg, sizeof msg, fmt, ap);
        va_end(ap);
        _cleanup_json_ json_t *j = json_pack("{s:{s:s,s:s}}", "error", "code", code, "message", msg);
        _cleanup_free_ char *text = j ? json_to_str(j) : NULL;
        static const char plain[] = "{\"error\":{\"code\":\"internal\",\"message\":\"error\"}}";
        api_respond(x, status, "application/json", text ? text : plain, strlen(text ? text : plain));
}

int api_status_of_errno(int err, const char **ret_code) {
        static const struct {
                int err, status;
                const char *code;
        } table[] = {
                { -ENOENT, 404, "not_found" },
                { -ENOTDIR, 400, "not_a_directory" },
                { -EISDIR, 400, "is_a_directory" },
                { -EEXIST, 409, "already_exists" },
                { -ENOTEMPTY, 409, "not_empty" },
                { -EACCES, 403, "permission_denied" },
                { -EPERM, 403, "permission_denied" },
                { -EROFS, 403, "read_only" },
                { -EINVAL, 400, "invalid_argument" },
                { -ENAMETOOLONG, 400, "name_too_long" },
                { -ELOOP, 400, "too_many_links" },
                { -ENOSPC, 507, "no_space" },
                { -EDQUOT, 507, "no_space" },
                { -EFBIG, 413, "too_large" },
                { -EBUSY, 409, "busy" },
                { -EXDEV, 409, "other_filesystem" },
                { -ETXTBSY, 409, "busy" },
                { -EPROTO, 400, "invalid_data" },
                { -ENOTSUP, 400, "not_supported" },
                { -ENOBUFS, 429, "limit_reached" },
                { -EMFILE, 503, "too_many_files" },
                { -ENFILE, 503, "too_many_files" },
        };
        for (size_t i = 0; i < ARRAY_SIZE(table); i++)
                if (table[i].err == err) {
                        *ret_code = table[i].code;
                        return table[i].status;
                }
        *ret_code = "internal";
        return 500;
}

void api_fail_errno(struct http_x *x, const struct error *e) {
        const char *code;
        int status = api_status_of_errno(e->code, &code);
        api_fail(x, status, code, "%s", e->msg);
}

int api_query(struct http_x *x, const char *key, char **ret) {
        _cleanup_buf_ struct buf b = BUF_INIT(LIMIT_HTTP_HEAD);
        int r = http1_query_get(http_x_head(x)->target, key, &b);
        if (r <= 0)
                return r;
        const char *s = buf_str(&b);
        if (!s || strlen(s) != b.len)
                return -EINVAL;
        *ret = strdup(s);
        return *ret ? 1 : -ENOMEM;
}

/* --- bodies --------------------------------------------------------------------------------- */

struct collect {
        struct http_x *x;
        struct buf body;
        bool over;
        void (*cb)(void *arg, struct http_x *x, struct buf *body);
        void (*drop)(void *arg);
        void *arg;
};

static void collect_free(struct collect *c) {
        buf_done(&c->body);
        free(c);
}

static void collect_body(void *arg, const uint8_t *data, size_t n) {
        struct collect *c = arg;
        if (!c->over && buf_append(&c->body, data, n) < 0) {
                c->over = true;
                buf_done(&c->body);
        }
}

static void collect_gone(void *arg) {
        struct collect *c = arg;
        if (c->drop)
                c->drop(c->arg);
        collect_free(c);
}

static void answered(void *arg) {
        (void) arg;
}

static void collect_end(void *arg) {
        struct collect *c = arg;
        static const struct http_x_ops none = { .on_abort = answered, .on_done = answered };
        http_x_set_ops(c->x, &none, NULL);
        if (c->over) {
                api_fail_e2b(c->x, 413, "the request body is larger than %zu bytes", c->body.max);
                collect_gone(c);
                return;
        }
        c->cb(c->arg, c->x, &c->body);
        collect_free(c);
}

int api_collect(struct http_x *x, size_t max, void (*cb)(void *arg, struct http_x *x, struct buf *body),
                void (*drop)(void *arg), void *arg) {
        static const struct http_x_ops ops = {
                .on_body = collect_body,
                .on_end = collect_end,
                .on_abort = collect_gone,
                .on_done = collect_gone,
        };
        struct collect *c = calloc(1, sizeof *c);
        if (!c) {
                api_fail_e2b(x, 500, "out of memory");
                if (drop)
                        drop(arg);
                return -ENOMEM;
        }
        *c = (struct collect){ .x = x, .body = BUF_INIT(max), .cb = cb, .drop = drop, .arg = arg };
        http_x_set_ops(x, &ops, c);
        return 0;
}
