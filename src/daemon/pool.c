/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Theory of operation
 *
 * Guests live in a hash table by sandbox id and exist while they have users or idle connections.
 * pool_drop() takes the guest out of the table before it tells the users, so a user that comes
 * meanwhile (a new sandbox under the same id does not happen, but a late request does) gets a new
 * guest and fails on its own at the socket.
 *
 * An idle connection is read from while it waits: end of stream, an error, or bytes that nobody
 * asked for close it. So a connection that the agent or the warden gave up is noticed here, not by
 * the next request.
 */
#include "pool.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define BUCKETS 256
#define SWEEP_MS 5000

struct idle {
        struct idle *next;
        struct guest *guest;
        struct stream *stream;
        uint64_t since;
};

struct guest {
        struct guest *next;
        struct pool *pool;
        char id[ID_SIZE];
        bool dropped; /* out of the table */
        bool held;    /* pool_drop() is at work on it */
        struct pool_user *users;
        struct idle *idle; /* newest first */
        unsigned n_users, n_idle;
};

struct pool {
        uv_loop_t *loop;
        char *run_dir;
        struct guest *buckets[BUCKETS];
        unsigned n_idle;
        uv_timer_t sweep;
};

static struct guest **bucket_of(struct pool *p, const char *id) {
        uint32_t h = 2166136261u; /* FNV-1a; ids are random and our own, nobody can aim at a bucket */

        for (; *id; id++)
                h = (h ^ (uint8_t) *id) * 16777619u;
        return &p->buckets[h % BUCKETS];
}

static struct guest *guest_find(struct pool *p, const char *id) {
        for (struct guest *g = *bucket_of(p, id); g; g = g->next)
                if (strcmp(g->id, id) == 0)
                        return g;
        return NULL;
}

static void guest_unlink(struct guest *g) {
        if (g->dropped)
                return;
        for (struct guest **at = bucket_of(g->pool, g->id); *at; at = &(*at)->next)
                if (*at == g) {
                        *at = g->next;
                        break;
                }
        g->dropped = true;
}

static void guest_collect(struct guest *g) {
        if (g->users || g->idle || g->held)
                return;
        guest_unlink(g);
        free(g);
}

static struct guest *guest_get(struct pool *p, const char *id) {
        struct guest *g = guest_find(p, id);

        if (g || strlen(id) > ID_LEN)
                return g;
        g = calloc(1, sizeof(*g));
        if (!g)
                return NULL;
        struct guest **at = bucket_of(p, id);
        strcpy(g->id, id);
        g->pool = p;
        g->next = *at;
        *at = g;
        return g;
}

/* Takes it out of its guest's list and frees it; the guest stays. */
static struct stream *idle_remove(struct idle *i) {
        struct guest *g = i->guest;
        struct stream *s = i->stream;

        for (struct idle **at = &g->idle; *at; at = &(*at)->next)
                if (*at == i) {
                        *at = i->next;
                        break;
                }
        g->n_idle--;
        if (--g->pool->n_idle == 0)
                uv_timer_stop(&g->pool->sweep);
        free(i);
        return s;
}

static void idle_lost(struct idle *i) {
        struct guest *g = i->guest;

        stream_close(idle_remove(i));
        guest_collect(g);
}

static void on_idle_data(void *arg, const uint8_t *data, size_t n) {
        (void) data;
        (void) n;
        idle_lost(arg);
}

static void on_idle_eof(void *arg) {
        idle_lost(arg);
}

static void on_idle_error(void *arg, int err) {
        (void) err;
        idle_lost(arg);
}

static const struct stream_handler idle_handler = {
        .on_data = on_idle_data,
        .on_eof = on_idle_eof,
        .on_error = on_idle_error,
};

static void sweep_guest(struct guest *g, uint64_t now) {
        for (struct idle *i = g->idle, *next; i; i = next) {
                next = i->next;
                if (now - i->since >= POOL_IDLE_MS)
                        stream_close(idle_remove(i));
        }
        guest_collect(g);
}

static void on_sweep(uv_timer_t *t) {
        struct pool *p = t->data;

        for (size_t b = 0; b < BUCKETS; b++)
                for (struct guest *g = p->buckets[b], *next; g; g = next) {
                        next = g->next;
                        sweep_guest(g, uv_now(p->loop));
                }
}

int pool_new(uv_loop_t *loop, const char *run_dir, struct pool **ret, struct error *err) {
        struct pool *p = calloc(1, sizeof(*p));
        char *dir = p ? strdup(run_dir) : NULL;

        if (!dir) {
                free(p);
                return error_set(err, -ENOMEM, "no memory for the proxy");
        }
        p->loop = loop;
        p->run_dir = dir;
        uv_timer_init(loop, &p->sweep);
        uv_unref((uv_handle_t *) &p->sweep);
        p->sweep.data = p;
        *ret = p;
        return 0;
}

void pool_drop(struct pool *p, const char *id) {
        struct guest *g = guest_find(p, id);

        if (!g)
                return;
        guest_unlink(g);
        g->held = true;
        while (g->idle)
                stream_close(idle_remove(g->idle));
        while (g->users)
                g->users->on_drop(g->users);
        g->held = false;
        guest_collect(g);
}

static void on_pool_closed(uv_handle_t *h) {
        struct pool *p = h->data;

        free(p->run_dir);
        free(p);
}

void pool_free(struct pool *p) {
        if (!p)
                return;
        for (size_t b = 0; b < BUCKETS; b++)
                while (p->buckets[b])
                        pool_drop(p, p->buckets[b]->id);
        uv_close((uv_handle_t *) &p->sweep, on_pool_closed);
}

uv_loop_t *pool_loop(struct pool *p) {
        return p->loop;
}

int pool_sock_path(const struct pool *p, const char *id, char *out, size_t cap) {
        int n = snprintf(out, cap, "%s/sandboxes/%s/data.sock", p->run_dir, id);

        return n < 0 || (size_t) n >= cap ? -ENAMETOOLONG : 0;
}

int pool_join(struct pool *p, const char *id, struct pool_user *u) {
        struct guest *g = guest_get(p, id);

        if (!g)
                return -ENOMEM;
        if (g->n_users >= POOL_USERS_PER_GUEST)
                return -EBUSY;
        u->guest = g;
        u->prev = NULL;
        u->next = g->users;
        if (g->users)
                g->users->prev = u;
        g->users = u;
        g->n_users++;
        return 0;
}

void pool_leave(struct pool_user *u) {
        struct guest *g = u->guest;

        if (!g)
                return;
        if (u->prev)
                u->prev->next = u->next;
        else
                g->users = u->next;
        if (u->next)
                u->next->prev = u->prev;
        u->guest = NULL;
        g->n_users--;
        guest_collect(g);
}

const char *pool_user_id(const struct pool_user *u) {
        return u->guest->id;
}

struct stream *pool_take(struct guest *g) {
        if (!g->idle)
                return NULL;
        struct stream *s = idle_remove(g->idle);
        stream_read_stop(s);
        return s;
}

void pool_give(struct guest *g, struct stream *s) {
        struct pool *p = g->pool;
        struct idle *i = NULL;

        if (!g->dropped && g->n_idle < POOL_IDLE_PER_GUEST && p->n_idle < POOL_IDLE_MAX)
                i = calloc(1, sizeof(*i));
        if (!i)
                return stream_close(s);
        i->guest = g;
        i->stream = s;
        i->since = uv_now(p->loop);
        i->next = g->idle;
        g->idle = i;
        g->n_idle++;
        if (p->n_idle++ == 0)
                uv_timer_start(&p->sweep, on_sweep, SWEEP_MS, SWEEP_MS);
        stream_set_handler(s, &idle_handler, i);
        stream_read_start(s);
}

/* --- dialling with retries ----------------------------------------------------------------- */

struct pool_dial {
        struct guest *guest;
        uint16_t port;
        unsigned tries;
        struct dial *dial; /* under way, or NULL while the timer runs */
        uv_timer_t timer;
        dial_cb cb;
        void *arg;
};

static void on_dial_closed(uv_handle_t *h) {
        free(h->data);
}

static void pool_dial_end(struct pool_dial *d) {
        dial_cancel(d->dial);
        d->dial = NULL;
        uv_close((uv_handle_t *) &d->timer, on_dial_closed);
}

static void on_dialled(void *arg, int err, struct stream *s);

static int dial_once(struct pool_dial *d) {
        char path[4096];
        int r = pool_sock_path(d->guest->pool, d->guest->id, path, sizeof(path));

        if (r < 0)
                return r;
        d->tries++;
        return dial_open(d->guest->pool->loop, path, d->port, on_dialled, d, &d->dial, NULL);
}

static void on_dial_retry(uv_timer_t *t) {
        struct pool_dial *d = t->data;
        int r = dial_once(d);

        if (r < 0)
                on_dialled(d, r, NULL);
}

static void on_dialled(void *arg, int err, struct stream *s) {
        struct pool_dial *d = arg;

        d->dial = NULL;
        if ((err == -ECONNREFUSED || err == -EAGAIN) && d->tries < POOL_DIAL_TRIES) {
                uv_timer_start(&d->timer, on_dial_retry, (uint64_t) POOL_DIAL_GAP_MS << (d->tries - 1), 0);
                return;
        }
        dial_cb cb = d->cb;
        void *cb_arg = d->arg;
        pool_dial_end(d);
        cb(cb_arg, err, s);
}

int pool_dial(struct guest *g, uint16_t port, dial_cb cb, void *arg, struct pool_dial **ret) {
        struct pool_dial *d = calloc(1, sizeof(*d));

        if (!d)
                return -ENOMEM;
        d->guest = g;
        d->port = port;
        d->cb = cb;
        d->arg = arg;
        uv_timer_init(g->pool->loop, &d->timer);
        d->timer.data = d;
        int r = dial_once(d);
        if (r < 0) {
                pool_dial_end(d);
                return r;
        }
        *ret = d;
        return 0;
}

void pool_dial_cancel(struct pool_dial *d) {
        if (d)
                pool_dial_end(d);
}
