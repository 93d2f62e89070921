/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Theory of operation
 *
 * Guests live in a map by sandbox id and exist while they have users or idle connections.
 * guests_drop() takes the guest out of the map before it tells the users, so a user that comes
 * meanwhile (a new sandbox under the same id does not happen, but a late request does) gets a new
 * guest and fails on its own at the socket.
 *
 * An idle connection is read from while it waits: end of stream, an error, or bytes that nobody
 * asked for close it. So a connection that the agent or the warden gave up is noticed here, not by
 * the next request.
 */
#include "guest.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/str.h"
#include "map.h"

#define SWEEP_MS 5000

struct idle {
        struct idle *next;
        struct guest *guest;
        struct stream *stream;
        uint64_t since;
};

struct guest {
        struct guests *all;
        char id[ID_SIZE];
        bool dropped; /* out of the map */
        bool held;    /* guests_drop() is at work on it */
        struct guest_user *users;
        struct idle *idle; /* newest first */
        unsigned n_users, n_idle;
};

struct guests {
        uv_loop_t *loop;
        char *run_dir;
        struct map *by_id;
        unsigned n_idle;
        uv_timer_t sweep;
        void (*on_end)(void *arg, const char *id);
        void *end_arg;
};

static void guest_unlink(struct guest *g) {
        if (!g->dropped)
                map_remove(g->all->by_id, g->id);
        g->dropped = true;
}

static void guest_collect(struct guest *g) {
        if (g->users || g->idle || g->held)
                return;
        guest_unlink(g);
        free(g);
}

static struct guest *guest_get(struct guests *p, const char *id) {
        struct guest *g = map_get(p->by_id, id);

        if (g)
                return g;
        g = calloc(1, sizeof(*g));
        if (!g)
                return NULL;
        g->all = p;
        if (str_copy(g->id, sizeof(g->id), id) < 0 || map_put(p->by_id, g->id, g) < 0) {
                free(g);
                return NULL;
        }
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
        if (--g->all->n_idle == 0)
                uv_timer_stop(&g->all->sweep);
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
                if (now - i->since >= GUEST_IDLE_MS)
                        stream_close(idle_remove(i));
        }
        guest_collect(g);
}

static void on_sweep(uv_timer_t *t) {
        struct guests *p = t->data;
        size_t pos = 0;

        for (struct guest *g; (g = map_next(p->by_id, &pos));)
                sweep_guest(g, uv_now(p->loop));
}

static void guests_release(struct guests *p) {
        map_free(p->by_id);
        free(p->run_dir);
        free(p);
}

int guests_new(uv_loop_t *loop, const char *run_dir, struct guests **ret, struct error *err) {
        struct guests *p = calloc(1, sizeof(*p));
        if (p) {
                p->run_dir = strdup(run_dir);
                p->by_id = map_new();
        }
        if (!p || !p->run_dir || !p->by_id) {
                if (p)
                        guests_release(p);
                return error_set(err, -ENOMEM, "no memory for the proxy");
        }
        p->loop = loop;
        uv_timer_init(loop, &p->sweep);
        uv_unref((uv_handle_t *) &p->sweep);
        p->sweep.data = p;
        *ret = p;
        return 0;
}

void guests_drop(struct guests *p, const char *id) {
        struct guest *g = map_get(p->by_id, id);

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

static void on_guests_closed(uv_handle_t *h) {
        guests_release(h->data);
}

void guests_free(struct guests *p) {
        if (!p)
                return;
        for (size_t pos = 0; map_count(p->by_id) > 0; pos = 0) {
                struct guest *g = map_next(p->by_id, &pos);
                guests_drop(p, g->id);
        }
        uv_close((uv_handle_t *) &p->sweep, on_guests_closed);
}

uv_loop_t *guests_loop(struct guests *p) {
        return p->loop;
}

int guests_sock_path(const struct guests *p, const char *id, char *out, size_t cap) {
        int n = snprintf(out, cap, "%s/sandboxes/%s/data.sock", p->run_dir, id);

        return n < 0 || (size_t) n >= cap ? -ENAMETOOLONG : 0;
}

int guest_join(struct guests *p, const char *id, struct guest_user *u) {
        struct guest *g = guest_get(p, id);

        if (!g)
                return -ENOMEM;
        if (g->n_users >= GUEST_USERS_MAX)
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

void guest_leave(struct guest_user *u) {
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
        if (!u->own && g->all->on_end)
                g->all->on_end(g->all->end_arg, g->id);
        guest_collect(g);
}

bool guests_busy(const struct guests *all, const char *id) {
        const struct guest *g = map_get(all->by_id, id);

        for (const struct guest_user *u = g ? g->users : NULL; u; u = u->next)
                if (!u->own)
                        return true;
        return false;
}

void guests_on_end(struct guests *all, void (*fn)(void *arg, const char *id), void *arg) {
        all->on_end = fn;
        all->end_arg = arg;
}

const char *guest_user_id(const struct guest_user *u) {
        return u->guest->id;
}

struct stream *guest_take(struct guest *g) {
        if (!g->idle)
                return NULL;
        struct stream *s = idle_remove(g->idle);
        stream_read_stop(s);
        return s;
}

void guest_give(struct guest *g, struct stream *s) {
        struct guests *p = g->all;
        struct idle *i = NULL;

        if (!g->dropped && g->n_idle < GUEST_IDLE_EACH && p->n_idle < GUEST_IDLE_MAX)
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

struct guest_dial {
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

static void guest_dial_end(struct guest_dial *d) {
        dial_cancel(d->dial);
        d->dial = NULL;
        uv_close((uv_handle_t *) &d->timer, on_dial_closed);
}

static void on_dialled(void *arg, int err, struct stream *s);

static int dial_once(struct guest_dial *d) {
        char path[4096];
        int r = guests_sock_path(d->guest->all, d->guest->id, path, sizeof(path));

        if (r < 0)
                return r;
        d->tries++;
        return dial_open(d->guest->all->loop, path, d->port, on_dialled, d, &d->dial, NULL);
}

static void on_dial_retry(uv_timer_t *t) {
        struct guest_dial *d = t->data;
        int r = dial_once(d);

        if (r < 0)
                on_dialled(d, r, NULL);
}

static void on_dialled(void *arg, int err, struct stream *s) {
        struct guest_dial *d = arg;

        d->dial = NULL;
        if ((err == -ECONNREFUSED || err == -EAGAIN) && d->tries < GUEST_DIAL_TRIES) {
                uv_timer_start(&d->timer, on_dial_retry, (uint64_t) GUEST_DIAL_GAP_MS << (d->tries - 1), 0);
                return;
        }
        dial_cb cb = d->cb;
        void *cb_arg = d->arg;
        guest_dial_end(d);
        cb(cb_arg, err, s);
}

int guest_dial(struct guest *g, uint16_t port, dial_cb cb, void *arg, struct guest_dial **ret) {
        struct guest_dial *d = calloc(1, sizeof(*d));

        if (!d)
                return -ENOMEM;
        d->guest = g;
        d->port = port;
        d->cb = cb;
        d->arg = arg;
        uv_timer_init(g->all->loop, &d->timer);
        d->timer.data = d;
        int r = dial_once(d);
        if (r < 0) {
                guest_dial_end(d);
                return r;
        }
        *ret = d;
        return 0;
}

void guest_dial_cancel(struct guest_dial *d) {
        if (d)
                guest_dial_end(d);
}
