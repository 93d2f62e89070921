/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * The one stream between host and guest (docs/architecture.md, "Guest stream"): HTTP/2 (RFC 9113,
 * libnghttp2 at both ends) as a multiplexer. Each stream is a CONNECT whose :authority names what
 * to reach, then raw bytes both ways under HTTP/2's flow control:
 *
 *   "control"        the agent's control service; only the warden itself opens it
 *   "127.0.0.1:N"    port N on the guest's loopback; AGENT_PORT is answered by the agent directly
 *
 * Start of a session. The transport is a virtio port, which tells the guest when the host end
 * opens and closes. Whenever the guest sees it open it forgets all earlier state and sends the
 * hello: LINK_MAGIC (16 bytes), version u16 be, flags u16 be, 12 bytes of nonce. The host end, on
 * connecting, skips up to LINK_SKIP_MAX bytes of what an earlier session left until it finds
 * the magic, then sends the HTTP/2 client preface, and both are in step: after a boot, a restore
 * and a restart of the warden alike.
 */

#include "io/stream.h"

#define LINK_VERSION 1
#define LINK_MAGIC "\x00\xff" "cspace-link\r\n\x1a" /* 16 bytes, the first a NUL */
#define LINK_HELLO_SIZE 32
#define LINK_SKIP_MAX (4u * 1024 * 1024)
#define LINK_WINDOW (1024 * 1024) /* per-stream receive window */

enum link_role { LINK_HOST, LINK_GUEST };

struct link;

struct link_handler {
        /* Handshake complete. */
        void (*on_ready)(void *arg);
        /* Guest: the host wants `authority`. Answer later with link_accept() or link_refuse(). */
        void (*on_open)(void *arg, struct link *l, int32_t id, const char *authority);
        /* The session ended (transport lost, protocol error, GOAWAY). All its streams have got
         * on_error(-ECONNRESET) before. The owner frees the link. */
        void (*on_close)(void *arg, int err, const char *why);
};

/* Takes transport. */
int link_new(uv_loop_t *loop, enum link_role role, struct stream *transport, const struct link_handler *h,
             void *arg, struct link **ret, struct error *err);
void link_free(struct link *l); /* all streams get on_error(-ECONNRESET); NULL is fine */

/* Host: opens a stream. cb comes once: err 0 and s (owned by the callee), or -ECONNREFUSED (port
 * closed), -EHOSTUNREACH (refused by the agent), -EAGAIN (LIMIT_LINK_STREAMS reached),
 * -ECONNRESET. Returns 0 or a negative errno (then cb is not called). */
typedef void (*link_open_cb)(void *arg, int err, struct stream *s);
int link_open(struct link *l, const char *authority, link_open_cb cb, void *arg);

/* Guest: answers on_open. accept gives the stream in *ret. */
int link_accept(struct link *l, int32_t id, struct stream **ret);
void link_refuse(struct link *l, int32_t id, int status /* 502 port closed, 403, 404 */);

bool link_ready(const struct link *l);
/* Bytes moved so far, for statistics. */
void link_counters(const struct link *l, uint64_t *ret_in, uint64_t *ret_out);
