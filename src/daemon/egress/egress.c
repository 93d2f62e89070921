/* SPDX-License-Identifier: Apache-2.0 */

#include "egress_internal.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "app.h"
#include "base/cleanup.h"
#include "base/id.h"
#include "base/json.h"
#include "base/log.h"
#include "base/str.h"
#include "bindings.h"
#include "policies.h"
#include "sandbox/sandbox_flow.h"
#include "store/db.h"

#define SEED_TEXT_SIZE (4 * ((CA_SEED_BYTES + 2) / 3) + 1)

static int count_rules(const struct sandbox *s, const json_t *policy, uint32_t *ret, struct error *err) {
        _cleanup_policy_ struct policy *p = NULL;
        int r = policy_check(s->tmpl, policy, &p, err);
        if (r < 0)
                return r;
        *ret = (uint32_t) policy_n_rules(p);
        return 0;
}

static struct egress *alloc(struct app *app, struct sandbox *s) {
        struct egress *e = calloc(1, sizeof *e);
        if (!e || random_bytes(e->seed, sizeof e->seed) < 0) {
                free(e);
                return NULL;
        }
        e->app = app;
        e->s = s;
        e->generation = 1;
        return e;
}

int egress_new(struct app *app, struct sandbox *s, const json_t *policy, const json_t *bindings, struct error *err) {
        bool own = policy != NULL;
        uint32_t rules = 0;
        if (!own)
                policy = policy_of_template(app, s->template_ref, s->digest);
        int r = count_rules(s, policy, &rules, err);
        if (r < 0)
                return error_wrap(err, own ? "policy" : "the template's default policy");
        if (bindings && (r = bindings_check(bindings, err)) < 0)
                return error_wrap(err, "bindings");
        struct egress *e = alloc(app, s);
        if (e && policy)
                e->policy = json_deep_copy(policy);
        if (e && bindings)
                e->bindings = json_deep_copy(bindings);
        if (!e || (policy && !e->policy) || (bindings && !e->bindings)) {
                egress_free(e);
                return error_set(err, -ENOMEM, "out of memory");
        }
        e->rules = rules;
        s->egress = e;
        return 0;
}

int egress_fork(struct app *app, struct sandbox *s, const struct sandbox *of, bool own, const json_t *policy, bool bindings,
                struct error *err) {
        const struct egress *from = of->egress;
        uint32_t rules = 0;
        if (!own)
                policy = from ? from->policy : NULL;
        int r = count_rules(s, policy, &rules, err);
        if (r < 0)
                return error_wrap(err, own ? "policy" : "the policy of the sandbox that is forked");
        struct egress *e = alloc(app, s);
        const json_t *list = bindings && from ? from->bindings : NULL;
        if (e && policy)
                e->policy = json_deep_copy(policy);
        if (e && list)
                e->bindings = json_deep_copy(list);
        if (!e || (policy && !e->policy) || (list && !e->bindings)) {
                egress_free(e);
                return error_set(err, -ENOMEM, "out of memory");
        }
        if (from) {
                const char *ca = egress_ca(of); /* the same seed makes the same one; not anew for each copy */
                memcpy(e->seed, from->seed, sizeof e->seed);
                e->ca = ca ? strdup(ca) : NULL;
        }
        e->rules = rules;
        s->egress = e;
        egress_fork_names(s, of);
        return 0;
}

void egress_fork_names(struct sandbox *s, const struct sandbox *of) {
        if (!s->egress || !of->egress)
                return;
        json_decref(s->egress->names);
        s->egress->names = json_incref(of->egress->names); /* replaced, never changed */
}

void egress_free(struct egress *e) {
        if (!e)
                return;
        explicit_bzero(e->seed, sizeof e->seed);
        json_decref(e->policy);
        json_decref(e->applied);
        json_decref(e->bindings);
        json_decref(e->applied_bindings);
        json_decref(e->names);
        free(e->ca);
        free(e);
}

/* ---- rows ---------------------------------------------------------------------------------- */

static void row_write(const struct egress *e, struct db_batch *b) {
        char seed[SEED_TEXT_SIZE];
        base64_encode(e->seed, sizeof e->seed, seed);
        db_batch_add(b, "INSERT OR REPLACE INTO egress (sandbox_id, policy, ca_seed, names, bindings) VALUES (?, ?, ?, ?, ?)", "sjsjj",
                     e->s->id, e->policy, seed, e->names, e->bindings);
        explicit_bzero(seed, sizeof seed);
}

void egress_row_insert(const struct sandbox *s, struct db_batch *b) {
        if (s->egress)
                row_write(s->egress, b);
}

void egress_row_delete(const struct sandbox *s, struct db_batch *b) {
        db_batch_add(b, "DELETE FROM egress WHERE sandbox_id = ?", "s", s->id);
}

void egress_store(struct egress *e, egress_cb cb, void *arg) {
        struct db_batch *b = db_batch_new();
        row_write(e, b);
        int r = db_batch_submit(e->app->db, b, cb, arg);
        if (r < 0 && cb) {
                struct error err = ERROR_INIT;
                (void) error_errno(&err, r, "could not store the change");
                cb(arg, r, &err);
        }
}

static int load_json(const char *text, size_t max, json_t **ret) {
        return text ? json_parse(text, strlen(text), max, ret, NULL) : 0;
}

static int load_row(void *arg, struct db_row *row, struct error *err) {
        struct app *app = arg;
        struct sandbox *s = sandbox_find_all(app, db_row_str(row, 0));
        const char *seed = db_row_str(row, 2);
        uint8_t raw[SEED_TEXT_SIZE];
        if (!s || s->egress)
                return 0; /* a sandbox that was not made */
        struct egress *e = alloc(app, s);
        if (!e)
                return error_set(err, -ENOMEM, "out of memory");
        s->egress = e;
        if (!seed || strlen(seed) >= SEED_TEXT_SIZE || base64_decode(seed, strlen(seed), raw) != CA_SEED_BYTES ||
            load_json(db_row_str(row, 1), LIMIT_JSON_BODY, &e->policy) < 0 ||
            load_json(db_row_str(row, 3), EGRESS_NAMES_MAX, &e->names) < 0 ||
            load_json(db_row_str(row, 4), LIMIT_JSON_BODY, &e->bindings) < 0)
                return error_set(err, -EBADMSG, "state.db: the row of a sandbox's egress is damaged");
        memcpy(e->seed, raw, sizeof e->seed);
        explicit_bzero(raw, sizeof raw);
        /* A template that is gone has no presets: the gateway will say so. */
        if (count_rules(s, e->policy, &e->rules, NULL) < 0)
                e->rules = (uint32_t) json_array_size(json_object_get(e->policy, "rules"));
        return 0;
}

/* Those that are older than gateways. */
static void add_missing(struct app *app) {
        struct db_batch *b = db_batch_new();
        for (struct sandbox *s = sandbox_oldest(app); s; s = s->next)
                if (!s->egress && s->state != SANDBOX_POOLED && s->state != SANDBOX_DELETING && (s->egress = alloc(app, s)))
                        egress_row_insert(s, b);
        db_batch_add(b, "DELETE FROM egress WHERE sandbox_id NOT IN (SELECT id FROM sandboxes)", "");
        (void) db_batch_submit(app->db, b, NULL, NULL);
}

int egress_load(struct app *app, struct error *err) {
        int r = db_query(db_conn_of(app->db), load_row, app, err, "SELECT sandbox_id, policy, ca_seed, names, bindings FROM egress", "");
        if (r >= 0)
                add_missing(app);
        return r;
}

/* ---- changing the policy ------------------------------------------------------------------- */

static void waiter_end(struct egress_waiter *w, int err, const struct error *why) {
        timer_cancel(w->timer);
        w->cb(w->arg, err, why);
        sandbox_unref(w->egress->s);
        free(w);
}

static struct egress_waiter *waiters_take(struct egress *e, uint64_t up_to) {
        struct egress_waiter *taken = NULL, **end = &taken;
        for (struct egress_waiter **at = &e->waiters; *at;) {
                struct egress_waiter *w = *at;
                if (w->generation > up_to) {
                        at = &w->next;
                        continue;
                }
                *at = w->next;
                w->next = NULL;
                *end = w;
                end = &w->next;
                timer_cancel(w->timer);
                w->timer = NULL;
        }
        return taken;
}

static void waiters_end(struct egress_waiter *list, int err, const struct error *why) {
        while (list) { /* their sandbox may go with the last of them */
                struct egress_waiter *w = list;
                list = w->next;
                waiter_end(w, err, why);
        }
}

void egress_waiters_done(struct egress *e, uint64_t up_to, int err, const struct error *why) {
        waiters_end(waiters_take(e, up_to), err, why);
}

static void on_patience(void *arg) {
        struct egress_waiter *w = arg;
        struct error err = ERROR_INIT;
        w->timer = NULL;
        for (struct egress_waiter **at = &w->egress->waiters; *at; at = &(*at)->next)
                if (*at == w) {
                        *at = w->next;
                        break;
                }
        int r = error_set(&err, -ETIMEDOUT, "the policy is stored, but the sandbox's gateway did not answer in %d s (%s); it gets it"
                          " as soon as it is back", EGRESS_CHANGE_MS / 1000, w->egress->reason[0] ? w->egress->reason : "busy");
        waiter_end(w, r, &err);
}

/* Of a row that says that it has a VM, and of which nobody has told yet: a gateway may run, with what an earlier cspaced gave it. */
static bool untold(const struct sandbox *s) {
        const unsigned has_vm = SANDBOX_HAS_VM | SANDBOX_BIT(SANDBOX_PAUSING) |
                                SANDBOX_BIT(SANDBOX_RESUMING) | SANDBOX_BIT(SANDBOX_SUSPENDING) | SANDBOX_BIT(SANDBOX_STOPPING);
        return s->egress->state == EGRESS_OFF && !s->life && (has_vm & SANDBOX_BIT(s->state));
}

static void on_stored(void *arg, int err, const struct error *why) {
        struct egress_waiter *w = arg;
        struct egress *e = w->egress;
        if (err >= 0 && !e->app->stopping && untold(e->s))
                egress_find(e);
        if (err < 0 || e->app->stopping || e->state == EGRESS_OFF || !e->there) {
                if (err >= 0 && e->state != EGRESS_OFF)
                        bindings_want_tokens(e->app, e->bindings); /* there when the first request comes */
                waiter_end(w, err, why);
                return;
        }
        w->next = e->waiters;
        e->waiters = w;
        w->timer = timer_start(e->app->loop, EGRESS_CHANGE_MS, on_patience, w);
        if (e->state == EGRESS_ACTIVE && !e->asked && e->sent >= w->generation)
                egress_waiters_done(e, e->sent, 0, NULL);
        else
                egress_push(e);
}

/* What e has is another one already: stores it, tells the gateway, answers. */
static int change(struct egress *e, egress_cb cb, void *arg, struct error *err) {
        struct egress_waiter *w = calloc(1, sizeof *w);
        if (!w)
                return error_set(err, -ENOMEM, "out of memory");
        *w = (struct egress_waiter){ .egress = e, .generation = ++e->generation, .cb = cb, .arg = arg };
        (void) sandbox_ref(e->s);
        egress_store(e, on_stored, w);
        return 0;
}

static int replace(json_t **at, const json_t *with, struct error *err) {
        json_t *copy = with ? json_deep_copy(with) : NULL;
        if (with && !copy)
                return error_set(err, -ENOMEM, "out of memory");
        json_decref(*at);
        *at = copy;
        return 0;
}

static int no_egress(struct error *err) {
        return error_set(err, -EBUSY, "the sandbox is not there yet, or not any more");
}

int egress_set_policy(struct app *app, struct sandbox *s, const json_t *policy, egress_cb cb, void *arg, struct error *err) {
        struct egress *e = s->egress;
        uint32_t rules = 0;
        (void) app;
        int r = e ? count_rules(s, policy, &rules, err) : no_egress(err);
        if (r >= 0)
                r = replace(&e->policy, policy, err);
        if (r < 0)
                return r;
        e->rules = rules;
        return change(e, cb, arg, err);
}

int egress_set_bindings(struct app *app, struct sandbox *s, const json_t *list, egress_cb cb, void *arg, struct error *err) {
        struct egress *e = s->egress;
        (void) app;
        int r = e ? bindings_check(list, err) : no_egress(err);
        if (r >= 0)
                r = replace(&e->bindings, list, err);
        return r < 0 ? r : change(e, cb, arg, err);
}

int egress_renew(struct app *app, struct sandbox *s, const char *credential, egress_cb cb, void *arg, struct error *err) {
        (void) app;
        if (!s->egress || !bindings_name(s->egress->bindings, credential))
                return -ENOENT;
        return change(s->egress, cb, arg, err);
}

bool egress_needs(const struct sandbox *s, const char *credential) {
        return s->egress && s->egress->state != EGRESS_OFF && bindings_name(s->egress->bindings, credential);
}

void egress_count_use(struct app *app, const char *id, const char *binding, uint64_t n) {
        struct sandbox *s = sandbox_find(app, id);
        if (s && s->egress && s->egress->bindings && bindings_count_use(s->egress->bindings, binding, n))
                egress_store(s->egress, NULL, NULL);
}

struct revert {
        struct egress_waiter *waiters;
        struct error why;
};

static void on_reverted(void *arg, int err, const struct error *e) {
        struct revert *r = arg;
        if (err < 0)
                log_error("a policy that was refused is still stored: %s", e->msg);
        waiters_end(r->waiters, r->why.code, &r->why);
        free(r);
}

int egress_revert(struct egress *e, const struct error *why) {
        struct revert *r = calloc(1, sizeof *r);
        if (!r)
                return -ENOMEM;
        r->waiters = waiters_take(e, e->sent);
        r->why = *why;
        json_decref(e->policy);
        e->policy = json_incref(e->applied);
        json_decref(e->bindings);
        e->bindings = json_incref(e->applied_bindings);
        if (count_rules(e->s, e->policy, &e->rules, NULL) < 0)
                e->rules = 0;
        e->generation++;
        egress_store(e, on_reverted, r);
        return 0;
}

/* ---- telling ------------------------------------------------------------------------------- */

const json_t *egress_policy(const struct sandbox *s) {
        return s->egress ? s->egress->policy : NULL;
}

const json_t *egress_bindings(const struct sandbox *s) {
        return s->egress ? s->egress->bindings : NULL;
}

const char *egress_ca(const struct sandbox *s) {
        struct egress *e = s->egress;
        struct error err = ERROR_INIT;
        struct ca *ca = NULL;
        if (!e || e->ca)
                return e ? e->ca : NULL;
        const char *pem = ca_new(e->seed, &ca, &err) < 0 ? NULL : ca_pem(ca, &err);
        if (pem)
                e->ca = strdup(pem);
        else
                log_error("sandbox %s: its guest will trust nobody: %s", s->id, err.msg);
        ca_free(ca);
        return e->ca;
}

enum egress_state egress_state(const struct sandbox *s) {
        return s->egress ? s->egress->state : EGRESS_OFF;
}

const char *egress_state_name(enum egress_state e) {
        static const char *const names[N_EGRESS_STATES] = { "off", "idle", "connecting", "active", "refused", "away" };
        return names[e];
}

json_t *egress_to_json(const struct sandbox *s) {
        const struct egress *e = s->egress;
        if (!e)
                return json_pack("{s:s, s:i}", "state", egress_state_name(EGRESS_OFF), "rules", 0);
        bool reason = e->state == EGRESS_REFUSED || e->state == EGRESS_AWAY;
        return json_pack("{s:s, s:I, s:s*, s:o*}", "state", egress_state_name(e->state), "rules", (json_int_t) e->rules, "reason",
                         reason ? e->reason : NULL, "warnings", policy_warnings(e->policy));
}
