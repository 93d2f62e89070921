/* SPDX-License-Identifier: Apache-2.0 */
#include "resolve.h"

#include <ares.h>
#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/queue.h>

#include "base/cleanup.h"
#include "base/str.h"

#define NAME_SIZE 256
#define TICK_MS 250 /* how often c-ares looks at its deadlines while something is open */

struct watch {
        LIST_ENTRY(watch) entry;
        uv_poll_t poll;
        struct resolver *r;
        ares_socket_t fd;
};

struct cached {
        TAILQ_ENTRY(cached) entry;
        uint64_t until_ms; /* of uv_now() */
        int n;
        struct in_addr addrs[RESOLVE_ADDRESSES_MAX];
        char name[NAME_SIZE];
};
TAILQ_HEAD(cache, cached);

struct resolve_query {
        struct resolver *r;
        resolve_cb cb; /* NULL: cancelled */
        void *arg;
        bool *answered; /* set while resolver_ask() is on the stack */
        char name[NAME_SIZE];
};

struct resolver {
        uv_loop_t *loop;
        uv_timer_t timer;
        ares_channel channel;
        LIST_HEAD(, watch) watches;
        struct cache cache; /* newest first */
        size_t n_cached, n_open;
};

/* ---- the loop ------------------------------------------------------------------------------ */

static void on_poll(uv_poll_t *h, int status, int events) {
        struct watch *w = h->data;
        struct resolver *r = w->r;
        ares_socket_t fd = w->fd;
        bool in = status < 0 || (events & UV_READABLE), out = status < 0 || (events & UV_WRITABLE);
        ares_process_fd(r->channel, in ? fd : ARES_SOCKET_BAD, out ? fd : ARES_SOCKET_BAD);
}

static void on_tick(uv_timer_t *t) {
        struct resolver *r = t->data;
        ares_process_fd(r->channel, ARES_SOCKET_BAD, ARES_SOCKET_BAD);
        if (r->n_open == 0)
                uv_timer_stop(t);
}

static void on_watch_closed(uv_handle_t *h) {
        free(h->data);
}

static struct watch *watch_of(struct resolver *r, ares_socket_t fd) {
        struct watch *w;
        LIST_FOREACH(w, &r->watches, entry)
                if (w->fd == fd)
                        return w;
        w = calloc(1, sizeof *w);
        if (!w || uv_poll_init(r->loop, &w->poll, fd) < 0) {
                free(w);
                return NULL;
        }
        w->poll.data = w;
        w->r = r;
        w->fd = fd;
        LIST_INSERT_HEAD(&r->watches, w, entry);
        return w;
}

static void on_socket(void *arg, ares_socket_t fd, int readable, int writable) {
        struct watch *w = watch_of(arg, fd);
        if (!w)
                return; /* the question times out */
        if (readable || writable) {
                (void) uv_poll_start(&w->poll, (readable ? UV_READABLE : 0) | (writable ? UV_WRITABLE : 0), on_poll);
                return;
        }
        LIST_REMOVE(w, entry);
        uv_poll_stop(&w->poll);
        uv_close((uv_handle_t *) &w->poll, on_watch_closed);
}

/* ---- what is known already ----------------------------------------------------------------- */

static void forget(struct resolver *r, struct cached *c) {
        TAILQ_REMOVE(&r->cache, c, entry);
        r->n_cached--;
        free(c);
}

static const struct cached *recall(struct resolver *r, const char *name) {
        struct cached *c, *next;
        for (c = TAILQ_FIRST(&r->cache); c; c = next) {
                next = TAILQ_NEXT(c, entry);
                if (c->until_ms <= uv_now(r->loop))
                        forget(r, c);
                else if (strcmp(c->name, name) == 0)
                        return c;
        }
        return NULL;
}

static void remember(struct resolver *r, const char *name, int n, const struct in_addr *addrs, int ttl) {
        struct cached *c = calloc(1, sizeof *c);
        if (!c)
                return;
        if (r->n_cached >= RESOLVE_CACHE_MAX)
                forget(r, TAILQ_LAST(&r->cache, cache));
        uint64_t s = ttl < RESOLVE_TTL_MIN_S ? RESOLVE_TTL_MIN_S : ttl > RESOLVE_TTL_MAX_S ? RESOLVE_TTL_MAX_S : (uint64_t) ttl;
        c->until_ms = uv_now(r->loop) + s * 1000;
        c->n = n;
        memcpy(c->addrs, addrs, (size_t) n * sizeof *addrs);
        (void) str_copy(c->name, sizeof c->name, name);
        TAILQ_INSERT_HEAD(&r->cache, c, entry);
        r->n_cached++;
}

/* ---- questions ----------------------------------------------------------------------------- */

static int code_of(int status) {
        switch (status) {
        case ARES_ENOTFOUND:
        case ARES_ENODATA:
                return -ENOENT;
        case ARES_ETIMEOUT:
                return -ETIMEDOUT;
        case ARES_ECANCELLED:
        case ARES_EDESTRUCTION:
                return -ECANCELED;
        default:
                return -EIO;
        }
}

static int parse(const unsigned char *answer, int len, struct in_addr *addrs, int *ret_ttl) {
        struct ares_addrttl found[RESOLVE_ADDRESSES_MAX];
        int n = RESOLVE_ADDRESSES_MAX;
        int status = ares_parse_a_reply(answer, len, NULL, found, &n);
        if (status != ARES_SUCCESS)
                return code_of(status);
        if (n <= 0)
                return -ENOENT;
        *ret_ttl = found[0].ttl;
        for (int i = 0; i < n; i++) {
                addrs[i] = found[i].ipaddr;
                if (found[i].ttl < *ret_ttl)
                        *ret_ttl = found[i].ttl;
        }
        return n;
}

static void on_answer(void *arg, int status, int timeouts, unsigned char *answer, int len) {
        struct resolve_query *q = arg;
        struct in_addr addrs[RESOLVE_ADDRESSES_MAX];
        int ttl = 0;
        (void) timeouts;
        int n = status == ARES_SUCCESS ? parse(answer, len, addrs, &ttl) : code_of(status);
        q->r->n_open--;
        if (n > 0)
                remember(q->r, q->name, n, addrs, ttl);
        resolve_cb cb = q->cb;
        void *cb_arg = q->arg;
        if (q->answered)
                *q->answered = true;
        free(q);
        if (cb)
                cb(cb_arg, n, n > 0 ? addrs : NULL);
}

void resolver_ask(struct resolver *r, const char *name, resolve_cb cb, void *arg, struct resolve_query **ret) {
        *ret = NULL;
        const struct cached *c = recall(r, name);
        if (c) {
                struct in_addr addrs[RESOLVE_ADDRESSES_MAX];
                memcpy(addrs, c->addrs, sizeof addrs);
                cb(arg, c->n, addrs);
                return;
        }
        struct resolve_query *q = r->n_open < RESOLVE_PENDING_MAX ? calloc(1, sizeof *q) : NULL;
        if (!q || str_copy(q->name, sizeof q->name, name) < 0) {
                free(q);
                cb(arg, -EBUSY, NULL);
                return;
        }
        q->r = r;
        q->cb = cb;
        q->arg = arg;
        bool answered = false; /* by ares_query() itself: q is gone, and maybe its owner */
        q->answered = &answered;
        r->n_open++;
        uv_timer_start(&r->timer, on_tick, TICK_MS, TICK_MS);
        ares_query(r->channel, q->name, 1 /* IN */, 1 /* A */, on_answer, q);
        if (answered)
                return;
        q->answered = NULL;
        *ret = q;
}

void resolver_cancel(struct resolve_query *q) {
        if (q)
                q->cb = NULL;
}

/* ---- start and end ------------------------------------------------------------------------- */

int resolver_new(uv_loop_t *loop, const char *const *servers, size_t n, struct resolver **ret, struct error *err) {
        char csv[RESOLVE_SERVERS_MAX * 24] = "";
        size_t at = 0;
        if (n == 0 || n > RESOLVE_SERVERS_MAX)
                return error_set(err, -EINVAL, "between 1 and %d resolvers are needed", RESOLVE_SERVERS_MAX);
        for (size_t i = 0; i < n; i++) {
                int w = snprintf(csv + at, sizeof csv - at, "%s%s", i ? "," : "", servers[i]);
                if (w < 0 || (size_t) w >= sizeof csv - at)
                        return error_set(err, -EINVAL, "\"%s\" is no resolver", servers[i]);
                at += (size_t) w;
        }
        struct resolver *r = calloc(1, sizeof *r);
        if (!r)
                return error_set(err, -ENOMEM, "out of memory");
        struct ares_options o = {
                .flags = ARES_FLAG_NOSEARCH | ARES_FLAG_NOALIASES,
                .timeout = RESOLVE_TRY_MS,
                .tries = RESOLVE_TRIES,
                .lookups = (char[]){ "b" },
                .sock_state_cb = on_socket,
                .sock_state_cb_data = r,
        };
        r->loop = loop;
        LIST_INIT(&r->watches);
        TAILQ_INIT(&r->cache);
        int status = ares_init_options(&r->channel, &o, ARES_OPT_FLAGS | ARES_OPT_TIMEOUTMS | ARES_OPT_TRIES |
                                                                ARES_OPT_LOOKUPS | ARES_OPT_SOCK_STATE_CB);
        if (status == ARES_SUCCESS) {
                status = ares_set_servers_ports_csv(r->channel, csv);
                if (status != ARES_SUCCESS)
                        ares_destroy(r->channel);
        }
        if (status != ARES_SUCCESS) {
                free(r);
                return error_set(err, -EINVAL, "resolvers \"%s\": %s", csv, ares_strerror(status));
        }
        (void) uv_timer_init(loop, &r->timer);
        r->timer.data = r;
        *ret = r;
        return 0;
}

static void on_timer_closed(uv_handle_t *h) {
        struct resolver *r = h->data;
        while (!TAILQ_EMPTY(&r->cache))
                forget(r, TAILQ_FIRST(&r->cache));
        free(r);
}

void resolver_free(struct resolver *r) {
        if (!r)
                return;
        ares_destroy(r->channel);
        uv_close((uv_handle_t *) &r->timer, on_timer_closed);
}
