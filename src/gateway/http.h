/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * HTTP/1.1 between a guest's connection (plain, or inside inspected TLS) and upstream connections. Each
 * request is judged when its head is complete; nothing of it goes out before. Heads are written anew
 * from what the strict parser made of them, bodies pass through, whole streams or chunk by chunk, and
 * whoever is faster is held back.
 */

#include "gateway.h"
#include "io/stream.h"

#define HTTP_PENDING_MAX (1024u * 1024)     /* read from the guest and not yet used */
#define HTTP_PENDING_HIGH (16u * 1024)      /* it is not read from above this */
#define HTTP_INTERIM_MAX 16                 /* 1xx responses before one final one */
#define HTTP_SWALLOW_MAX (256u * 1024)      /* of a refused request's body, to keep the connection */
#define HTTP_HEAD_MS 30000                  /* from the first byte of a head to its last */
#define HTTP_KEEPALIVE_MS (10 * 60 * 1000)  /* between requests */
#define HTTP_EXCHANGE_IDLE_MS (3600 * 1000) /* within an exchange or tunnel, without a byte */
#define HTTP_LINGER_MS 5000                 /* for the guest to take the last answer in */

struct http_peer {
        struct host host;              /* what the connection was opened to */
        uint16_t port;
        enum policy_protocol protocol; /* POLICY_HTTP or POLICY_TLS */
};

struct http;
/* Takes guest (also on failure). `first` was read from it already. on_end is called once, from the loop;
 * everything is closed then. */
int http_new(struct gateway *gw, const struct http_peer *peer, struct stream *guest, const void *first, size_t first_n,
             void (*on_end)(void *arg), void *arg, struct http **ret);
void http_start(struct http *h);
/* Ends all at once with a reset; on_end is not called. NULL is fine. */
void http_abort(struct http *h);
/* The policy has changed: what goes on and is not allowed any more is cut. False: h has ended. */
bool http_reconsider(struct http *h);
/* Bytes from and to the sandbox. */
void http_bytes(const struct http *h, uint64_t *ret_out, uint64_t *ret_in);
