/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * WebSocket (RFC 6455) over a stream that has left HTTP: server side after http_x_upgrade(), client
 * side after http_call_upgrade(). Frames are libwslay's; fragments are joined, pings answered, text
 * checked to be UTF-8, extensions never agreed to.
 *
 * Callbacks come from the loop only; websocket_free() may be called in any of them. A part of its
 * own in the build (iows_dep): it needs libwslay and libcrypto, which not every program has.
 */

#include "io/http_server.h"
#include "io/stream.h"

#define WEBSOCKET_MESSAGE_MAX (1024u * 1024) /* usual limit of one message; over it: close 1009 */
#define WEBSOCKET_CLOSE_MS 5000              /* for the peer to answer a close */
#define WEBSOCKET_REASON_MAX 123
#define WEBSOCKET_KEY_SIZE 25                /* base64 of 16 bytes, with the NUL */
#define WEBSOCKET_ACCEPT_SIZE 29             /* base64 of 20 bytes, with the NUL */

enum websocket_role { WEBSOCKET_SERVER, WEBSOCKET_CLIENT };
enum websocket_type { WEBSOCKET_TEXT, WEBSOCKET_BINARY };

enum websocket_code {
        WEBSOCKET_NORMAL = 1000,
        WEBSOCKET_GOING_AWAY = 1001,
        WEBSOCKET_PROTOCOL_ERROR = 1002,
        WEBSOCKET_UNSUPPORTED = 1003,
        WEBSOCKET_NO_CODE = 1005,  /* the peer's close had none; never sent */
        WEBSOCKET_ABNORMAL = 1006, /* the connection was lost without a close; never sent */
        WEBSOCKET_BAD_DATA = 1007,
        WEBSOCKET_POLICY = 1008,
        WEBSOCKET_TOO_BIG = 1009,
        WEBSOCKET_INTERNAL = 1011,
};

struct websocket;

struct websocket_handler {
        void (*on_message)(void *arg, enum websocket_type type, const uint8_t *data, size_t n);
        void (*on_drain)(void *arg); /* may be NULL */
        /* The last callback: what the peer closed with, or WEBSOCKET_ABNORMAL, or the code with which
         * this side ended it because of what the peer sent. reason is valid UTF-8. Owner frees. */
        void (*on_close)(void *arg, int code, const char *reason);
};

/* --- handshake, server ------------------------------------------------------------------ */

/* Whether the request is a valid opening handshake (RFC 6455, 4.2.1): 0, or the status to refuse it
 * with (400; 426, which also needs "Sec-WebSocket-Version: 13") and *reason. The Origin is not
 * judged here. */
int websocket_check_request(const struct http1_head *h, const char **reason);
/* Answers 101 (with Sec-WebSocket-Protocol unless protocol is NULL) and takes the connection; the
 * exchange's on_done is called before this returns. On failure nothing was sent. */
int websocket_accept(uv_loop_t *loop, struct http_x *x, const char *protocol, size_t max_message,
                     const struct websocket_handler *h, void *arg, struct websocket **ret, struct error *err);
/* Sec-WebSocket-Accept for a key. 0 or negative errno. */
int websocket_accept_value(const char *key, char out[WEBSOCKET_ACCEPT_SIZE]);

/* --- handshake, client ------------------------------------------------------------------ */

/* Send this as Sec-WebSocket-Key, with "Upgrade: websocket", "Connection: Upgrade" and
 * "Sec-WebSocket-Version: 13". */
int websocket_new_key(char out[WEBSOCKET_KEY_SIZE]);
/* Checks the answer with status 101; then give http_call_upgrade()'s stream to websocket_new(). */
int websocket_check_answer(const struct http1_head *h, const char *key, struct error *err);

/* --- connection ------------------------------------------------------------------------- */

/* Takes s (closed on failure too). */
int websocket_new(uv_loop_t *loop, enum websocket_role role, struct stream *s, size_t max_message,
                  const struct websocket_handler *h, void *arg, struct websocket **ret, struct error *err);
/* Pings the peer every ms and gives up (WEBSOCKET_ABNORMAL) on one that lets two pings pass without
 * sending anything while reading is not paused; 0 turns it off. */
void websocket_keepalive(struct websocket *w, unsigned ms);
/* 0, -ENOBUFS (wait for on_drain; nothing was queued), -EPIPE after a close, -ENOMEM. The message is
 * the two pieces a and b one after the other. */
int websocket_send(struct websocket *w, enum websocket_type type, const void *a, size_t an, const void *b,
                   size_t bn);
int websocket_ping(struct websocket *w);
size_t websocket_queued(const struct websocket *w);
void websocket_read_pause(struct websocket *w); /* no on_message until websocket_read_resume() */
void websocket_read_resume(struct websocket *w);
/* Sends a close; on_close comes when the peer has answered, or after WEBSOCKET_CLOSE_MS. Messages
 * that were on their way still arrive. The reason is cut to WEBSOCKET_REASON_MAX bytes. */
void websocket_close(struct websocket *w, int code, const char *reason);
/* Drops the connection after what is queued, without a close; NULL is fine. */
void websocket_free(struct websocket *w);
