/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * Strict HTTP/1.1 codec (RFC 9110, RFC 9112), sans-I/O: the only HTTP parser of the project, used
 * by API, agent and (later) gateway, so that there is no second opinion about framing.
 *
 * Refused, always with a reason text and the status to answer: bare CR or LF, obs-fold, NUL or
 * control bytes, white space before the colon, both Content-Length and Transfer-Encoding, several
 * or signed Content-Length values, any transfer coding but a single "chunked", chunk extensions
 * over HTTP1_CHUNK_EXT_MAX, a missing or doubled Host in HTTP/1.1, HTTP versions other than 1.0
 * and 1.1, heads over LIMIT_HTTP_HEAD or LIMIT_HTTP_HEADERS. Trailers are checked like fields of
 * the head, count against the same limits, and are dropped.
 *
 * The events do not depend on how the input is cut into pieces.
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/limits.h"

#define HTTP1_CHUNK_EXT_MAX 256                /* of one chunk */
#define HTTP1_CHUNK_EXT_TOTAL (64u * 1024)     /* of one message */
#define HTTP1_EMPTY_LINES_MAX 4                /* before a request line (RFC 9112, 2.2) */

struct http1_field {
        const char *name, *value; /* NUL-terminated, trimmed; name as sent */
};

/* A parsed head. All strings live in one block owned by the parser, valid until the next message
 * starts or the parser is freed. */
struct http1_head {
        bool is_request;
        int minor;                /* 0 or 1 */
        const char *method;       /* request */
        const char *target;       /* request: as sent */
        int status;               /* response */
        const char *reason;       /* response */
        struct http1_field *fields;
        size_t n_fields;
        int64_t content_length;   /* -1 none given */
        bool chunked;
        bool keep_alive;          /* what the message itself allows */
        bool upgrade;             /* Connection: upgrade and an Upgrade field are there */
        bool expect_continue;
};

/* First value of a field by name (ASCII case-insensitive), or NULL. */
const char *http1_get(const struct http1_head *h, const char *name);
/* Whether a comma-separated list field contains token (case-insensitive). */
bool http1_has_token(const struct http1_head *h, const char *name, const char *token);

enum http1_event_type {
        HTTP1_NEED_DATA, /* all input consumed */
        HTTP1_HEAD,      /* ev.head; for a response, call http1_parser_no_body() now if it has none */
        HTTP1_BODY,      /* ev.data, ev.n: borrowed from the input */
        HTTP1_END,       /* message complete; the next call starts the next one */
        HTTP1_ERROR,     /* ev.status to answer, ev.reason; the parser is dead */
};

struct http1_event {
        enum http1_event_type type;
        const struct http1_head *head;
        const uint8_t *data;
        size_t n;
        int status;
        const char *reason;
};

enum http1_role { HTTP1_REQUESTS, HTTP1_RESPONSES };

struct http1_parser;
struct http1_parser *http1_parser_new(enum http1_role role); /* NULL: no memory */
void http1_parser_free(struct http1_parser *p);

/* Consumes from data; *used says how much. Call again with the rest until HTTP1_NEED_DATA. After
 * HTTP1_END it stops, so that bytes of an upgraded protocol or a pipelined request stay with the
 * caller. */
void http1_parse(struct http1_parser *p, const uint8_t *data, size_t n, size_t *used, struct http1_event *ev);
/* The response just seen has no body whatever its fields say (HEAD, 1xx, 204, 304, CONNECT 2xx). */
void http1_parser_no_body(struct http1_parser *p);
/* End of input: 0 when it falls between messages or ends a read-until-close body (then the next
 * http1_parse() with n == 0 gives HTTP1_END), else -EPROTO: the message was cut short. */
int http1_parser_eof(struct http1_parser *p);

/* Writers. Names and values are checked; -EINVAL for bytes that would break framing. */
int http1_write_request(struct buf *out, const char *method, const char *target);
int http1_write_status(struct buf *out, int status);
int http1_write_field(struct buf *out, const char *name, const char *value);
int http1_write_end_of_head(struct buf *out);
int http1_write_chunk(struct buf *out, const void *data, size_t n); /* n == 0 writes nothing */
int http1_write_last_chunk(struct buf *out);

const char *http1_reason(int status); /* "Not Found"; "Unknown" for others */

/* Token and field-value syntax (RFC 9110, 5.6.2 and 5.5), for those who make fields of their own. */
bool http1_is_token(const char *s, size_t n);
bool http1_is_value(const char *s, size_t n);

/* Target helpers; the result is appended to out. Percent-decodes path or query value; -EINVAL on
 * bad escapes or NUL. */
int http1_path_of(const char *target, struct buf *out); /* undecoded path, without query */
int http1_query_get(const char *target, const char *key, struct buf *out); /* 1 found, 0 not, <0 */
int http1_percent_decode(const char *s, size_t n, bool plus_is_space, struct buf *out);
