/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * Attach frames: one command's input, output and control on one duplex stream. Between cspaced and
 * the agent they follow an HTTP upgrade to "cspace-attach"; a client of the native API gets the
 * same frames one per binary WebSocket message, without the length.
 *
 *   +------+-----------------+---------+
 *   | type | length (u32 be) | payload |
 *   +------+-----------------+---------+
 *
 * Output offsets count the bytes of stdout, stderr and pty together, in the order in which the
 * agent read them, from the start of the process. A client acknowledges what it has taken
 * (ATTACH_ACK); the agent keeps what is not acknowledged, up to a limit, and sends it again to a
 * client that attaches with `offset`. Bytes that had to be dropped are announced (ATTACH_GAP),
 * never passed over in silence.
 *
 * Input: STARTED says how many bytes of stdin the agent has received since the process began, so
 * that a client that attaches again sends what was lost on the way, and nothing twice; STDIN_EOF
 * may come again. A window never reaches further than ATTACH_STDIN_AHEAD past what the process has
 * been given, so a client has to keep no more than that.
 */

#include <stdint.h>

#include "base/buf.h"

#define ATTACH_UPGRADE "cspace-attach"
#define ATTACH_HEAD 5
#define ATTACH_PAYLOAD_MAX (256u * 1024)
#define ATTACH_STDIN_AHEAD (1024u * 1024)

enum attach_type {
        /* client to agent */
        ATTACH_STDIN = 0x01,    /* bytes */
        ATTACH_STDIN_EOF = 0x02, /* empty */
        ATTACH_RESIZE = 0x03,   /* cols u16 be, rows u16 be */
        ATTACH_SIGNAL = 0x04,   /* signal number, u8; sent to the whole process tree */
        ATTACH_ACK = 0x05,      /* offset u64 be: all before it has been taken */
        ATTACH_PING = 0x06,     /* empty; answered by ATTACH_PONG */
        /* agent to client */
        ATTACH_STARTED = 0x10,  /* pid u32 be, next offset u64 be, stdin bytes received so far u64 be */
        ATTACH_STDOUT = 0x11,   /* offset u64 be of the first byte, then bytes */
        ATTACH_STDERR = 0x12,
        ATTACH_PTY = 0x13,
        ATTACH_GAP = 0x14,      /* from u64 be, to u64 be: these bytes are lost */
        ATTACH_STDIN_WINDOW = 0x15, /* u64 be: total stdin bytes the client may have sent so far;
                                     * UINT64_MAX: the process has closed its stdin, the rest is dropped */
        ATTACH_EXIT = 0x16,     /* JSON {"exitCode":n,"signal":"SIGKILL"?,"reason":"exited|signaled|timeout|killed"} */
        ATTACH_ERROR = 0x17,    /* JSON {"code":"...","message":"..."}: no exit status is known */
        ATTACH_PONG = 0x18,
};

/* Appends one frame whose payload is the two pieces a and b, one after the other. */
int attach_write(struct buf *out, enum attach_type type, const void *a, size_t an, const void *b, size_t bn);

struct attach_reader {
        struct buf in; /* append received bytes here */
};
/* 1: a frame (borrowed until attach_reader_next()); 0: needs more; -EMSGSIZE: over the limit. */
int attach_reader_peek(struct attach_reader *r, uint8_t *type, const uint8_t **data, size_t *n);
void attach_reader_next(struct attach_reader *r);

static inline void attach_put_u64(uint8_t out[8], uint64_t v) {
        for (int i = 7; i >= 0; i--, v >>= 8)
                out[i] = (uint8_t) v;
}
static inline uint64_t attach_get_u64(const uint8_t in[8]) {
        uint64_t v = 0;
        for (int i = 0; i < 8; i++)
                v = v << 8 | in[i];
        return v;
}
