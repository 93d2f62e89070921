/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * HTTP/1.1 client over a stream that the caller has opened. One call at a time on a stream.
 * Redirects are never followed, nothing is retried, nothing decompressed: what the server sent is
 * what the caller gets.
 */

#include "io/http_server.h" /* struct http_header */
#include "io/stream.h"
#include "wire/http1.h"

struct http_call;

struct http_call_ops {
        void (*on_head)(void *arg, const struct http1_head *head); /* final status, not 1xx */
        void (*on_body)(void *arg, const uint8_t *data, size_t n);
        void (*on_end)(void *arg);
        void (*on_drain)(void *arg);
        void (*on_error)(void *arg, int err); /* also a body cut short; owner frees the call */
};
/* on_end, on_drain and on_body may be NULL. Callbacks come from the loop only; http_call_free() may
 * be called in any of them. The last one is on_end, on_error, or on_head of an upgrade. Errors:
 * -EPROTO the peer does not speak HTTP/1.1 (http_call_reason() says how), -ECONNRESET it went away
 * before the answer was complete, else what the stream reported. */

#define HTTP_INTERIM_MAX 16 /* 1xx answers before the final one */

/* Takes s (closed on failure too). content_length: 0 no body, > 0 exact, < 0 chunked; framing
 * headers in h are dropped. "Host: localhost" is added when h has no Host. */
int http_call_new(uv_loop_t *loop, struct stream *s, const char *method, const char *target,
                  const struct http_header *h, size_t nh, int64_t content_length,
                  const struct http_call_ops *ops, void *arg, struct http_call **ret, struct error *err);
/* As http_x_write(). -EPIPE also once the answer is complete: the rest is not wanted. */
int http_call_write(struct http_call *c, const void *data, size_t n);
int http_call_end(struct http_call *c);
size_t http_call_queued(const struct http_call *c);
void http_call_read_pause(struct http_call *c);
void http_call_read_resume(struct http_call *c);
const char *http_call_reason(const struct http_call *c); /* after on_error; NULL when errno says it all */
/* After on_head with 101, or with 2xx to CONNECT: takes the stream out; early bytes come first. */
struct stream *http_call_upgrade(struct http_call *c);
/* After on_end: the stream for a next call, or NULL when the connection must close. */
struct stream *http_call_reuse(struct http_call *c);
void http_call_free(struct http_call *c); /* closes the stream unless taken out; NULL is fine */
