/* SPDX-License-Identifier: Apache-2.0 */

/* Answers of the API: codes, bodies in the form of the route's family, query parameters. */

#include "api.h"

#include <assert.h>
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/cleanup.h"
#include "base/json.h"
#include "base/str.h"

static const struct {
        const char *name;
        int status;
} codes[] = {
#define X(id, text, st) [API_##id] = { text, st },
        API_CODES(X)
#undef X
};
static_assert(ARRAY_SIZE(codes) == API_CODE_MAX_);

const char *api_code_name(enum api_code c) {
        return c < API_CODE_MAX_ ? codes[c].name : "internal";
}

int api_code_status(enum api_code c) {
        return c < API_CODE_MAX_ ? codes[c].status : 500;
}

enum api_code api_code_from_name(const char *s) {
        for (size_t i = 0; s && i < ARRAY_SIZE(codes); i++)
                if (strcmp(codes[i].name, s) == 0)
                        return (enum api_code) i;
        return API_INTERNAL;
}

enum api_code api_code_from_errno(int err) {
        switch (err) {
        case -ENOSPC:
        case -EDQUOT:
                return API_STORAGE_FULL;
        case -ENOTCONN:
        case -ENOBUFS:
                return API_UNAVAILABLE;
        case -EINVAL:
        case -ERANGE:
                return API_INVALID_ARGUMENT;
        case -ETIMEDOUT:
                return API_GUEST_TIMEOUT;
        case -EBUSY:
                return API_CONFLICT;
        case -EUSERS:
                return API_TOO_MANY;
        default:
                return API_INTERNAL;
        }
}

/* ---- answers ------------------------------------------------------------------------------- */

static void respond(struct api_req *r, int status, const struct http_header *h, size_t nh, const void *data, size_t n) {
        struct http_x *x = r->x;
        if (!x)
                return;
        /* The answer may end the exchange, and with it the last reference. */
        (void) api_req_ref(r);
        r->x = NULL;
        r->on_gone = NULL;
        if (http_x_respond(x, status, h, nh, data, n) < 0)
                http_x_abort(x);
        api_req_unref(r);
}

void api_reply_h(struct api_req *r, int status, const struct http_header *h, size_t nh, json_t *body) {
        _cleanup_free_ char *text = body ? json_to_str(body) : NULL;
        json_decref(body);
        if (!r->x)
                return;
        struct http_header all[8] = { { "Content-Type", "application/json" } };
        if (!text || nh > ARRAY_SIZE(all) - 1) {
                static const char oom[] = "{\"error\":{\"code\":\"internal\",\"message\":\"out of memory\"}}";
                respond(r, 500, all, 1, oom, sizeof oom - 1);
                return;
        }
        if (nh > 0)
                memcpy(all + 1, h, nh * sizeof *h);
        respond(r, status, all, nh + 1, text, strlen(text));
}

void api_reply(struct api_req *r, int status, json_t *body) {
        api_reply_h(r, status, NULL, 0, body);
}

void api_reply_empty(struct api_req *r, int status) {
        respond(r, status, NULL, 0, NULL, 0);
}

void api_removed(void *arg, int err, const struct error *e) {
        struct api_req *r = arg;
        if (err < 0)
                api_error_err(r, api_code_from_errno(err), e);
        else
                api_reply_empty(r, 204);
        api_req_unref(r);
}

void api_reply_raw(struct api_req *r, int status, const char *content_type, const void *data, size_t n) {
        struct http_header h = { "Content-Type", content_type };
        respond(r, status, &h, 1, data, n);
}

json_t *api_error_json(enum api_code code, const char *message) {
        return json_pack("{s:s, s:s}", "code", api_code_name(code), "message", message);
}

static void reply_error(struct api_req *r, int status, enum api_code code, json_t *details, char *message) {
        str_make_utf8(message); /* it may quote what a client or guest sent */
        json_t *body;
        if (r->route && (r->route->flags & API_FLAG_E2B)) {
                json_decref(details);
                body = json_pack("{s:i, s:s}", "code", status, "message", message);
        } else {
                json_t *e = api_error_json(code, message);
                if (details)
                        (void) json_object_set_new(e, "details", details);
                body = json_pack("{s:o}", "error", e);
        }
        struct http_header h[] = { { "WWW-Authenticate", "Bearer" } };
        api_reply_h(r, status, h, status == 401 ? 1 : 0, body);
}

void api_error(struct api_req *r, enum api_code code, const char *fmt, ...) {
        char message[ERROR_MSG_MAX];
        va_list ap;
        va_start(ap, fmt);
        (void) vsnprintf(message, sizeof message, fmt, ap);
        va_end(ap);
        reply_error(r, api_code_status(code), code, NULL, message);
}

void api_error_err(struct api_req *r, enum api_code code, const struct error *e) {
        api_error(r, code, "%s", e && e->msg[0] ? e->msg : "unknown error");
}

void api_error_details(struct api_req *r, enum api_code code, json_t *details, const char *fmt, ...) {
        char message[ERROR_MSG_MAX];
        va_list ap;
        va_start(ap, fmt);
        (void) vsnprintf(message, sizeof message, fmt, ap);
        va_end(ap);
        reply_error(r, api_code_status(code), code, details, message);
}

void api_error_status(struct api_req *r, int status, const char *fmt, ...) {
        char message[ERROR_MSG_MAX];
        va_list ap;
        va_start(ap, fmt);
        (void) vsnprintf(message, sizeof message, fmt, ap);
        va_end(ap);
        reply_error(r, status, API_INTERNAL, NULL, message);
}

int api_upgrade(struct api_req *r, const struct http_header *h, size_t nh, struct stream **ret) {
        struct http_x *x = r->x;
        if (!x)
                return -EPIPE;
        (void) api_req_ref(r);
        r->on_gone = NULL;
        int rc = http_x_upgrade(x, 101, h, nh, ret); /* on_done or on_abort clears r->x */
        api_req_unref(r);
        return rc;
}

/* ---- request parts ------------------------------------------------------------------------- */

const char *api_header(const struct api_req *r, const char *name) {
        return r->x ? http1_get(http_x_head(r->x), name) : NULL;
}

int api_query_str(struct api_req *r, const char *key, size_t max, char **ret) {
        if (!r->x)
                return -ECONNRESET;
        _cleanup_buf_ struct buf b = BUF_INIT(max);
        int found = http1_query_get(http_x_head(r->x)->target, key, &b);
        if (found == -ENOBUFS) {
                api_error(r, API_INVALID_ARGUMENT, "\"%s\" is longer than %zu bytes", key, max);
                return found;
        }
        if (found < 0) {
                api_error(r, API_BAD_REQUEST, "the query parameter \"%s\" is not properly encoded", key);
                return found;
        }
        if (!found)
                return 0;
        const char *s = buf_str(&b);
        char *copy = s ? strdup(s) : NULL;
        if (!copy) {
                api_error(r, API_INTERNAL, "out of memory");
                return -ENOMEM;
        }
        *ret = copy;
        return 1;
}

int api_query_u64(struct api_req *r, const char *key, uint64_t min, uint64_t max, uint64_t *ret) {
        _cleanup_free_ char *s = NULL;
        uint64_t v;
        int found = api_query_str(r, key, 32, &s);
        if (found <= 0)
                return found;
        if (str_to_u64(s, max, &v) < 0 || v < min) {
                api_error(r, API_INVALID_ARGUMENT, "\"%s\" must be a whole number from %llu to %llu", key,
                          (unsigned long long) min, (unsigned long long) max);
                return -EINVAL;
        }
        *ret = v;
        return 1;
}

int api_query_wait(struct api_req *r, uint64_t *ret_ms) {
        uint64_t s = 0;
        int found = api_query_u64(r, "wait", 0, API_WAIT_MAX_S, &s);
        if (found < 0)
                return found;
        *ret_ms = s * 1000;
        return 0;
}
