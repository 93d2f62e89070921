/* SPDX-License-Identifier: Apache-2.0 */
#include "lease.h"

#include <stdlib.h>

#include "mem.h"

struct lease {
        struct client *c;
        char *target, *body;
        struct upgrade *request;
        uv_timer_t timer;
};

static void on_due(uv_timer_t *t);

static void on_renewed(void *arg, const struct api_error *e, struct stream *s) {
        struct lease *l = arg;

        (void) s;
        l->request = NULL;
        uv_timer_start(&l->timer, on_due, e ? LEASE_RETRY_MS : LEASE_RENEW_MS, 0);
        uv_unref((uv_handle_t *) &l->timer);
}

static void on_due(uv_timer_t *t) {
        struct lease *l = t->data;

        l->request = upgrade_send(l->c, "PATCH", l->target, l->body, on_renewed, l);
}

struct lease *lease_new(struct client *c, const char *sandbox) {
        struct lease *l = mem_new(sizeof *l);
        _cleanup_free_ char *id = client_escape(sandbox);

        l->c = c;
        l->target = mem_printf("/v1/sandboxes/%s", id);
        l->body = mem_printf("{\"ttl_s\":%d}", LEASE_TTL_S);
        uv_timer_init(client_loop(c), &l->timer);
        l->timer.data = l;
        uv_timer_start(&l->timer, on_due, LEASE_RENEW_MS, 0);
        uv_unref((uv_handle_t *) &l->timer);
        return l;
}

static void on_closed(uv_handle_t *h) {
        free(h->data);
}

void lease_free(struct lease *l) {
        if (!l)
                return;
        upgrade_cancel(l->request);
        free(l->target);
        free(l->body);
        uv_close((uv_handle_t *) &l->timer, on_closed);
}
