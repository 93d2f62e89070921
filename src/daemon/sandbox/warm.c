/* SPDX-License-Identifier: Apache-2.0 */

/*
 * The warm pool. An entry is a sandbox in state POOLED with a row of its own, so that a restarted
 * cspaced finds it again:
 *
 *   PLACING    PLACE is asked
 *   WAITING    the warden restores the VM; asked by QUERY until its guest stream is up
 *   READY      may be taken
 *
 * One VM is filled in at a time, and none while a create is under way (for at most GIVE_WAY_MS), so
 * that the pool never takes the host from those who wait; after a failure it waits longer each time.
 */

#include "warm.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "app.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/str.h"
#include "create.h"
#include "peers/rootd.h"
#include "peers/warden.h"
#include "proxy/proxy.h"
#include "sandbox_flow.h"
#include "template/variant.h"
#include "timer.h"

#define PLACE_TIMEOUT_MS 60000
#define QUERY_TIMEOUT_MS 10000
#define QUERY_GAP_MS 100
#define WAIT_MAX 900 /* QUERY_GAP_MS each */
#define GIVE_WAY_MS 3000
#define GIVE_WAY_LOOK_MS 100
#define BACKOFF_MIN_MS 1000
#define BACKOFF_MAX_MS 60000

enum entry_state { PLACING, WAITING, READY };

struct entry {
        struct app *app;
        struct sandbox *s; /* a reference */
        enum entry_state state;
        bool asked;        /* cspace-rootd owes an answer */
        bool dropped;      /* goes when the answer is there */
        struct warden *warden;
        struct timer *timer;
        unsigned asks;
        struct entry *next;
};

struct warm {
        struct app *app;
        struct entry *entries;
        struct timer *look;
        struct variant_wait *variant;
        uint64_t backoff_ms;
        uint64_t gave_way_ms; /* monotonic, since when; 0: not */
        bool paused; /* look is a back-off */
};

static void look(void *arg);
static void query(void *arg);

static void look_in(struct warm *w, uint64_t ms) {
        if (w->app->stopping || (w->look && w->paused))
                return;
        timer_cancel(w->look);
        w->look = timer_start(w->app->loop, ms, look, w);
        w->paused = ms > 0;
}

void warm_check(struct app *app) {
        if (app->warm && (app->conf.n_warm > 0 || app->warm->entries))
                look_in(app->warm, 0);
}

static void back_off(struct warm *w) {
        w->backoff_ms = w->backoff_ms ? w->backoff_ms * 2 : BACKOFF_MIN_MS;
        if (w->backoff_ms > BACKOFF_MAX_MS)
                w->backoff_ms = BACKOFF_MAX_MS;
        look_in(w, w->backoff_ms);
}

/* ---- entries ------------------------------------------------------------------------------- */

static struct entry *entry_new(struct app *app, struct sandbox *s, enum entry_state state) {
        struct entry *e = calloc(1, sizeof *e);
        if (!e)
                return NULL;
        *e = (struct entry){ .app = app, .s = sandbox_ref(s), .state = state, .next = app->warm->entries };
        app->warm->entries = e;
        return e;
}

static void entry_free(struct entry *e) {
        for (struct entry **at = &e->app->warm->entries; *at; at = &(*at)->next)
                if (*at == e) {
                        *at = e->next;
                        break;
                }
        timer_cancel(e->timer);
        struct warden *w = STEAL(e->warden);
        warden_free(w);
        sandbox_unref(e->s);
        free(e);
}

/* The entry, its sandbox and all it has. */
static void drop(struct entry *e) {
        struct app *app = e->app;
        struct sandbox *s = e->s;
        if (e->asked) {
                e->dropped = true;
                return;
        }
        proxy_drop(app->proxy, s->id);
        sandbox_unwatch(s);
        if (s->state == SANDBOX_POOLED)
                (void) sandbox_move(app, s, SANDBOX_DELETING);
        struct db_batch *b = db_batch_new();
        sandbox_row_delete(s, b);
        (void) db_batch_submit(app->db, b, NULL, NULL);
        (void) removal_start(app, REMOVAL_PLACEMENT, s->id, NULL, NULL);
        sandbox_take_out(app, s);
        entry_free(e);
}

static void give_up(struct entry *e, const char *why) {
        struct warm *w = e->app->warm;
        if (e->app->stopping)
                return;
        log_warn("warm pool: a sandbox of %s was lost: %s", e->s->template_ref, why);
        drop(e);
        back_off(w);
}

static struct entry *entry_of(struct app *app, const struct sandbox *s) {
        for (struct entry *e = app->warm->entries; e; e = e->next)
                if (e->s == s)
                        return e;
        return NULL;
}

void warm_lost(struct app *app, struct sandbox *s, const char *reason) {
        struct entry *e = entry_of(app, s);
        if (e)
                give_up(e, reason);
}

/* ---- filling ------------------------------------------------------------------------------- */

static void on_event(void *arg, const struct ipc_warden_event *ev) {
        if (strcmp(ev->state, "failed") == 0 || strcmp(ev->state, "exited") == 0)
                give_up(arg, ev->reason);
}

static void on_close(void *arg, int err) {
        (void) err;
        give_up(arg, "the warden ended");
}

static const struct warden_handler warden_handler = { .on_event = on_event, .on_close = on_close };

static void ready(struct entry *e) {
        struct warm *w = e->app->warm;
        e->state = READY;
        w->backoff_ms = 0;
        sandbox_watch(e->app, e->s, STEAL(e->warden));
        look_in(w, 0);
}

static void on_queried(void *arg, int err, const struct error *er, struct ipc_packet *p) {
        struct entry *e = arg;
        struct ipc_warden_state m;
        if (err == -ECANCELED || err == -ECONNRESET)
                return; /* given up, or on_close comes next */
        if (err < 0 || ipc_warden_state_decode(p->body, p->body_n, &m) < 0)
                give_up(e, err < 0 ? er->msg : "its warden's answer cannot be read");
        else if (m.identified)
                give_up(e, "it has been given away");
        else if (strcmp(m.state, "failed") == 0 || strcmp(m.state, "exited") == 0)
                give_up(e, m.reason);
        else if (m.link_up)
                ready(e);
        else if (++e->asks > WAIT_MAX)
                give_up(e, "its restore takes too long");
        else
                e->timer = timer_start(e->app->loop, QUERY_GAP_MS, query, e);
}

static void query(void *arg) {
        struct entry *e = arg;
        struct error err = ERROR_INIT;
        e->timer = NULL;
        if (warden_call(e->warden, IPC_QUERY, NULL, 0, QUERY_TIMEOUT_MS, on_queried, e, &err) < 0)
                give_up(e, err.msg);
}

static void wait_for_restore(struct entry *e) {
        struct error err = ERROR_INIT;
        e->state = WAITING;
        if (warden_connect(e->app, e->s->id, &warden_handler, e, &e->warden, &err) < 0)
                give_up(e, err.msg);
        else
                query(e);
}

static void on_placed(void *arg, int err, const struct error *er, struct ipc_packet *p) {
        (void) p;
        struct entry *e = arg;
        e->asked = false;
        if (err == -ECANCELED && e->app->stopping)
                return;
        if (e->dropped) {
                drop(e);
                return;
        }
        if (err == -ENOENT)
                variant_forget(e->app, e->s->digest, e->s->memory_mb, e->s->cpus);
        if (err < 0)
                give_up(e, er->msg);
        else
                wait_for_restore(e);
}

static void fill_one(struct warm *w, struct tmpl *t, const char *ref) {
        struct app *app = w->app;
        struct error err = ERROR_INIT;
        struct sandbox *s = sandbox_alloc(app);
        struct entry *e = s ? entry_new(app, s, PLACING) : NULL;
        if (!e) {
                sandbox_unref(s);
                back_off(w);
                return;
        }
        s->state = SANDBOX_POOLED;
        s->memory_mb = app->conf.memory_mb;
        s->cpus = app->conf.cpus;
        s->disk_bytes = app->conf.disk_bytes > t->disk_bytes ? app->conf.disk_bytes : 0;
        (void) str_copy(s->template_ref, sizeof s->template_ref, ref);
        int r = sandbox_insert(app, s);
        if (r >= 0) {
                (void) sandbox_set_template(app, s, t);
                struct db_batch *b = db_batch_new();
                sandbox_row_insert(s, b);
                r = db_batch_submit(app->db, b, NULL, NULL);
        }
        if (r >= 0)
                r = place_call(app, s->id, "restore", s->digest, s->memory_mb, s->cpus, s->disk_bytes, "", false, PLACE_TIMEOUT_MS,
                               on_placed, e, &err);
        if (r >= 0)
                e->asked = true;
        else
                give_up(e, err.msg[0] ? err.msg : "it could not be stored");
        sandbox_unref(s);
}

/* ---- what is wanted ------------------------------------------------------------------------ */

static void on_variant(void *arg, int err, const struct error *e) {
        struct warm *w = arg;
        w->variant = NULL;
        if (err < 0) {
                log_warn("warm pool: %s", e->msg);
                back_off(w);
        } else {
                look_in(w, 0);
        }
}

static const struct variant_waiter variant_waiter = { .on_done = on_variant };

static bool wanted(const struct app *app, const struct entry *e, const struct tmpl *t) {
        return !e->dropped && e->s->tmpl == t && e->s->memory_mb == app->conf.memory_mb && e->s->cpus == app->conf.cpus;
}

/* Drops what no target wants, or too many of it. */
static void drop_unwanted(struct warm *w) {
        struct app *app = w->app;
        for (struct entry *e = w->entries, *next; e; e = next) {
                bool keep = false;
                next = e->next;
                for (size_t i = 0; i < app->conf.n_warm && !keep; i++) {
                        struct tmpl *t;
                        char ref[TEMPLATE_REF_SIZE];
                        if (template_resolve(app, app->conf.warm[i].ref, &t, ref, NULL) < 0 || t->removing || !wanted(app, e, t))
                                continue;
                        unsigned before = 0;
                        for (const struct entry *o = w->entries; o != e; o = o->next)
                                before += wanted(app, o, t);
                        keep = before < app->conf.warm[i].count;
                }
                if (!keep && !e->dropped)
                        drop(e);
        }
}

/* True: someone waits for a sandbox; looked at again soon. */
static bool give_way(struct warm *w) {
        uint64_t now = clock_mono_ms();
        if (sandbox_count(w->app, 1u << SANDBOX_CREATING) == 0 || (w->gave_way_ms && now - w->gave_way_ms > GIVE_WAY_MS)) {
                w->gave_way_ms = 0;
                return false;
        }
        if (!w->gave_way_ms)
                w->gave_way_ms = now;
        w->look = timer_start(w->app->loop, GIVE_WAY_LOOK_MS, look, w);
        return w->look != NULL;
}

static void look(void *arg) {
        struct warm *w = arg;
        struct app *app = w->app;
        w->look = NULL;
        w->paused = false;
        drop_unwanted(w);
        if (!rootd_connected(app->rootd) || w->variant || app->stopping)
                return;
        for (const struct entry *e = w->entries; e; e = e->next)
                if (e->state != READY)
                        return; /* one at a time */
        for (size_t i = 0; i < app->conf.n_warm; i++) {
                struct tmpl *t;
                char ref[TEMPLATE_REF_SIZE];
                struct error err = ERROR_INIT;
                unsigned have = 0;
                uint32_t memory_mb = app->conf.memory_mb, cpus = app->conf.cpus;
                if (template_resolve(app, app->conf.warm[i].ref, &t, ref, NULL) < 0 || t->removing)
                        continue;
                (void) template_snapshot(t, &memory_mb, &cpus);
                if (memory_mb != app->conf.memory_mb || cpus != app->conf.cpus)
                        continue; /* of a VM that ran, in another size: the others need not wait for it */
                for (const struct entry *e = w->entries; e; e = e->next)
                        have += wanted(app, e, t);
                if (have >= app->conf.warm[i].count)
                        continue;
                int r = variant_ensure(app, t, app->conf.memory_mb, app->conf.cpus, &variant_waiter, w, &w->variant, &err);
                if (r == 1 && !give_way(w))
                        fill_one(w, t, ref);
                else if (r < 0)
                        back_off(w);
                return;
        }
}

/* ---- use ----------------------------------------------------------------------------------- */

bool warm_take(struct app *app, const struct tmpl *t, uint32_t memory_mb, uint32_t cpus, uint64_t disk_bytes,
               char ret_id[ID_SIZE], struct warden **ret) {
        for (struct entry *e = app->warm->entries; e; e = e->next) {
                struct sandbox *s = e->s;
                if (e->state != READY || e->dropped || s->tmpl != t || s->memory_mb != memory_mb || s->cpus != cpus ||
                    s->disk_bytes != disk_bytes)
                        continue;
                struct warden *w = sandbox_unwatch_keep(s);
                if (!w) { /* its warden is just being looked for */
                        sandbox_watch(app, s, NULL);
                        continue;
                }
                memcpy(ret_id, s->id, ID_SIZE);
                *ret = w;
                sandbox_take_out(app, s);
                entry_free(e);
                look_in(app->warm, 0);
                return true;
        }
        return false;
}

void warm_adopt(struct app *app, struct sandbox *s) {
        struct entry *e = entry_of(app, s);
        if (e)
                return;
        e = entry_new(app, s, WAITING);
        if (e)
                wait_for_restore(e);
}

bool warm_busy(struct app *app, const struct sandbox *s) {
        const struct entry *e = entry_of(app, s);
        return e && e->asked;
}

json_t *warm_to_json(struct app *app) {
        json_t *a = json_array();
        for (size_t i = 0; i < app->conf.n_warm; i++) {
                struct tmpl *t = NULL;
                char ref[TEMPLATE_REF_SIZE];
                unsigned n = 0;
                if (template_resolve(app, app->conf.warm[i].ref, &t, ref, NULL) >= 0)
                        for (const struct entry *e = app->warm->entries; e; e = e->next)
                                n += wanted(app, e, t) && e->state == READY;
                (void) json_array_append_new(a, json_pack("{s:s, s:I, s:I}", "template", app->conf.warm[i].ref, "want",
                                                          (json_int_t) app->conf.warm[i].count, "ready", (json_int_t) n));
        }
        return a;
}

int warm_new(struct app *app, struct warm **ret, struct error *err) {
        struct warm *w = calloc(1, sizeof *w);
        if (!w)
                return error_set(err, -ENOMEM, "out of memory");
        w->app = app;
        *ret = w;
        return 0;
}

void warm_free(struct warm *w) {
        if (!w)
                return;
        timer_cancel(w->look);
        variant_wait_cancel(w->variant);
        while (w->entries)
                entry_free(w->entries);
        free(w);
}
