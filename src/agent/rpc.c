/* SPDX-License-Identifier: Apache-2.0 */
#include "rpc.h"

#include <ctype.h>
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "api.h"
#include "base/str.h"
#include "jsonw.h"

#define KEEPALIVE_DEFAULT_S 90
#define KEEPALIVE_MIN_S 1
#define TIMEOUT_MAX_MS (30ULL * 86400 * 1000)

struct rpc {
        struct agent *a;
        struct http_x *x;
        const struct rpc_method *method;
        const struct rpc_ops *ops;
        void *arg;
        char user[USER_NAME_MAX];
        uint64_t timeout_ms, keepalive_ms;
        bool started, ended;
        bool broken; /* a message could not be queued: the stream must not end well */
};

struct agent *rpc_agent(const struct rpc *r) {
        return r->a;
}
void rpc_set_ops(struct rpc *r, const struct rpc_ops *ops, void *arg) {
        r->ops = ops;
        r->arg = arg;
}
const char *rpc_user(const struct rpc *r) {
        return r->user;
}
uint64_t rpc_timeout_ms(const struct rpc *r) {
        return r->timeout_ms;
}
uint64_t rpc_keepalive_ms(const struct rpc *r) {
        return r->keepalive_ms;
}
size_t rpc_queued(const struct rpc *r) {
        return http_x_queued(r->x);
}

json_t *rpc_member(const json_t *obj, const char *camel) {
        json_t *v = json_object_get(obj, camel);
        if (v)
                return json_is_null(v) ? NULL : v;
        char snake[64];
        size_t n = 0;
        for (const char *p = camel; *p && n < sizeof snake - 2; p++) {
                if (isupper((unsigned char) *p))
                        snake[n++] = '_';
                snake[n++] = (char) tolower((unsigned char) *p);
        }
        snake[n] = '\0';
        v = json_object_get(obj, snake);
        return json_is_null(v) ? NULL : v;
}

enum connect_code rpc_code_of_errno(int err) {
        switch (err) {
        case -ENOENT:
                return CONNECT_NOT_FOUND;
        case -EEXIST:
                return CONNECT_ALREADY_EXISTS;
        case -EACCES:
        case -EPERM:
        case -EROFS:
                return CONNECT_PERMISSION_DENIED;
        case -EINVAL:
        case -ENOTDIR:
        case -EISDIR:
        case -ENAMETOOLONG:
        case -ELOOP:
                return CONNECT_INVALID_ARGUMENT;
        case -ENOSPC:
        case -EDQUOT:
        case -EMFILE:
        case -ENFILE:
        case -ENOBUFS:
        case -EAGAIN:
                return CONNECT_RESOURCE_EXHAUSTED;
        case -EBUSY:
        case -ENOTEMPTY:
                return CONNECT_FAILED_PRECONDITION;
        default:
                return CONNECT_INTERNAL;
        }
}

/* --- answers -------------------------------------------------------------------------------- */

static void start_stream(struct rpc *r) {
        if (r->started)
                return;
        r->started = true;
        struct api_headers h = { .n = 0 };
        api_header(&h, "Content-Type", "application/connect+json");
        api_header(&h, "Cache-Control", "no-store");
        api_cors(&h);
        if (http_x_start(r->x, 200, h.h, h.n, -1) < 0)
                r->broken = true;
}

static void send_frame(struct rpc *r, uint8_t flags, const void *json, size_t n) {
        start_stream(r);
        if (r->broken)
                return;
        _cleanup_buf_ struct buf b = BUF_INIT(0);
        if (connect_write_frame(&b, flags, json, n) < 0 || http_x_write(r->x, buf_data(&b), b.len) < 0)
                r->broken = true;
}

void rpc_send(struct rpc *r, const void *json, size_t n) {
        send_frame(r, 0, json, n);
}

static void end_stream(struct rpc *r, const void *json, size_t n) {
        r->ended = true;
        send_frame(r, CONNECT_FLAG_END, json, n);
        if (r->broken)
                http_x_abort(r->x);
        else
                (void) http_x_end(r->x);
}

void rpc_finish(struct rpc *r) {
        end_stream(r, "{}", 2);
}

void rpc_reply(struct rpc *r, json_t *reply) {
        r->ended = true;
        api_json(r->x, 200, reply);
}

void rpc_reply_text(struct rpc *r, const struct buf *json) {
        r->ended = true;
        api_respond(r->x, 200, "application/json", buf_data(json), json->len);
}

void rpc_error(struct rpc *r, enum connect_code code, const char *fmt, ...) {
        char msg[ERROR_MSG_MAX];
        va_list ap;
        va_start(ap, fmt);
        (void) vsnprintf(msg, sizeof msg, fmt, ap);
        va_end(ap);
        _cleanup_buf_ struct buf b = BUF_INIT(0);
        bool stream = r->method->stream;
        if (buf_puts(&b, stream ? "{\"error\":{" : "{") < 0 ||
            jsonw_member(&b, true, "code", connect_code_name(code)) < 0 ||
            jsonw_member(&b, false, "message", msg) < 0 || buf_puts(&b, stream ? "}}" : "}") < 0) {
                r->ended = true;
                http_x_abort(r->x);
                return;
        }
        if (stream) {
                end_stream(r, buf_data(&b), b.len);
                return;
        }
        r->ended = true;
        api_respond(r->x, connect_code_http(code), "application/json", buf_data(&b), b.len);
}

/* --- the request ---------------------------------------------------------------------------- */

static void on_drain(void *arg) {
        struct rpc *r = arg;
        if (!r->ended && r->ops && r->ops->on_drain)
                r->ops->on_drain(r->arg);
}

static void on_over(void *arg) {
        struct rpc *r = arg;
        if (!r->ended && r->ops && r->ops->on_gone)
                r->ops->on_gone(r->arg);
        free(r);
}

/* A stream whose reader has gone would otherwise be noticed at its next message. */
static void on_eof(void *arg) {
        struct rpc *r = arg;
        if (r->method->stream && !r->ended)
                http_x_abort(r->x);
}

static void drop(void *arg) {
        free(arg);
}

/* The one message of a server stream's request. */
static int unframe(struct buf *body, const uint8_t **ret, size_t *ret_n) {
        const uint8_t *p = buf_data(body);
        if (body->len < CONNECT_FRAME_HEAD)
                return -EPROTO;
        size_t n = (size_t) p[1] << 24 | (size_t) p[2] << 16 | (size_t) p[3] << 8 | p[4];
        if (p[0] != 0 || n > body->len - CONNECT_FRAME_HEAD)
                return -EPROTO;
        *ret = p + CONNECT_FRAME_HEAD;
        *ret_n = n;
        return 0;
}

static void on_body(void *arg, struct http_x *x, struct buf *body) {
        static const struct http_x_ops ops = {
                .on_drain = on_drain, .on_eof = on_eof, .on_abort = on_over, .on_done = on_over
        };
        struct rpc *r = arg;
        struct error e = ERROR_INIT;
        http_x_set_ops(x, &ops, r);
        const uint8_t *data = buf_data(body);
        size_t n = body->len;
        if (r->method->stream && unframe(body, &data, &n) < 0) {
                rpc_error(r, CONNECT_INVALID_ARGUMENT, "the request is not one uncompressed message");
                return;
        }
        _cleanup_json_ json_t *req = NULL;
        if (n == 0)
                req = json_object(); /* a message without any member set */
        else if (json_parse(data, n, LIMIT_JSON_BODY, &req, &e) < 0) {
                rpc_error(r, CONNECT_INVALID_ARGUMENT, "%s", e.msg);
                return;
        }
        if (!json_is_object(req)) {
                rpc_error(r, CONNECT_INVALID_ARGUMENT, "the request must be a JSON object");
                return;
        }
        r->method->call(r, req);
}

/* "Basic base64(user:password)": the user; the password means nothing. */
static int read_user(const struct http1_head *h, char out[USER_NAME_MAX]) {
        const char *v = http1_get(h, "Authorization");
        out[0] = '\0';
        if (!v || !str_case_eq_n(v, strcspn(v, " "), "basic"))
                return 0;
        v += strcspn(v, " ");
        v += strspn(v, " ");
        uint8_t raw[USER_NAME_MAX * 2];
        size_t n = strlen(v);
        if (n > base64_encoded_len(sizeof raw - 2))
                return -EINVAL;
        ssize_t len = base64_decode(v, n, raw);
        if (len < 0)
                return -EINVAL;
        raw[len] = '\0';
        char *colon = strchr((char *) raw, ':');
        if (colon)
                *colon = '\0';
        return str_copy(out, USER_NAME_MAX, (char *) raw);
}

static uint64_t read_number(const struct http1_head *h, const char *name, uint64_t max, uint64_t dflt) {
        const char *v = http1_get(h, name);
        uint64_t n;
        return v && str_to_u64(v, max, &n) == 0 ? n : dflt;
}

static bool type_is(const struct http1_head *h, const char *type) {
        const char *v = http1_get(h, "Content-Type");
        return v && str_case_eq_n(v, strcspn(v, "; "), type);
}

void rpc_dispatch(struct agent *a, struct http_x *x, const struct rpc_method *method) {
        const struct http1_head *h = http_x_head(x);
        if (!str_eq(h->method, "POST")) {
                api_fail_e2b(x, 405, "%s is not allowed here; use POST", h->method);
                return;
        }
        if (!type_is(h, method->stream ? "application/connect+json" : "application/json")) {
                api_fail_e2b(x, 415, "Content-Type must be %s",
                             method->stream ? "application/connect+json" : "application/json");
                return;
        }
        struct rpc *r = calloc(1, sizeof *r);
        if (!r) {
                api_fail_e2b(x, 500, "out of memory");
                return;
        }
        r->a = a;
        r->x = x;
        r->method = method;
        if (read_user(h, r->user) < 0) {
                free(r);
                api_fail_e2b(x, 401, "the Authorization header is not valid");
                return;
        }
        r->timeout_ms = read_number(h, "Connect-Timeout-Ms", TIMEOUT_MAX_MS, 0);
        r->keepalive_ms = read_number(h, "Keepalive-Ping-Interval", 86400, KEEPALIVE_DEFAULT_S) * 1000;
        if (r->keepalive_ms < KEEPALIVE_MIN_S * 1000)
                r->keepalive_ms = KEEPALIVE_MIN_S * 1000;
        (void) api_collect(x, LIMIT_JSON_BODY, on_body, drop, r);
}
