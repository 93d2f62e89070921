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
 * opens and closes. Whenever the guest sees it open it forgets all earlier state and sends a
 * hello; the host answers with one, and then HTTP/2 begins with the client preface:
 *
 *   hello   LINK_MAGIC (16 bytes) | version u16 be | kind u16 be | 12 bytes of nonce
 *
 * The guest chooses the nonce, the host repeats it. No byte of version, kind and nonce but the
 * first is NUL, so that a hello which was cut off by the end of a session and runs into the magic
 * of the next one is not taken for a whole one. Each side skips up to
 * LINK_SKIP_MAX bytes of what earlier sessions left in the port's buffers until it finds what it
 * waits for: the host any guest's hello, the guest the answer to its own nonce, so that an answer to
 * an earlier hello is skipped too. A host that has answered and then sees another hello instead of
 * frames answers that one (or ends the session, when it has already opened streams). So both are in step after a boot, a restore and a restart of the warden
 * alike. A host that gets no hello (the guest missed a close and open in quick succession) closes,
 * waits and connects again.
 *
 * End of a session in agreement, so that the guest can be stopped and saved in the middle of nothing:
 *
 *   host                              guest
 *   GOAWAY (no error), its last byte
 *                                     forgets the session; PARTED with the session's nonce, its last byte
 *   sends end of stream               waits until the port is closed, or something comes
 *   the machine closes: over
 *
 * PARTED has the shape of a hello. What a guest still had to send may be cut off before it, so the host skips up to
 * LINK_PART_SKIP_MAX bytes. The machine (QEMU) answers the host's end of stream by closing, so that nothing of the
 * connection is left in it when that is seen. The guest keeps the port open. When it is stopped at once and goes on with
 * another host, it may have missed that it was closed in between; so a host begins with a KNOCK (a hello's shape, too), and
 * a guest that has parted says hello when it finds that something has come. To all others it is noise before
 * the answer. A guest that can do this says so by LINK_SETTING_PARTS in its SETTINGS.
 *
 * Memory. A stream starts with the window LINK_WINDOW_FIRST and grows to LINK_WINDOW while its
 * reader keeps up; the windows of all streams together stay below LINK_WINDOW_SESSION, which is
 * the session's own window: so what a peer can make this end hold is bounded by it, and a stalled
 * reader never holds up another stream.
 */

#include "io/stream.h"

#define LINK_VERSION 1
#define LINK_MAGIC "\x00\xff" "cspace-link\r\n\x1a" /* 16 bytes, the first a NUL */
#define LINK_HELLO_SIZE 32
#define LINK_KIND_GUEST 0x6701
#define LINK_KIND_ANSWER 0x6802
#define LINK_KIND_KNOCK 0x6b03
#define LINK_KIND_PARTED 0x7004
#define LINK_SETTING_PARTS 0xf0c5
#define LINK_SKIP_MAX (4u * 1024 * 1024)
#define LINK_PART_SKIP_MAX (8u * 1024 * 1024) /* the port's ring holds 4 MiB */
#define LINK_WINDOW_FIRST 65535
#define LINK_WINDOW (1024 * 1024)
#define LINK_WINDOW_SESSION (96 * 1024 * 1024)
#define LINK_AUTHORITY_MAX 255
#define LINK_OPEN_TIMEOUT_MS 30000 /* to an answer from the peer */
#define LINK_LINGER_MS 30000       /* a closed stream may flush for so long */

enum link_role { LINK_HOST, LINK_GUEST };

struct link;

struct link_handler {
        /* Streams can be opened: host: the guest's hello has been answered; guest: the host's SETTINGS
         * have come. May be NULL. */
        void (*on_ready)(void *arg);
        /* Guest: the host wants `authority`. Answer later with link_accept() or link_refuse(). */
        void (*on_open)(void *arg, struct link *l, int32_t id, const char *authority);
        /* The session ended (transport lost, protocol error, GOAWAY; err 0: as link_part() asked). All its streams have got
         * on_error(-ECONNRESET) before. The owner frees the link. */
        void (*on_close)(void *arg, int err, const char *why);
        /* Guest: the session ended because the host parted, and has been told so. Instead of on_close, with the transport,
         * which is the owner's: nothing comes from it any more but from another host. NULL: on_close. */
        void (*on_parted)(void *arg, struct stream *transport);
};

/* Takes transport (on failure too). No callback comes before the loop runs. */
int link_new(uv_loop_t *loop, enum link_role role, struct stream *transport, const struct link_handler *h,
             void *arg, struct link **ret, struct error *err);
void link_free(struct link *l); /* all streams get on_error(-ECONNRESET); NULL is fine */

/* Host: opens a stream. cb comes once: err 0 and s (owned by the callee), or -ECONNREFUSED (port
 * closed), -EHOSTUNREACH (refused by the agent), -EAGAIN (the agent's limit), -ETIMEDOUT,
 * -ECONNRESET. Returns 0 or a negative errno (then cb is not called): -EAGAIN (LIMIT_LINK_STREAMS
 * reached), -ENOTCONN (not ready), -ENAMETOOLONG. */
typedef void (*link_open_cb)(void *arg, int err, struct stream *s);
int link_open(struct link *l, const char *authority, link_open_cb cb, void *arg);

/* Host: opens a stream without waiting for the answer: what is written goes out behind the request.
 * A refusal is on_error with the errno of link_open_cb. Saves a turn of the guest where the
 * answer is known ("control", AGENT_PORT). */
int link_open_early(struct link *l, const char *authority, struct stream **ret);

/* Guest: answers on_open. accept gives the stream in *ret; -ECONNRESET when the host has given up
 * in the meantime. */
int link_accept(struct link *l, int32_t id, struct stream **ret);
void link_refuse(struct link *l, int32_t id, int status /* 502 port closed, 403, 404, 503 limit */);

/* Host: ends the session in agreement with the guest. All streams get on_error(-ECONNRESET) at once; on_close comes
 * later, with err 0 when the guest has forgotten the session and the machine has closed the transport. There is no time limit.
 * -ENOTSUP: the guest cannot, and the session goes on. After any other error the link is to be freed. */
int link_part(struct link *l);

bool link_ready(const struct link *l);
/* Bytes moved so far, for statistics. */
void link_counters(const struct link *l, uint64_t *ret_in, uint64_t *ret_out);
size_t link_streams(const struct link *l);

/* Sends a PING unless one is unanswered. */
int link_ping(struct link *l);
/* For how long a PING has been unanswered; 0 when none is. */
uint64_t link_ping_age_ms(const struct link *l);
