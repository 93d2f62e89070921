/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * One connection of the guest, from accept to its end: what it was opened to, what it speaks, what the
 * policy says to both, and then either HTTP (http.h) or bytes (relay.h). What is refused is reset at once.
 */

#include "gateway.h"

#define CONN_DETECT_MS 30000    /* for the first bytes, where they decide; of TLS for the whole ClientHello */
#define CONN_DETECT_TCP_MS 300  /* the same, where silence means a protocol in which the server speaks first */
#define CONN_FIRST_MAX (18u * 1024) /* read before the verdict: a ClientHello */
#define CONN_TLS_MS 30000       /* handshake with the guest */

/* Takes fd, a connection that the guest's namespace redirected to the gateway. */
void conn_accept(struct gateway *gw, int fd);
/* The policy has changed: every connection is judged again, and what is not allowed any more is reset. */
void conn_reconsider_all(struct gateway *gw);
void conn_abort_all(struct gateway *gw);
