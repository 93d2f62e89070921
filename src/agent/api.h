/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* What all HTTP handlers of the agent use: answers in both error forms, query values, bodies. */

#include "agent.h"
#include "base/buf.h"
#include "base/json.h"

#define API_HEADERS_MAX 24
struct api_headers {
        struct http_header h[API_HEADERS_MAX];
        size_t n;
};
void api_header(struct api_headers *h, const char *name, const char *value); /* both borrowed */
/* What a browser needs to read an answer from another origin. */
void api_cors(struct api_headers *h);

void api_respond(struct http_x *x, int status, const char *content_type, const void *body, size_t n);
void api_json(struct http_x *x, int status, json_t *body); /* takes body; NULL: 500 */
void api_empty(struct http_x *x, int status);
/* {"code":404,"message":"..."} */
void api_fail_e2b(struct http_x *x, int status, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
/* {"error":{"code":"not_found","message":"..."}} */
void api_fail(struct http_x *x, int status, const char *code, const char *fmt, ...)
        __attribute__((format(printf, 4, 5)));
/* As api_fail() with status and code that fit a negative errno of a file operation. */
void api_fail_errno(struct http_x *x, const struct error *e);
int api_status_of_errno(int err, const char **ret_code);

/* Decoded value of a query key in *ret (malloc'd): 1, 0 when absent, -EINVAL. */
int api_query(struct http_x *x, const char *key, char **ret);

/* Reads the whole request body, at most max bytes, and calls cb with it (borrowed). Larger ones are
 * answered with 413. cb must set the exchange's ops anew or answer. drop(arg) is called instead
 * when the peer went away or the body was too large. */
int api_collect(struct http_x *x, size_t max, void (*cb)(void *arg, struct http_x *x, struct buf *body),
                void (*drop)(void *arg), void *arg);

/* The handler of port 49983; arg is the agent. */
void api_on_request(void *arg, struct http_x *x);
