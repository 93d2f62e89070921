/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * One Connect call (E2B protocol, JSON only): unary or server stream over one HTTP exchange. The
 * handler is called with the parsed request and ends the call exactly once, with rpc_reply(),
 * rpc_finish() or rpc_error(); after that, and after on_gone (the peer went away first), the call
 * must not be touched.
 */

#include "agent.h"
#include "base/buf.h"
#include "base/json.h"
#include "wire/connect.h"

struct rpc;

struct rpc_method {
        const char *name; /* last part of the path */
        bool stream;
        void (*call)(struct rpc *r, json_t *req);
};

struct rpc_ops {
        void (*on_gone)(void *arg);
        void (*on_drain)(void *arg); /* may be NULL */
};

/* Takes over x for a request to `method`. */
void rpc_dispatch(struct agent *a, struct http_x *x, const struct rpc_method *method);

struct agent *rpc_agent(const struct rpc *r);
void rpc_set_ops(struct rpc *r, const struct rpc_ops *ops, void *arg);
const char *rpc_user(const struct rpc *r);         /* from Basic auth; "" when none was named */
uint64_t rpc_timeout_ms(const struct rpc *r);      /* Connect-Timeout-Ms; 0: none */
uint64_t rpc_keepalive_ms(const struct rpc *r);

void rpc_reply(struct rpc *r, json_t *reply);      /* unary; takes reply */
void rpc_reply_text(struct rpc *r, const struct buf *json);
void rpc_send(struct rpc *r, const void *json, size_t n); /* one message of a stream */
size_t rpc_queued(const struct rpc *r);
void rpc_finish(struct rpc *r);
void rpc_error(struct rpc *r, enum connect_code code, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
/* The code that fits a negative errno of a file operation. */
enum connect_code rpc_code_of_errno(int err);

/* Members by proto3 JSON rules: lowerCamelCase or snake_case names, numbers as strings, too. */
json_t *rpc_member(const json_t *obj, const char *camel);
