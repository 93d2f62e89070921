/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * Opens a byte stream to a port of a sandbox through its warden's data.sock (docs/architecture.md,
 * "Guest stream"): connects, sends "CONNECT N\n", reads the one status line, and hands over a
 * stream that carries the port's bytes and nothing else. To reach the agent, dial AGENT_PORT.
 */

#include <stdint.h>

#include "io/stream.h"

#define DIAL_TIMEOUT_MS 20000 /* connect and status line together; below what clients wait for an answer */

/*
 * Called once, later. err 0: s belongs to the callee. Else s is NULL and err says which kind:
 *   -ENOENT        no warden listens: the sandbox is not there (any more)
 *   -ECONNREFUSED  nothing listens on the port in the guest
 *   -EAGAIN        the warden has no room for another stream, or its link is not up (yet)
 *   -ETIMEDOUT, -ECONNRESET, -EPROTO and others: the warden did not do its part
 */
typedef void (*dial_cb)(void *arg, int err, struct stream *s);

struct dial;
int dial_open(uv_loop_t *loop, const char *sock_path, uint16_t port, dial_cb cb, void *arg, struct dial **ret,
              struct error *err);
void dial_cancel(struct dial *d); /* before cb was called; NULL is fine */
