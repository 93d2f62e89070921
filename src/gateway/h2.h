/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * HTTP/2 for guests that speak nothing else (gRPC): a server session toward the guest and a client session
 * toward the one server that its connection may reach, with the same judgement of each stream as of each
 * request of HTTP/1.1. A guest that offers HTTP/1.1 too gets that, so nothing is ever translated.
 *
 * Flow control is end to end: what one side has not taken is not credited to the other, so a connection
 * holds at most its two windows.
 */

#include "gateway.h"
#include "http.h"
#include "io/stream.h"

#define H2_STREAMS_MAX 100                /* open at once, of one connection */
#define H2_STREAM_WINDOW (256 * 1024)
#define H2_CONNECTION_WINDOW (1024 * 1024)
#define H2_INTERIM_MAX 16
#define H2_QUEUE_MAX 300                  /* frames and requests that wait to be sent, of either session, bodies aside */

struct h2;
/* Takes guest (also on failure): a TLS stream on which h2 was agreed. on_end is called once, from the loop. */
int h2_new(struct gateway *gw, const struct http_peer *peer, struct stream *guest, void (*on_end)(void *arg), void *arg,
           struct h2 **ret);
void h2_start(struct h2 *h);
/* As http_abort(), http_reconsider(), http_bytes(). */
void h2_abort(struct h2 *h);
void h2_reconsider(struct h2 *h);
void h2_bytes(const struct h2 *h, uint64_t *ret_out, uint64_t *ret_in);
