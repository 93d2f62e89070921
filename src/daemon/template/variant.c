/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Making a variant:
 *
 *   QUEUED -> PLACE (mode "boot") -> BOOT (identity given, agent ready) -> WARM -> SNAPSHOT
 *     -> COMMIT (cspace-rootd moves the files) -> CLEAR (placement removed) -> row -> there
 *
 * Under emulation, between CLEAR and the row, it gets a process that has translated what its guests will run:
 *
 *   THAW (a sandbox of the variant is placed and given an identity) -> HEAT (warmed) -> PARK (frozen, stands still)
 *     -> THAW (given an identity) -> HEAT -> PARK (it forgets the identity too) -> FREEZE (cspace-rootd makes the image of
 *     its process) -> CLEAR
 *
 * Twice, because what goes on from standing still takes other ways than what has just been loaded: the port is opened,
 * commands are thawed, connections are asked for. Every sandbox and every copy of one begins so. Where that cannot be done the variant is there all the same, only slower.
 *
 * A kernel that hangs while booting is met by a time-out and another try with a new placement.
 * Nothing of it is in the database before the end: a crash on the way leaves a placement that no
 * row knows, which the next reconcile pass removes.
 */

#include "variant.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/statvfs.h>

#include "app.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/str.h"
#include "ca/ca.h"
#include "map.h"
#include "peers/rootd.h"
#include "peers/warden.h"
#include "proxy/proxy.h"
#include "sandbox/create.h"
#include "sandbox/sandbox_flow.h"
#include "sandbox/warm.h"
#include "sandbox/warmup.h"
#include "store/db.h"
#include "timer.h"

#define MAKING_MAX 2 /* at one time: each is a whole VM booting */
#define TRIES_MAX 3
#define FREEZES_MAX 2
#define HEATS 2    /* how often it is warmed and parked */
#define REST_MS 300 /* after the last one: a guest that is idle for longer takes other ways than one between two requests */
#define IDENTITY_MAX 4096
#define PLACE_TIMEOUT_MS 120000
#define BOOT_TIMEOUT_MS 180000
#define SNAPSHOT_TIMEOUT_MS 300000
#define COMMIT_TIMEOUT_MS 300000
#define NO_ROOM_BYTES (32ULL << 20)
#define FIRST_GUESS_MS 60000 /* how long one takes, until one was made */

struct variant_wait {
        struct making *making;
        const struct variant_waiter *waiter;
        void *arg;
        struct variant_wait *next;
};

struct variant {
        char key[DIGEST_LEN + 1 + VARIANT_NAME_MAX + 1]; /* "<digest>/<name>" */
        char digest[DIGEST_LEN + 1];
        char name[VARIANT_NAME_MAX + 1];
        char engine[16];
        uint32_t memory_mb, cpus;
        int64_t created_ms, used_ms;
        struct variant *next; /* of the outdated ones */
};

enum stage { QUEUED, PLACE, BOOT, WARM, SNAPSHOT, COMMIT, THAW, HEAT, PARK, FREEZE, CLEAR, ROW };

static const struct {
        const char *text;
        int percent;
} stages[] = {
        [QUEUED] = { "waiting for its turn", 0 },   [PLACE] = { "placing", 2 },
        [BOOT] = { "booting the template", 5 },     [WARM] = { "warming", 40 },
        [SNAPSHOT] = { "saving the snapshot", 70 }, [COMMIT] = { "storing the snapshot", 75 },
        [THAW] = { "restoring", 78 },               [HEAT] = { "warming the emulator", 80 },
        [PARK] = { "parking", 92 },                 [FREEZE] = { "storing the process", 94 },
        [CLEAR] = { "clearing up", 97 },            [ROW] = { "clearing up", 99 },
};

struct making {
        struct app *app;
        struct variant *v;
        struct tmpl *tmpl; /* pinned */
        char id[ID_SIZE];  /* of the placement */
        char token[SANDBOX_TOKEN_LEN + 1];
        enum stage stage;
        unsigned tries;
        bool asked;        /* cspace-rootd owes an answer */
        bool committed;
        unsigned freezes;  /* tries */
        unsigned heats;    /* of this try */
        bool refreeze;     /* the last one met what another may not meet */
        bool abandoned;    /* nobody waits for it any more: it ends as soon as it can */
        bool over;         /* finish() is at work */
        bool retry;        /* the failure is one that another boot may not meet */
        struct warden *warden;
        struct warmup *warmup;
        struct timer *start, *rest;
        struct variant_wait *waits;
        uint64_t t0_ms;
        int err;           /* why the last try failed */
        struct error e;
        struct making *next;
};

struct variants {
        struct map *known; /* struct variant by key */
        struct making *making;
        struct variant *outdated; /* found at start, to be removed */
        uint64_t last_ms;  /* how long the last one took, for estimates */
};

static void advance(struct making *m);
static void freeze(struct making *m);
static int identify(struct making *m, struct error *err);
static void abandon(struct making *m);
static void clear(struct making *m);
static void start_queued(struct app *app);

static void variant_names(struct app *app, struct variant *v, const char *digest, uint32_t memory_mb, uint32_t cpus) {
        (void) str_copy(v->digest, sizeof v->digest, digest);
        (void) str_copy(v->engine, sizeof v->engine, rootd_engine(app->rootd));
        v->memory_mb = memory_mb;
        v->cpus = cpus;
        variant_name(v->engine, memory_mb, cpus, v->name);
        (void) snprintf(v->key, sizeof v->key, "%s/%s", v->digest, v->name);
}

/* ---- those who wait ------------------------------------------------------------------------ */

static void tell_progress(struct making *m, const char *step, int percent) {
        int eta = -1;
        if (m->app->variants->last_ms && m->t0_ms) {
                uint64_t gone = clock_mono_ms() - m->t0_ms;
                eta = gone < m->app->variants->last_ms ? (int) ((m->app->variants->last_ms - gone + 999) / 1000) : 0;
        }
        for (struct variant_wait *w = m->waits, *next; w; w = next) {
                next = w->next;
                if (w->waiter->on_progress)
                        w->waiter->on_progress(w->arg, step, percent, eta);
        }
}

static void tell_log(struct making *m, const char *text) {
        log_info("variant %s of %.12s: %s", m->v->name, m->v->digest, text);
        char line[ERROR_MSG_MAX + 64];
        int n = snprintf(line, sizeof line, "variant %s: %s\n", m->v->name, text);
        for (struct variant_wait *w = m->waits; w && n > 0; w = w->next)
                if (w->waiter->on_log)
                        w->waiter->on_log(w->arg, line, strlen(line));
}

static void set_stage(struct making *m, enum stage st) {
        m->stage = st;
        tell_progress(m, stages[st].text, stages[st].percent);
}

void variant_wait_cancel(struct variant_wait *w) {
        if (!w)
                return;
        struct making *m = w->making;
        for (struct variant_wait **at = &m->waits; *at; at = &(*at)->next)
                if (*at == w) {
                        *at = w->next;
                        break;
                }
        free(w);
        if (!m->waits && !m->over && !m->app->stopping)
                abandon(m);
}

/* ---- end ----------------------------------------------------------------------------------- */

static void making_unlink(struct making *m) {
        for (struct making **at = &m->app->variants->making; *at; at = &(*at)->next)
                if (*at == m) {
                        *at = m->next;
                        break;
                }
}

static void drop_vm(struct making *m) {
        struct warmup *wu = STEAL(m->warmup);
        struct warden *w = STEAL(m->warden);
        warmup_cancel(wu);
        warden_free(w);
        timer_cancel(STEAL(m->rest));
        if (m->id[0])
                proxy_drop(m->app->proxy, m->id);
}

static void finish(struct making *m, int err, const struct error *e) {
        struct app *app = m->app;
        m->over = true;
        making_unlink(m);
        timer_cancel(m->start);
        drop_vm(m);
        if (err >= 0)
                app->variants->last_ms = clock_mono_ms() - m->t0_ms;
        while (m->waits) {
                struct variant_wait *w = m->waits;
                m->waits = w->next;
                w->waiter->on_done(w->arg, err, e);
                free(w);
        }
        m->tmpl->pins--;
        template_unused(app, m->tmpl);
        free(m->v);
        explicit_bzero(m->token, sizeof m->token);
        free(m);
        start_queued(app);
        warm_check(app);
}

static void on_row(void *arg, int err, const struct error *e) {
        struct making *m = arg;
        if (m->app->stopping)
                return; /* variants_free() frees */
        if (err >= 0) {
                if (map_put(m->app->variants->known, m->v->key, m->v) >= 0)
                        m->v = NULL;
                tell_progress(m, "done", 100);
        }
        finish(m, err, e);
}

static void row_insert(struct variant *v, struct db_batch *b) {
        v->created_ms = v->used_ms = clock_real_ms();
        db_batch_add(b,
                     "INSERT OR REPLACE INTO variants (digest, name, engine, memory_mb, cpus, created_ms)"
                     " VALUES (?, ?, ?, ?, ?, ?)",
                     "sssiii", v->digest, v->name, v->engine, (int64_t) v->memory_mb, (int64_t) v->cpus, v->created_ms);
}

static void on_cleared(void *arg) {
        struct making *m = arg;
        m->id[0] = 0;
        if (!m->committed) {
                if (m->tries < TRIES_MAX && m->retry && !m->abandoned && !m->app->stopping) {
                        advance(m);
                        return;
                }
                finish(m, m->err, &m->e);
                return;
        }
        if ((m->freezes == 0 || m->refreeze) && str_eq(m->v->engine, "qemu-tcg") && m->app->conf.process_images) {
                m->freezes++;
                m->refreeze = false;
                freeze(m);
                return;
        }
        m->stage = ROW;
        struct db_batch *b = db_batch_new();
        row_insert(m->v, b);
        db_batch_add(b, /* those of an earlier QEMU or command line; cspace-rootd has removed their files */
                     "DELETE FROM variants WHERE digest = ? AND engine = ? AND memory_mb = ? AND cpus = ? AND name <> ?",
                     "ssiis", m->v->digest, m->v->engine, (int64_t) m->v->memory_mb, (int64_t) m->v->cpus, m->v->name);
        int r = db_batch_submit(m->app->db, b, on_row, m);
        if (r < 0) {
                struct error e = ERROR_INIT;
                (void) error_errno(&e, r, "could not store the variant");
                finish(m, r, &e);
        }
}

static void clear(struct making *m) {
        drop_vm(m);
        set_stage(m, CLEAR);
        if (removal_start(m->app, REMOVAL_PLACEMENT, m->id, on_cleared, m) < 0) {
                struct error e = ERROR_INIT;
                finish(m, error_set(&e, -ENOMEM, "out of memory"), &e);
        }
}

/* A VM that boots for a snapshot has its memory in a file of the data folder, and is killed where that finds no room. */
static bool no_room(const struct app *app) {
        struct statvfs v;
        return statvfs(app->conf.data, &v) == 0 && (uint64_t) v.f_bavail * v.f_frsize < NO_ROOM_BYTES;
}

static void fail(struct making *m, int err, const char *why) {
        if (m->app->stopping || m->stage == CLEAR || m->stage == ROW)
                return;
        if (err == -EIO && no_room(m->app)) {
                err = -ENOSPC;
                why = "the data folder is full";
        }
        if (m->freezes > 0) {
                struct error e = ERROR_INIT;
                m->refreeze = m->freezes < FREEZES_MAX && err != -EOPNOTSUPP && err != -ENOSPC;
                (void) error_set(&e, err, "%s (%s): %s",
                                 m->refreeze ? "the image of its process is tried once more" : "it stays without the image of a process",
                                 stages[m->stage].text, why);
                tell_log(m, e.msg);
                if (!m->asked)
                        clear(m);
                return;
        }
        m->err = err;
        m->retry = (m->stage == BOOT && err != -ENOSPC) || err == -ETIMEDOUT;
        m->e = ERROR_INIT;
        (void) error_set(&m->e, err, "the template's variant %s could not be made (%s): %s", m->v->name,
                         stages[m->stage].text, why);
        tell_log(m, m->e.msg);
        if (m->asked)
                return; /* its answer ends this try */
        clear(m);
}

/* What is committed already stays: it is paid for. */
static void abandon(struct making *m) {
        struct error e = ERROR_INIT;
        (void) error_set(&e, -ECANCELED, "nobody waits for variant %s any more", m->v->name);
        m->abandoned = m->stage < COMMIT;
        if (!m->abandoned)
                return;
        if (m->stage == QUEUED)
                finish(m, e.code, &e);
        else
                fail(m, e.code, e.msg);
}

/* ---- steps --------------------------------------------------------------------------------- */

/* Decodes nothing: the answers of SNAPSHOT and VARIANT_COMMIT are empty. True: go on. */
static bool went_well(struct making *m, int err, const struct error *e) {
        if (err == -ECANCELED)
                return false;
        if (err < 0) {
                fail(m, err, e->msg);
                return false;
        }
        return true;
}

/* The answer of VARIANT_COMMIT, and of VARIANT_FREEZE, before which it was committed. */
static void on_committed(void *arg, int err, const struct error *e, struct ipc_packet *p) {
        (void) p;
        struct making *m = arg;
        m->asked = false;
        if (err == -ECANCELED && m->app->stopping)
                return;
        if (err < 0) {
                fail(m, err, e->msg);
                return;
        }
        m->committed = true;
        clear(m);
}

/* COMMIT and FREEZE have the same members. */
static void store(struct making *m, enum stage stage, uint16_t type) {
        struct error own = ERROR_INIT;
        struct ipc_variant_commit c = { 0 };
        uint8_t body[sizeof c + 64];
        size_t n = 0;
        set_stage(m, stage);
        (void) str_copy(c.id, sizeof c.id, m->id);
        (void) str_copy(c.digest, sizeof c.digest, m->v->digest);
        (void) str_copy(c.variant, sizeof c.variant, m->v->name);
        _Static_assert(sizeof(struct ipc_variant_commit) == sizeof(struct ipc_variant_freeze), "the same members");
        int r = ipc_variant_commit_encode(&c, body, sizeof body, &n);
        if (r >= 0)
                r = rootd_call(m->app->rootd, type, body, n, NULL, 0, COMMIT_TIMEOUT_MS, on_committed, m, &own);
        if (r < 0)
                fail(m, r, own.msg);
        else
                m->asked = true;
}

static void on_snapshot(void *arg, int err, const struct error *e, struct ipc_packet *p) {
        (void) p;
        struct making *m = arg;
        if (went_well(m, err, e))
                store(m, COMMIT, IPC_VARIANT_COMMIT);
}

static void on_parked(void *arg, int err, const struct error *e, struct ipc_packet *p) {
        (void) p;
        struct making *m = arg;
        struct error own = ERROR_INIT;
        if (!went_well(m, err, e))
                return;
        if (++m->heats < HEATS) {
                m->stage = THAW;
                if ((err = identify(m, &own)) < 0)
                        fail(m, err, own.msg);
                return;
        }
        store(m, FREEZE, IPC_VARIANT_FREEZE);
}

static void on_warm_step(void *arg, const char *what, unsigned at, unsigned of) {
        struct making *m = arg;
        char text[64];
        if (m->heats > 0)
                return;
        const enum stage next = m->stage == HEAT ? PARK : SNAPSHOT;
        int span = stages[next].percent - stages[m->stage].percent;
        (void) snprintf(text, sizeof text, "%s (%u of %u)", m->stage == HEAT ? stages[HEAT].text : what, at, of);
        tell_progress(m, text, stages[m->stage].percent + (int) (at - 1) * span / (int) of);
}

static void put_to_rest(void *arg) {
        struct making *m = arg;
        struct error e = ERROR_INIT;
        bool heat = m->stage == HEAT;
        m->rest = NULL;
        set_stage(m, heat ? PARK : SNAPSHOT);
        struct ipc_park park = { .keep = m->heats + 1 < HEATS };
        uint8_t body[16];
        size_t n = 0;
        int r = heat ? ipc_park_encode(&park, body, sizeof body, &n) : 0;
        if (r >= 0)
                r = warden_call(m->warden, heat ? IPC_PARK : IPC_SNAPSHOT, body, n, SNAPSHOT_TIMEOUT_MS, heat ? on_parked : on_snapshot, m, &e);
        if (r < 0)
                fail(m, r, e.msg);
}

static void on_warm(void *arg, int err, const struct error *e) {
        struct making *m = arg;
        m->warmup = NULL;
        if (!went_well(m, err, e))
                return;
        proxy_drop(m->app->proxy, m->id);
        if (m->stage != HEAT || m->heats + 1 < HEATS)
                put_to_rest(m);
        else if (!(m->rest = timer_start(m->app->loop, REST_MS, put_to_rest, m)))
                fail(m, -ENOMEM, "out of memory");
}

static const struct warmup_ops warmup_ops = { .on_step = on_warm_step, .on_done = on_warm };

static void on_booted(void *arg, int err, const struct error *e, struct ipc_packet *p) {
        (void) p;
        struct making *m = arg;
        struct error own = ERROR_INIT;
        if (!went_well(m, err, e))
                return;
        if (m->stage == BOOT)
                tell_log(m, "booted");
        if (m->heats > 0)
                m->stage = HEAT;
        else
                set_stage(m, m->stage == THAW ? HEAT : WARM);
        int r = warmup_start(m->app, m->id, m->token,
                             json_object_get(json_object_get(m->tmpl->manifest, "config"), "warm"), &warmup_ops, m, &m->warmup, &own);
        if (r < 0)
                fail(m, r, own.msg);
}

static void on_event(void *arg, const struct ipc_warden_event *e) {
        struct making *m = arg;
        /* Between the snapshot and its answer the VM ends as it should. */
        if ((m->stage < SNAPSHOT || (m->stage > COMMIT && m->stage < FREEZE)) && (strcmp(e->state, "failed") == 0 || strcmp(e->state, "exited") == 0))
                fail(m, -EIO, e->reason[0] ? e->reason : "the VM ended");
}

static void on_close(void *arg, int err) {
        struct making *m = arg;
        if (m->stage <= SNAPSHOT || (m->stage > COMMIT && m->stage < FREEZE))
                fail(m, err, "the warden ended");
}

static const struct warden_handler warden_handler = { .on_event = on_event, .on_close = on_close };

/* Of an authority that nobody has: only for a guest that does all a sandbox's does with its identity. */
static char *some_ca(struct error *err) {
        uint8_t seed[CA_SEED_BYTES];
        struct ca *ca = NULL;
        const char *pem = random_bytes(seed, sizeof seed) < 0 || ca_new(seed, &ca, err) < 0 ? NULL : ca_pem(ca, err);
        char *copy = pem ? strdup(pem) : NULL;
        ca_free(ca);
        return copy;
}

static int identify(struct making *m, struct error *err) {
        bool heat = m->committed; /* as a sandbox, then: what it does with that is to be translated */
        _cleanup_free_ char *json = NULL, *ca = heat ? some_ca(err) : NULL;
        uint8_t raw[SANDBOX_TOKEN_LEN / 2];
        if (random_bytes(raw, sizeof raw) < 0)
                return error_set(err, -EIO, "no randomness");
        str_hex(raw, sizeof raw, m->token);
        json_t *j = json_pack("{s:s, s:s, s:s, s:{}, s:s, s:s, s:s, s:s*}", "sandboxId", m->id, "templateId", m->v->digest,
                              "hostname", heat ? m->id : "template", "env", "accessToken", m->token, "defaultUser", "user",
                              "defaultWorkdir", "", "caCertificate", ca);
        json = j ? json_dumps(j, JSON_COMPACT) : NULL;
        json_decref(j);
        if (!json)
                return error_set(err, -ENOMEM, "out of memory");
        struct ipc_identify q = { .json = json, .json_n = strlen(json) };
        uint8_t body[IDENTITY_MAX];
        size_t n = 0;
        int r = ipc_identify_encode(&q, body, sizeof body, &n);
        if (r < 0)
                return error_errno(err, r, "could not make the identity");
        return warden_call(m->warden, IPC_IDENTIFY, body, n, BOOT_TIMEOUT_MS, on_booted, m, err);
}

static void on_placed(void *arg, int err, const struct error *e, struct ipc_packet *p) {
        (void) p;
        struct making *m = arg;
        struct error own = ERROR_INIT;
        m->asked = false;
        if (err == -ECANCELED && m->app->stopping)
                return;
        if (err >= 0 && m->abandoned) {
                clear(m);
                return;
        }
        if (err < 0) {
                fail(m, err, e->msg);
                return;
        }
        if (m->stage == PLACE)
                set_stage(m, BOOT);
        int r = warden_connect(m->app, m->id, &warden_handler, m, &m->warden, &own);
        if (r >= 0)
                r = identify(m, &own);
        if (r < 0)
                fail(m, r, own.msg);
}

static void advance(struct making *m) {
        struct error e = ERROR_INIT;
        m->tries++;
        m->err = 0;
        if (!m->t0_ms)
                m->t0_ms = clock_mono_ms();
        set_stage(m, PLACE);
        int r = id_new(m->id);
        if (r >= 0)
                r = place_call(m->app, m->id, "boot", m->v->digest, m->v->memory_mb, m->v->cpus, 0, "", false, PLACE_TIMEOUT_MS,
                               on_placed, m, &e);
        if (r < 0) {
                m->id[0] = 0;
                finish(m, r, &e);
                return;
        }
        m->asked = true;
}

static void freeze(struct making *m) {
        struct error e = ERROR_INIT;
        set_stage(m, THAW);
        m->heats = 0;
        int r = id_new(m->id);
        if (r >= 0)
                r = place_call(m->app, m->id, "restore", m->v->digest, m->v->memory_mb, m->v->cpus, 0, "", false, PLACE_TIMEOUT_MS,
                               on_placed, m, &e);
        if (r < 0)
                fail(m, r, e.msg);
        else
                m->asked = true;
}

static void on_start(void *arg) {
        struct making *m = arg;
        m->start = NULL;
        advance(m);
}

static void start_queued(struct app *app) {
        unsigned running = 0;
        for (struct making *m = app->variants->making; m; m = m->next)
                running += m->stage != QUEUED || m->start;
        for (struct making *m = app->variants->making; m && running < MAKING_MAX; m = m->next)
                if (m->stage == QUEUED && !m->start) {
                        m->start = timer_start(app->loop, 0, on_start, m);
                        running++;
                }
}

/* ---- entry --------------------------------------------------------------------------------- */

static struct making *find_making(struct app *app, const char *key) {
        for (struct making *m = app->variants->making; m; m = m->next)
                if (strcmp(m->v->key, key) == 0 && !m->abandoned)
                        return m;
        return NULL;
}

static struct making *making_new(struct app *app, struct tmpl *t, const struct variant *v) {
        struct making *m = calloc(1, sizeof *m);
        struct variant *copy = calloc(1, sizeof *copy);
        if (!m || !copy) {
                free(m);
                free(copy);
                return NULL;
        }
        *copy = *v;
        m->app = app;
        m->v = copy;
        m->tmpl = t;
        t->pins++;
        struct making **end = &app->variants->making;
        while (*end)
                end = &(*end)->next;
        *end = m;
        return m;
}

/* Whether a sandbox that uses the host's memory, or waits in the pool, is of it. */
static bool in_use(struct app *app, const struct variant *v) {
        for (const struct sandbox *s = sandbox_oldest(app); s; s = s->next)
                if ((SANDBOX_BIT(s->state) & (SANDBOX_ALIVE | SANDBOX_BIT(SANDBOX_POOLED))) && s->memory_mb == v->memory_mb &&
                    s->cpus == v->cpus && strcmp(s->digest, v->digest) == 0)
                        return true;
        return false;
}

static void remove_files(struct app *app, const char *key) {
        if (removal_start(app, REMOVAL_VARIANT, key, NULL, NULL) < 0)
                log_error("variant %s: out of memory, its files stay", key);
}

static void forget(struct app *app, struct variant *v, struct db_batch *b);

/* Room for one more variant of the template, or an error. */
static int make_room(struct app *app, const struct tmpl *t, struct error *err) {
        size_t pos = 0;
        unsigned n = 0;
        struct variant *v, *oldest = NULL;
        while ((v = map_next(app->variants->known, &pos))) {
                if (strcmp(v->digest, t->digest) != 0)
                        continue;
                n++;
                if ((!oldest || v->used_ms < oldest->used_ms) && !in_use(app, v))
                        oldest = v;
        }
        for (const struct making *m = app->variants->making; m; m = m->next)
                n += m->tmpl == t && !m->abandoned;
        if (n < VARIANTS_MAX)
                return 0;
        if (!oldest)
                return error_set(err, -EUSERS,
                                 "the template has snapshots for %u sizes, which is the limit, and sandboxes of all of them run: use"
                                 " one of these sizes",
                                 n);
        struct db_batch *b = db_batch_new();
        log_info("variant %s of %.12s makes way for another size", oldest->name, oldest->digest);
        remove_files(app, oldest->key);
        forget(app, oldest, b);
        (void) db_batch_submit(app->db, b, NULL, NULL);
        return 0;
}

int variant_ensure(struct app *app, struct tmpl *t, uint32_t memory_mb, uint32_t cpus,
                   const struct variant_waiter *waiter, void *arg, struct variant_wait **ret, struct error *err) {
        struct variant v = { 0 };
        if (!rootd_engine(app->rootd)[0])
                return error_set(err, -ENOTCONN, "cspace-rootd is not reachable");
        variant_names(app, &v, t->digest, memory_mb, cpus);
        struct variant *known = map_get(app->variants->known, v.key);
        if (known) {
                known->used_ms = clock_real_ms();
                return 1;
        }
        uint32_t memory, n;
        if (template_snapshot(t, &memory, &n))
                return error_set(err, -EINVAL, "the template is of a VM that ran, with %u MiB and %u CPU%s, and %s", memory, n, str_s(n),
                                 memory == memory_mb && n == cpus ? "of another QEMU than this host's: publish it again"
                                                                  : "has no other sizes");
        struct making *m = find_making(app, v.key);
        if (!m) {
                int r = make_room(app, t, err);
                if (r < 0)
                        return r;
        }
        struct variant_wait *w = calloc(1, sizeof *w);
        if (w && !m)
                m = making_new(app, t, &v);
        if (!w || !m) {
                free(w);
                return error_set(err, -ENOMEM, "out of memory");
        }
        *w = (struct variant_wait){ .making = m, .waiter = waiter, .arg = arg, .next = m->waits };
        m->waits = w;
        *ret = w;
        if (waiter->on_progress)
                waiter->on_progress(arg, stages[m->stage].text, stages[m->stage].percent, -1);
        start_queued(app);
        return 0;
}

int variant_adopt(struct app *app, const struct tmpl *t, uint32_t memory_mb, uint32_t cpus, struct db_batch *b) {
        struct variant *v = calloc(1, sizeof *v);
        if (!v)
                return -ENOMEM;
        variant_names(app, v, t->digest, memory_mb, cpus);
        row_insert(v, b);
        int r = map_put(app->variants->known, v->key, v);
        if (r < 0)
                free(v);
        return r == -EEXIST ? 0 : r;
}

bool variant_known(struct app *app, const char *digest, uint32_t memory_mb, uint32_t cpus) {
        struct variant v = { 0 };
        variant_names(app, &v, digest, memory_mb, cpus);
        return map_get(app->variants->known, v.key) != NULL;
}

static void forget(struct app *app, struct variant *v, struct db_batch *b) {
        (void) map_remove(app->variants->known, v->key);
        db_batch_add(b, "DELETE FROM variants WHERE digest = ? AND name = ?", "ss", v->digest, v->name);
        free(v);
}

void variant_forget(struct app *app, const char *digest, uint32_t memory_mb, uint32_t cpus) {
        struct variant v = { 0 };
        variant_names(app, &v, digest, memory_mb, cpus);
        struct variant *known = map_get(app->variants->known, v.key);
        if (!known)
                return;
        struct db_batch *b = db_batch_new();
        log_warn("variant %s of %.12s is not on this host any more", known->name, known->digest);
        forget(app, known, b);
        (void) db_batch_submit(app->db, b, NULL, NULL);
}

void variant_damaged(struct app *app, const char *digest, uint32_t memory_mb, uint32_t cpus) {
        struct variant v = { 0 };
        variant_names(app, &v, digest, memory_mb, cpus);
        struct variant *known = map_get(app->variants->known, v.key);
        if (!known)
                return;
        struct db_batch *b = db_batch_new();
        log_warn("variant %s of %.12s: the image of its process does not start; it is made anew at its next use", known->name, known->digest);
        remove_files(app, known->key);
        forget(app, known, b);
        (void) db_batch_submit(app->db, b, NULL, NULL);
}

void variants_forget_all(struct app *app, const char *digest, struct db_batch *b) {
        size_t pos = 0;
        struct variant *v;
        while ((v = map_next(app->variants->known, &pos)))
                if (strcmp(v->digest, digest) == 0)
                        forget(app, v, b);
}

bool variant_owns(struct app *app, const char *id) {
        for (const struct making *m = app->variants->making; m; m = m->next)
                if (strcmp(m->id, id) == 0)
                        return true;
        return false;
}

void variant_vm_ended(struct app *app, const char *id) {
        for (struct making *m = app->variants->making; m; m = m->next)
                if (strcmp(m->id, id) == 0 && (m->stage < SNAPSHOT || (m->stage > COMMIT && m->stage < FREEZE))) {
                        fail(m, -EIO, "the VM ended");
                        return;
                }
}

json_t *variants_to_json(struct app *app, const char *digest) {
        json_t *a = json_array();
        size_t pos = 0;
        const struct variant *v;
        while ((v = map_next(app->variants->known, &pos))) {
                if (strcmp(v->digest, digest) != 0)
                        continue;
                char created[RFC3339_SIZE];
                clock_rfc3339(v->created_ms, created);
                (void) json_array_append_new(a, json_pack("{s:s, s:s, s:I, s:I, s:s}", "name", v->name, "engine", v->engine,
                                                          "memory_mb", (json_int_t) v->memory_mb, "cpus",
                                                          (json_int_t) v->cpus, "created_at", created));
        }
        return a;
}

struct loading {
        struct app *app;
        struct variants *all;
};

static int load_row(void *arg, struct db_row *row, struct error *err) {
        struct loading *loading = arg;
        struct variants *all = loading->all;
        struct variant *v = calloc(1, sizeof *v);
        if (!v)
                return error_set(err, -ENOMEM, "out of memory");
        if (str_copy(v->digest, sizeof v->digest, db_row_str(row, 0)) < 0 ||
            str_copy(v->name, sizeof v->name, db_row_str(row, 1)) < 0 ||
            str_copy(v->engine, sizeof v->engine, db_row_str(row, 2)) < 0) {
                free(v);
                return error_set(err, -EBADMSG, "state.db: a variant's row is damaged");
        }
        v->memory_mb = (uint32_t) db_row_int(row, 3);
        v->cpus = (uint32_t) db_row_int(row, 4);
        v->created_ms = v->used_ms = db_row_int(row, 5);
        char now[VARIANT_NAME_MAX + 1];
        variant_name(v->engine, v->memory_mb, v->cpus, now);
        (void) snprintf(v->key, sizeof v->key, "%s/%s", v->digest, v->name);
        /* Made by another QEMU or build: it would not load. Or its template has gone. */
        if (!str_eq(now, v->name) || !template_find(loading->app, v->digest)) {
                v->next = all->outdated;
                all->outdated = v;
                return 0;
        }
        if (map_put(all->known, v->key, v) < 0) {
                free(v);
                return error_set(err, -ENOMEM, "out of memory");
        }
        return 0;
}

int variants_load(struct app *app, struct variants **ret, struct error *err) {
        struct variants *all = calloc(1, sizeof *all);
        if (all)
                all->known = map_new();
        if (!all || !all->known) {
                free(all);
                return error_set(err, -ENOMEM, "out of memory");
        }
        all->last_ms = FIRST_GUESS_MS;
        *ret = all;
        return db_query(db_conn_of(app->db), load_row, &(struct loading){ app, all }, err,
                        "SELECT digest, name, engine, memory_mb, cpus, created_ms FROM variants", "");
}

void variants_collect(struct app *app) {
        struct variants *all = app->variants;
        if (!all->outdated)
                return;
        struct db_batch *b = db_batch_new();
        while (all->outdated) {
                struct variant *v = all->outdated;
                all->outdated = v->next;
                log_info("variant %s of %.12s is of another QEMU, build or template, and is removed", v->name, v->digest);
                if (digest_valid(v->digest) && template_find(app, v->digest))
                        remove_files(app, v->key);
                db_batch_add(b, "DELETE FROM variants WHERE digest = ? AND name = ?", "ss", v->digest, v->name);
                free(v);
        }
        (void) db_batch_submit(app->db, b, NULL, NULL);
}

void variants_abandon(struct app *app) {
        for (struct making *m = app->variants ? app->variants->making : NULL; m; m = m->next) {
                timer_cancel(STEAL(m->start));
                timer_cancel(STEAL(m->rest));
                struct warmup *wu = STEAL(m->warmup);
                struct warden *w = STEAL(m->warden);
                warmup_cancel(wu);
                warden_free(w);
        }
}

void variants_free(struct variants *all) {
        if (!all)
                return;
        while (all->outdated) {
                struct variant *v = all->outdated;
                all->outdated = v->next;
                free(v);
        }
        while (all->making) {
                struct making *m = all->making;
                all->making = m->next;
                while (m->waits) {
                        struct variant_wait *wait = m->waits;
                        m->waits = wait->next;
                        free(wait);
                }
                free(m->v);
                free(m);
        }
        size_t pos = 0;
        struct variant *v;
        while ((v = map_next(all->known, &pos)))
                free(v);
        map_free(all->known);
        free(all);
}
