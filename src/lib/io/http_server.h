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
 *
 * Callbacks come from the loop, never from inside an http_x_* call that the handler makes; only
 * http_x_upgrade() calls on_done, and http_server_free() on_abort, before they return.
 *
 * An answer that ends before its request: what is left of the request is read and dropped up to
 * HTTP_DISCARD_MAX, after that the connection is closed. An end of input from a client that has
 * sent its request whole does not end the exchange (it may have shut down its sending side only).
 */

#include "io/stream.h"
#include "wire/http1.h"

#define HTTP_DISCARD_MAX (1024 * 1024) /* bytes of a request read on after its answer */
#define HTTP_DISCARD_MS 5000
#define HTTP_LINGER_MS 2000 /* reading on after the last answer, so that it is not lost by a reset */

struct http_x; /* one exchange */

struct http_x_ops {
        void (*on_body)(void *arg, const uint8_t *data, size_t n); /* NULL: body is discarded */
        void (*on_end)(void *arg);                                 /* request complete */
        void (*on_drain)(void *arg); /* http_x_queued() fell below STREAM_LOW_WATER */
        void (*on_eof)(void *arg);   /* the peer will send no more, the answer is not complete: it went
                                      * away, or (rarely) only shut its sending side; NULL: go on */
        void (*on_abort)(void *arg); /* peer lost, protocol error, server freed: free your state */
        void (*on_done)(void *arg);  /* answer sent and request read: free your state */
};

struct http_server_config {
        void (*on_request)(void *arg, struct http_x *x);
        void *arg;
        unsigned idle_timeout_ms;  /* keep-alive connection without a request; 0: none */
        unsigned head_timeout_ms;  /* from first byte to complete head, answered by 408; 0: none */
        unsigned body_timeout_ms;  /* no byte of a request body that the handler reads; 0: none */
        unsigned write_timeout_ms; /* no byte of the answer is taken by the peer; 0: none */
        size_t max_connections;    /* further ones get 503 and are closed; 0: none */
        /* Connections of which no request was admitted (http_x_admit()): when so many are there, or
         * max_connections of all kinds, the one of them that waits longest for a request makes way; 0: none */
        size_t max_strangers;
};

struct http_server;
int http_server_new(uv_loop_t *loop, const struct http_server_config *cfg, struct http_server **ret,
                    struct error *err);
/* Hands a connection to the server (closed on failure too); tag is given back by
 * http_x_conn_tag() (e.g. "trusted"). */
int http_server_add(struct http_server *s, struct stream *conn, void *tag);
size_t http_server_connections(const struct http_server *s);
void http_server_free(struct http_server *s); /* aborts all */

const struct http1_head *http_x_head(const struct http_x *x); /* valid until the exchange ends */
void *http_x_conn_tag(const struct http_x *x);
/* The request's sender is known: its connection is no stranger any more. */
void http_x_admit(struct http_x *x);
void http_x_set_ops(struct http_x *x, const struct http_x_ops *ops, void *arg);
void http_x_read_pause(struct http_x *x);  /* hold the request body back */
void http_x_read_resume(struct http_x *x);

struct http_header {
        const char *name, *value;
};

/* The whole answer at once. body may be NULL. Content-Length, Transfer-Encoding and Connection are
 * set here and dropped from h, except that "Connection: close" is obeyed. -EINVAL: a header that
 * would break the framing, or an answer was started before; nothing has been sent then. */
int http_x_respond(struct http_x *x, int status, const struct http_header *h, size_t nh, const void *body,
                   size_t n);
/* Answer in pieces: content_length < 0 means chunked. 100-continue is sent by the server itself
 * when the handler resumes or leaves reading on. */
int http_x_start(struct http_x *x, int status, const struct http_header *h, size_t nh,
                 int64_t content_length);
/* 0, -ENOBUFS (wait for on_drain; nothing was taken), -EMSGSIZE over content_length, -EPIPE when the
 * exchange is lost. The body of an answer that has none (HEAD, 204, 304) is dropped. */
int http_x_write(struct http_x *x, const void *data, size_t n);
/* -EPROTO when content_length was not reached; the connection is broken off then. */
int http_x_end(struct http_x *x);
size_t http_x_queued(const struct http_x *x);
bool http_x_started(const struct http_x *x); /* the head of the answer is out */
/* Breaks the connection off without a proper end: the peer must see an error. */
void http_x_abort(struct http_x *x);

/* Sends the 101 (or, for a CONNECT, 200) head and takes the connection out of HTTP; bytes already
 * received after the head are delivered first. on_done is called before this returns. "Connection:
 * Upgrade" is added here, "Upgrade" is the caller's. On failure the exchange is as it was. */
int http_x_upgrade(struct http_x *x, int status, const struct http_header *h, size_t nh, struct stream **ret);
