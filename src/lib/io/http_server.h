/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * HTTP/1.1 server (RFC 9112) over any stream: the API of cspaced and the service inside the guest
 * use this one. Keep-alive and pipelining are handled here (a pipelined request is parsed after
 * the answer to the one before it has ended); framing is the strict parser of wire/http1.h.
 *
 * Life of an exchange: on_request (head complete) -> the handler sets ops, then body pieces and
 * on_end arrive, interleaved freely with the answer. The exchange is freed by the server after
 * both request and answer are complete, or after on_abort; the handler gets exactly one of
 * `on_done` and `on_abort` as the last callback (also when it called http_x_abort() itself).
 */

#include "io/stream.h"
#include "wire/http1.h"

struct http_x; /* one exchange */

struct http_x_ops {
        void (*on_body)(void *arg, const uint8_t *data, size_t n); /* NULL: body is discarded */
        void (*on_end)(void *arg);                                 /* request complete */
        void (*on_drain)(void *arg); /* http_x_queued() fell below STREAM_LOW_WATER */
        void (*on_abort)(void *arg); /* peer lost, protocol error, server freed: free your state */
        void (*on_done)(void *arg);  /* answer sent and request read: free your state */
};

struct http_server_config {
        void (*on_request)(void *arg, struct http_x *x);
        void *arg;
        unsigned idle_timeout_ms;  /* keep-alive connection without a request; 0: none */
        unsigned head_timeout_ms;  /* from first byte to complete head; 0: none */
        size_t max_connections;    /* further ones get 503 and are closed; 0: none */
};

struct http_server;
int http_server_new(uv_loop_t *loop, const struct http_server_config *cfg, struct http_server **ret,
                    struct error *err);
/* Hands a connection to the server; tag is given back by http_x_conn_tag() (e.g. "trusted"). */
int http_server_add(struct http_server *s, struct stream *conn, void *tag);
void http_server_free(struct http_server *s); /* aborts all */

const struct http1_head *http_x_head(const struct http_x *x); /* valid until the exchange ends */
void *http_x_conn_tag(const struct http_x *x);
void http_x_set_ops(struct http_x *x, const struct http_x_ops *ops, void *arg);
void http_x_read_pause(struct http_x *x);  /* hold the request body back */
void http_x_read_resume(struct http_x *x);

struct http_header {
        const char *name, *value;
};

/* The whole answer at once. body may be NULL. Content-Length is set here. */
int http_x_respond(struct http_x *x, int status, const struct http_header *h, size_t nh, const void *body,
                   size_t n);
/* Answer in pieces: content_length < 0 means chunked. 100-continue is sent by the server itself
 * when the handler resumes or leaves reading on. */
int http_x_start(struct http_x *x, int status, const struct http_header *h, size_t nh, int64_t content_length);
int http_x_write(struct http_x *x, const void *data, size_t n);
int http_x_end(struct http_x *x);
size_t http_x_queued(const struct http_x *x);
bool http_x_started(const struct http_x *x); /* the head of the answer is out */
/* Breaks the connection off without a proper end: the peer must see an error. */
void http_x_abort(struct http_x *x);

/* Sends the 101 (or, for a CONNECT, 200) head and takes the connection out of HTTP; bytes already
 * received after the head are delivered first. on_done is called before this returns. */
int http_x_upgrade(struct http_x *x, int status, const struct http_header *h, size_t nh, struct stream **ret);
