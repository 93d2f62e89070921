/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * One gateway: what all connections of the sandbox share. It is started by the sandbox's first packet, which waits in a socket:
 * nothing is read from there before the first configuration. Should that not come in GATEWAY_PATIENCE_MS, everything
 * is refused until it does.
 */

#include <openssl/ssl.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/queue.h>
#include <uv.h>

#include "base/id.h"
#include "ca/ca.h"
#include "policy/policy.h"
#include "relay.h"
#include "resolve.h"
#include "trust.h"

#define GATEWAY_PATIENCE_MS 3000     /* below the 5 s after which resolvers ask again */
#define GATEWAY_CONNECTIONS_MAX 4096 /* of one sandbox; a policy may say less */

struct audit_queue;
struct bindings;
struct conn;
struct dns_names;
struct upstream;
struct usage;
TAILQ_HEAD(conn_list, conn);
TAILQ_HEAD(upstream_list, upstream);

struct gateway {
        uv_loop_t *loop;
        char sandbox[ID_SIZE];
        struct trust *trust;
        struct resolver *resolver;
        SSL_CTX *guest_ctx, *upstream_ctx; /* NULL until there is TLS */
        struct relay_pipes pipes;
        struct audit_queue *audit;
        struct usage *usage;

        /* from the configuration */
        bool configured;
        struct ca *ca;
        struct policy *policy;
        struct address_set *own;
        struct bindings *bindings;

        struct dns_names *names;

        struct conn_list conns;
        size_t n_conns;
        struct upstream_list idle; /* upstream connections that wait to be used again, oldest first */
        size_t n_idle;
        uv_timer_t idle_timer;
};

struct gateway_options {
        const char *id;
        const char *trust; /* file of PEM certificates */
        const char *const *resolvers;
        size_t n_resolvers;
};

/* Everything that needs files. On failure gateway_done() and gateway_free() are still due. */
int gateway_init(struct gateway *gw, uv_loop_t *loop, const struct gateway_options *o, struct error *err);
/* Ends all connections; the loop has to run once more before gateway_free(). */
void gateway_done(struct gateway *gw);
void gateway_free(struct gateway *gw);
