/* SPDX-License-Identifier: Apache-2.0 */
#include "gateway.h"

#include <errno.h>
#include <string.h>
#include <sys/socket.h>

#include "audit_queue.h"
#include "base/fd.h"
#include "base/str.h"
#include "conn.h"
#include "dns/dns_names.h"
#include "policy/binding.h"
#include "upstream.h"
#include "usage.h"

int gateway_init(struct gateway *gw, uv_loop_t *loop, const struct gateway_options *o, struct error *err) {
        uint64_t seed;
        memset(gw, 0, sizeof *gw);
        gw->loop = loop;
        (void) str_copy(gw->sandbox, sizeof gw->sandbox, o->id);
        TAILQ_INIT(&gw->conns);
        gw->audit = audit_queue_new();
        gw->usage = usage_new(loop);
        if (!gw->audit || !gw->usage || random_bytes(&seed, sizeof seed) < 0 ||
            dns_names_new(seed, DNS_NAMES_MAX, &gw->names) < 0 || bindings_new(&gw->bindings) < 0)
                return error_set(err, -ENOMEM, "out of memory");
        int r = trust_load(o->trust, &gw->trust, err);
        if (r == 0)
                r = resolver_new(loop, o->resolvers, o->n_resolvers, &gw->resolver, err);
        upstream_init(gw);
        return r;
}

void gateway_done(struct gateway *gw) {
        conn_abort_all(gw);
        upstream_drop_idle(gw);
        resolver_free(gw->resolver);
        relay_pipes_done(&gw->pipes);
        uv_close((uv_handle_t *) &gw->idle_timer, NULL);
}

void gateway_free(struct gateway *gw) {
        SSL_CTX_free(gw->guest_ctx);
        SSL_CTX_free(gw->upstream_ctx);
        trust_free(gw->trust);
        ca_free(gw->ca);
        policy_unref(gw->policy);
        address_set_free(gw->own);
        dns_names_free(gw->names);
        bindings_free(gw->bindings);
        usage_free(gw->usage);
        audit_queue_free(gw->audit);
}
