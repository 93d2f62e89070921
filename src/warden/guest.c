/* SPDX-License-Identifier: Apache-2.0 */
#include "guest.h"

/*
 * A session that ends while the VM lives is started over after a pause: the agent must see the
 * port closed before it sees it open, or it does not know that there is a new session. The
 * pause doubles up to a limit as long as no session comes up.
 */

#include <errno.h>
#include <stdlib.h>

#include "base/cleanup.h"

#define RETRY_FIRST_MS 100
#define RETRY_MAX_MS 5000
#define HELLO_MAX_MS 30000

struct guest {
        uv_loop_t *loop;
        struct vmm *vmm;
        const struct guest_handler *h;
        void *arg;
        struct link *link;
        uv_timer_t timer; /* pause before the next try, the wait for a hello, or one of leaving */
        enum { STAYING, PARTING, CLOSING } leaving;
        bool wanted, connecting, freed, was_up;
        unsigned retry_ms, hello_ms;
        uint64_t bytes_in, bytes_out; /* of earlier sessions */
};

static void try_connect(struct guest *g);

static void drop_link(struct guest *g) {
        struct link *l = STEAL(g->link);
        if (!l)
                return;
        uint64_t in, out;
        link_counters(l, &in, &out);
        g->bytes_in += in;
        g->bytes_out += out;
        link_free(l);
}

static void on_retry(uv_timer_t *t) {
        try_connect(t->data);
}

static void retry_later(struct guest *g) {
        if (!g->wanted || g->freed)
                return;
        uv_timer_start(&g->timer, on_retry, g->retry_ms, 0);
        g->retry_ms = g->retry_ms * 2 < RETRY_MAX_MS ? g->retry_ms * 2 : RETRY_MAX_MS;
}

static void lost(struct guest *g, const char *why) {
        bool was_up = g->was_up;
        g->was_up = false;
        drop_link(g);
        retry_later(g);
        if (was_up && !g->freed)
                g->h->on_down(g->arg, why);
}

static void on_link_ready(void *arg) {
        struct guest *g = arg;
        uv_timer_stop(&g->timer);
        g->retry_ms = RETRY_FIRST_MS;
        g->was_up = true;
        g->h->on_up(g->arg);
}

/* ---- leaving ------------------------------------------------------------------------------- */

static void left(struct guest *g, bool agreed) {
        g->leaving = STAYING;
        uv_timer_stop(&g->timer);
        g->h->on_left(g->arg, agreed);
}

static void on_settled(uv_timer_t *t) {
        left(t->data, false);
}

static void close_port(struct guest *g) {
        g->leaving = CLOSING;
        drop_link(g);
        uv_timer_start(&g->timer, on_settled, GUEST_SETTLE_MS, 0);
}

static void on_part_late(uv_timer_t *t) {
        close_port(t->data);
}

void guest_leave(struct guest *g, bool ask) {
        g->wanted = g->was_up = false;
        g->leaving = PARTING;
        uv_timer_start(&g->timer, on_part_late, GUEST_PART_MS, 0);
        if (!ask || !guest_up(g) || link_part(g->link) < 0)
                close_port(g);
}

void guest_port_closed(struct guest *g) {
        if (g->leaving == CLOSING)
                left(g, false);
}

static void on_link_close(void *arg, int err, const char *why) {
        struct guest *g = arg;
        if (g->leaving != PARTING)
                return lost(g, why);
        if (err < 0)
                return close_port(g);
        drop_link(g);
        left(g, true);
}

/* ---- coming -------------------------------------------------------------------------------- */

static const struct link_handler link_handler = { .on_ready = on_link_ready, .on_close = on_link_close };

static void on_hello_timeout(uv_timer_t *t) {
        struct guest *g = t->data;
        g->hello_ms = g->hello_ms * 2 < HELLO_MAX_MS ? g->hello_ms * 2 : HELLO_MAX_MS;
        lost(g, "no hello from the agent");
}

static void on_connected(void *arg, int err, struct stream *s) {
        struct guest *g = arg;
        g->connecting = false;
        if (g->freed || !g->wanted) {
                stream_abort(s);
                if (g->freed)
                        free(g);
                return;
        }
        if (err < 0 || link_new(g->loop, LINK_HOST, s, &link_handler, g, &g->link, NULL) < 0)
                return retry_later(g);
        if (g->hello_ms)
                uv_timer_start(&g->timer, on_hello_timeout, g->hello_ms, 0);
}

static void try_connect(struct guest *g) {
        if (!g->wanted || g->connecting || g->link)
                return;
        if (g->vmm->ops->open_stream(g->vmm, on_connected, g, NULL) < 0)
                return retry_later(g);
        g->connecting = true;
}

int guest_new(uv_loop_t *loop, struct vmm *vmm, const struct guest_handler *h, void *arg, struct guest **ret,
              struct error *err) {
        struct guest *g = calloc(1, sizeof(*g));
        if (!g)
                return error_set(err, -ENOMEM, "out of memory");
        *g = (struct guest){ .loop = loop, .vmm = vmm, .h = h, .arg = arg, .retry_ms = RETRY_FIRST_MS };
        uv_timer_init(loop, &g->timer);
        g->timer.data = g;
        *ret = g;
        return 0;
}

void guest_connect(struct guest *g, unsigned hello_ms) {
        if (g->leaving)
                guest_disconnect(g);
        g->wanted = true;
        g->hello_ms = hello_ms;
        uv_timer_stop(&g->timer);
        if (g->link && hello_ms && !guest_up(g))
                uv_timer_start(&g->timer, on_hello_timeout, hello_ms, 0);
        try_connect(g);
}

void guest_disconnect(struct guest *g) {
        g->wanted = g->was_up = false;
        g->leaving = STAYING;
        uv_timer_stop(&g->timer);
        drop_link(g);
}

static void on_timer_closed(uv_handle_t *h) {
        struct guest *g = h->data;
        if (!g->connecting)
                free(g);
}

void guest_free(struct guest *g) {
        if (!g)
                return;
        guest_disconnect(g);
        g->freed = true;
        uv_close((uv_handle_t *) &g->timer, on_timer_closed);
}

bool guest_up(const struct guest *g) {
        return g && link_ready(g->link);
}

struct link *guest_link(const struct guest *g) {
        return guest_up(g) ? g->link : NULL;
}

void guest_counters(const struct guest *g, uint64_t *ret_in, uint64_t *ret_out) {
        uint64_t in = 0, out = 0;
        if (g->link)
                link_counters(g->link, &in, &out);
        *ret_in = g->bytes_in + in;
        *ret_out = g->bytes_out + out;
}

bool guest_answers(struct guest *g) {
        if (!guest_up(g))
                return false;
        link_ping(g->link);
        return link_ping_age_ms(g->link) < GUEST_SILENT_MS;
}
