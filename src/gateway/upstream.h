/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * Connections to servers that HTTP is spoken on: dialled, for https verified against the host's trust
 * store for exactly the name that the rules allowed, and kept for a while when they can serve again. A
 * kept one is judged by its address again before it is given out, and all go when the policy changes.
 */

#include "dial.h"
#include "gateway.h"
#include "io/stream.h"
#include "wire/http1.h"

#define UPSTREAM_TLS_MS 15000
#define UPSTREAM_IDLE_MAX 32      /* kept in all */
#define UPSTREAM_IDLE_PER_HOST 8
#define UPSTREAM_IDLE_MS 30000

struct upstream {
        TAILQ_ENTRY(upstream) entry;
        struct gateway *gw;
        struct stream *stream;
        struct http1_parser *parser; /* of responses */
        struct host host;
        uint16_t port;
        enum policy_protocol protocol;
        struct address address;
        uint64_t idle_since_ms;
        bool http2;
        bool used;                   /* has served a request */
};

struct upstream_request {
        struct policy_verdict allowed;
        const struct host *host;     /* copied */
        uint16_t port;
        enum policy_protocol protocol; /* POLICY_HTTP or POLICY_TLS */
        bool http2;                    /* over TLS: nothing but HTTP/2 will do */
};

struct upstream_failure {
        enum policy_reason reason;
        struct policy_verdict verdict;
        enum address_class class;
        char address[ADDRESS_TEXT_SIZE]; /* the last one tried, or the one refused */
        char detail[ERROR_MSG_MAX];
};

/* Called once, from the loop: u, which the callee owns, or the failure. */
typedef void (*upstream_cb)(void *arg, struct upstream *u, const struct upstream_failure *f);
struct upstream_opening;
int upstream_open(struct gateway *gw, const struct upstream_request *req, upstream_cb cb, void *arg,
                  struct upstream_opening **ret); /* 0 or -ENOMEM */
void upstream_open_cancel(struct upstream_opening *o); /* NULL is fine */

/* Whether u may serve this request too. */
bool upstream_fits(const struct upstream *u, const struct upstream_request *req);
/* A kept one that fits, or NULL. Its stream has no handler and does not read. */
struct upstream *upstream_take(struct gateway *gw, const struct upstream_request *req);
/* Gives u up: to be used again, or closed. */
void upstream_keep(struct upstream *u);
void upstream_close(struct upstream *u, bool abort); /* NULL is fine */
void upstream_drop_idle(struct gateway *gw);

void upstream_init(struct gateway *gw);
