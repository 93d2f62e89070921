/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * HTTP API: one table of routes, one table of error codes, JSON replies. A request is
 * authenticated, matched, its body collected and parsed as its route says, and handed to the
 * route's handler on the loop. The handler may answer at once or keep a reference and answer
 * later; when the client has gone, answers go nowhere and on_gone tells.
 *
 * Two families of routes share this: the native API (/v1/..., errors
 * {"error":{"code","message","details"?}}, unknown members of a body refused) and the E2B routes
 * (errors {"code":<status>,"message"}, unknown members ignored).
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <jansson.h>

#include "base/error.h"
#include "io/http_server.h"

struct app;
struct key;
struct api;

/* code, HTTP status, text. Codes are stable: clients test them. */
#define API_CODES(X)                                                                       \
        X(INTERNAL, "internal", 500)                                                       \
        X(BAD_REQUEST, "bad_request", 400)                /* malformed HTTP, JSON, query */ \
        X(INVALID_ARGUMENT, "invalid_argument", 400)      /* a member or parameter is wrong */ \
        X(UNAUTHENTICATED, "unauthenticated", 401)                                         \
        X(FORBIDDEN, "forbidden", 403)                                                     \
        X(NOT_FOUND, "not_found", 404)                    /* no such route, process, path */ \
        X(SANDBOX_NOT_FOUND, "sandbox_not_found", 404)                                     \
        X(TEMPLATE_NOT_FOUND, "template_not_found", 404)                                   \
        X(OPERATION_NOT_FOUND, "operation_not_found", 404)                                 \
        X(KEY_NOT_FOUND, "key_not_found", 404)                                             \
        X(CREDENTIAL_NOT_FOUND, "credential_not_found", 404)                               \
        X(BINDING_NOT_FOUND, "binding_not_found", 404)                                     \
        X(CHECKPOINT_NOT_FOUND, "checkpoint_not_found", 404)                               \
        X(PROCESS_NOT_FOUND, "process_not_found", 404)                                     \
        X(METHOD_NOT_ALLOWED, "method_not_allowed", 405)                                   \
        X(CONFLICT, "conflict", 409)                                                       \
        X(NAME_TAKEN, "name_taken", 409)                                                   \
        X(SANDBOX_NOT_RUNNING, "sandbox_not_running", 409)                                 \
        X(TEMPLATE_IN_USE, "template_in_use", 409)                                         \
        X(BUILD_RUNNING, "build_running", 409)                                             \
        X(CANCELED, "canceled", 409)                      /* undone by a later request */   \
        X(IDEMPOTENCY_IN_PROGRESS, "idempotency_in_progress", 409)                         \
        X(IDEMPOTENCY_MISMATCH, "idempotency_mismatch", 422)                               \
        X(BODY_TOO_LARGE, "body_too_large", 413)                                           \
        X(UNSUPPORTED_MEDIA_TYPE, "unsupported_media_type", 415)                           \
        X(UPGRADE_REQUIRED, "upgrade_required", 426)                                       \
        X(TOO_MANY, "too_many", 429)                      /* a limit on a count was reached */ \
        X(FILESYSTEM_UNREADABLE, "filesystem_unreadable", 422) /* the sandbox's own: damaged, or not ext4 */ \
        X(HISTORY_LIMIT, "history_limit", 422)            /* a limit on what may be read of it */ \
        X(HISTORY_FAILED, "history_failed", 500)          /* its answer was cut off */ \
        X(BUILD_FAILED, "build_failed", 500)                                               \
        X(CREATE_FAILED, "create_failed", 500)                                             \
        X(CHANGE_FAILED, "change_failed", 500)            /* pause, resume, ... did not come about */ \
        X(INTERRUPTED, "interrupted", 500)                /* cut off by a restart */        \
        X(GUEST_UNREACHABLE, "guest_unreachable", 502)    /* warden or agent do not answer */ \
        X(GUEST_PROTOCOL, "guest_protocol", 502)          /* the agent answered nonsense */ \
        X(UNAVAILABLE, "unavailable", 503)                /* cspace-rootd not reachable, stopping */ \
        X(GATEWAY_REFUSED, "gateway_refused", 502)        /* the sandbox's gateway refused its configuration */ \
        X(GATEWAY_TIMEOUT, "gateway_timeout", 504)        /* it does not answer; what was stored it gets later */ \
        X(CREDENTIAL_FAILED, "credential_failed", 502)    /* there is no new token; one of before stays */ \
        X(GUEST_TIMEOUT, "guest_timeout", 504)                                             \
        X(STORAGE_FULL, "storage_full", 507)

enum api_code {
#define X(id, name, status) API_##id,
        API_CODES(X)
#undef X
        API_CODE_MAX_,
};
const char *api_code_name(enum api_code c);
int api_code_status(enum api_code c);
enum api_code api_code_from_name(const char *s); /* API_INTERNAL if none */
/* The best code for a negative errno from storage and ipc: -ENOSPC, -ENOTCONN, ... */
enum api_code api_code_from_errno(int err);

#define API_PARAMS_MAX 4
#define API_WAIT_MAX_S 600

struct api_req;

enum api_body {
        API_BODY_NONE,   /* a body is read and ignored */
        API_BODY_JSON,   /* an object, or nothing: req->body is NULL then */
        API_BODY_STREAM, /* the handler takes the exchange with api_take() and reads itself */
};

#define API_FLAG_PUBLIC 0x1 /* no authentication */
#define API_FLAG_E2B 0x2    /* E2B error bodies */
#define API_FLAG_TOKEN 0x4  /* handler checks a token of its own when there is no key (req->authed) */
#define API_FLAG_IDEM 0x8   /* honours Idempotency-Key */
#define API_FLAG_SETTLED 0x10 /* not before the states of sandboxes are known to be true (settle.h); no STREAM. With a parameter, and no GET:
                               * of a sandbox */

struct api_route {
        const char *method;
        const char *path; /* "/v1/sandboxes/{id}/files"; {x} matches one non-empty segment */
        void (*handler)(struct api_req *r);
        enum api_body body;
        unsigned flags;
};

struct api_req {
        struct app *app;
        struct http_x *x; /* NULL once answered, taken or aborted */
        const struct api_route *route;
        const char *params[API_PARAMS_MAX]; /* decoded, in the order of the path */
        json_t *body;
        char body_hash[65]; /* SHA-256 of method, target and body, for idempotency; API_FLAG_IDEM only */
        bool authed;        /* by key or trusted connection */
        const struct key *key; /* NULL for trusted connections; valid only until the handler returns */
        const char *owner;  /* key id, or "" */
        char *idem_scope;   /* idem.c */
        /* Set by a handler that waits: told once if the client leaves before the answer. */
        void (*on_gone)(void *arg);
        void *gone_arg;
};
struct api_req *api_req_ref(struct api_req *r);
void api_req_unref(struct api_req *r);

int api_new(struct app *app, struct api **ret, struct error *err);
void api_free(struct api *a);
/* Adds a table (it must outlive the api); -EEXIST when a route is there twice. Earlier tables, and
 * earlier rows of one, win: "/a/b" stands before "/a/{x}". */
int api_add_routes(struct api *a, const struct api_route *routes, size_t n, struct error *err);
/* Called for each request before the routes: true takes the exchange (sandbox traffic). */
void api_set_router(struct api *a, bool (*fn)(struct app *app, struct http_x *x));
/* Where connections come in; limits of each are its own. */
enum api_listener { API_UNIX, API_TCP, API_LISTENERS };
struct http_server *api_http(struct api *a, enum api_listener from);
void api_print_routes(const struct api *a); /* "METHOD PATH" lines */

/* Answers; each ends the exchange. body is taken. Nothing happens if the client has gone. */
void api_reply(struct api_req *r, int status, json_t *body);
void api_reply_h(struct api_req *r, int status, const struct http_header *h, size_t nh, json_t *body);
void api_reply_empty(struct api_req *r, int status);
/* A callback of what removes something: answers arg, a reference to a request, with 204 or the error, and drops it. */
void api_removed(void *arg, int err, const struct error *e);
void api_reply_raw(struct api_req *r, int status, const char *content_type, const void *data, size_t n);
void api_error(struct api_req *r, enum api_code code, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
void api_error_err(struct api_req *r, enum api_code code, const struct error *e);
/* With "details" (taken) in native bodies. */
void api_error_details(struct api_req *r, enum api_code code, json_t *details, const char *fmt, ...)
        __attribute__((format(printf, 4, 5)));
json_t *api_error_json(enum api_code code, const char *message); /* {"code","message"} */
/* An error with a status that is not in the table, for E2B routes. */
void api_error_status(struct api_req *r, int status, const char *fmt, ...) __attribute__((format(printf, 3, 4)));

/* The exchange without the api's handling: the caller sets its ops. r->x is NULL then. */
struct http_x *api_take(struct api_req *r);
/* Undoes that, for who has read the body: the api's handling is back, r can be answered. */
void api_give_back(struct api_req *r, struct http_x *x);

/* Answers 101 and takes the connection out of HTTP. On an error r->x may still be there. */
int api_upgrade(struct api_req *r, const struct http_header *h, size_t nh, struct stream **ret);

/* Query parameters, decoded. 1 found, 0 not there, <0 error (already answered). str is malloc'd. */
int api_query_str(struct api_req *r, const char *key, size_t max, char **ret);
int api_query_u64(struct api_req *r, const char *key, uint64_t min, uint64_t max, uint64_t *ret);
/* ?wait=SECONDS in ms, 0 when not there; -EINVAL (answered) when wrong. */
int api_query_wait(struct api_req *r, uint64_t *ret_ms);
const char *api_header(const struct api_req *r, const char *name); /* NULL none */
