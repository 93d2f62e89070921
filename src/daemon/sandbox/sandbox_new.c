/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Making a sandbox: what a caller asked for is checked against limits, the struct and its rows are
 * made, and the flow starts at once, beside the writing of the rows. When the rows cannot be
 * written, everything is undone; until then nobody outside knows the id.
 */

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "app.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "base/json.h"
#include "base/log.h"
#include "base/str.h"
#include "create.h"
#include "e2b/e2b.h"
#include "egress/egress.h"
#include "peers/warden.h"
#include "proxy/proxy.h"
#include "sandbox_flow.h"
#include "store/idem.h"
#include "store/op.h"
#include "warm.h"


/* ---- checks -------------------------------------------------------------------------------- */

static int fail(enum api_code *ret_code, enum api_code code, int r) {
        *ret_code = code;
        return r;
}

static int check_map(const json_t *map, const char *what, size_t max_items, size_t max_key, size_t max_value,
                     bool is_env, struct error *err) {
        const char *key;
        json_t *v;
        if (!map)
                return 0;
        if (!json_is_object(map))
                return error_set(err, -EINVAL, "\"%s\" must be an object of strings", what);
        if (json_object_size(map) > max_items)
                return error_set(err, -EINVAL, "\"%s\" has more than %zu members", what, max_items);
        json_object_foreach((json_t *) (uintptr_t) map, key, v) {
                size_t n = strlen(key);
                if (!json_is_string(v))
                        return error_set(err, -EINVAL, "\"%s\": the value of \"%.64s\" is not a string", what, key);
                if (n > max_key || (is_env && (n == 0 || strchr(key, '='))))
                        return error_set(err, -EINVAL, "\"%s\": \"%.64s\" is not a legal name", what, key);
                if (json_string_length(v) > max_value)
                        return error_set(err, -EINVAL, "\"%s\": the value of \"%.64s\" is longer than %zu bytes", what, key,
                                         max_value);
                if (strlen(json_string_value(v)) != json_string_length(v))
                        return error_set(err, -EINVAL, "\"%s\": the value of \"%.64s\" has a NUL byte", what, key);
        }
        return 0;
}

int sandbox_size_check(const struct app *app, uint32_t memory_mb, uint32_t cpus, struct error *err) {
        char low[STR_UNIT_SIZE], high[STR_UNIT_SIZE];
        uint64_t total = app->host_memory_mb, reserve = total / 4 < HOST_MEMORY_RESERVE_MB ? total / 4 : HOST_MEMORY_RESERVE_MB;
        if (memory_mb && (memory_mb < LIMIT_MEMORY_MIN_MB || memory_mb > LIMIT_MEMORY_MAX_MB))
                return error_set(err, -EINVAL, "memory must be from %s to %s", str_from_size((uint64_t) LIMIT_MEMORY_MIN_MB << 20, low),
                                 str_from_size((uint64_t) LIMIT_MEMORY_MAX_MB << 20, high));
        if (cpus > LIMIT_CPUS_MAX)
                return error_set(err, -EINVAL, "cpus must be from 1 to %d", LIMIT_CPUS_MAX);
        if (app->conf.max_memory_mb && memory_mb > app->conf.max_memory_mb)
                return error_set(err, -EINVAL, "memory of %u MiB is more than the %u MiB that are allowed (configuration:"
                                 " [sandbox] max_memory_mb)", memory_mb, app->conf.max_memory_mb);
        if (!app->conf.max_memory_mb && total && memory_mb > total - reserve)
                return error_set(err, -EINVAL, "memory of %u MiB is more than this host can give: it has %llu MiB, of which"
                                 " %llu are kept for itself (configuration: [sandbox] max_memory_mb)", memory_mb,
                                 (unsigned long long) total, (unsigned long long) reserve);
        if (app->conf.max_cpus && cpus > app->conf.max_cpus)
                return error_set(err, -EINVAL, "%u CPUs are more than the %u that %s allowed (configuration: [sandbox] max_cpus)",
                                 cpus, app->conf.max_cpus, app->conf.max_cpus == 1 ? "is" : "are");
        if (!app->conf.max_cpus && app->host_cpus && cpus > app->host_cpus)
                return error_set(err, -EINVAL, "%u CPUs are more than this host's %u (configuration: [sandbox] max_cpus)", cpus,
                                 app->host_cpus);
        return 0;
}

/* A VM that ran comes back in the size that it had. */
static void size_of(const struct app *app, const struct sandbox_params *p, const struct tmpl *t, uint32_t *memory_mb, uint32_t *cpus) {
        *memory_mb = app->conf.memory_mb;
        *cpus = app->conf.cpus;
        (void) template_snapshot(t, memory_mb, cpus);
        *memory_mb = p->memory_mb ? p->memory_mb : *memory_mb;
        *cpus = p->cpus ? p->cpus : *cpus;
}

static int check_size(const struct app *app, const struct sandbox_params *p, const struct tmpl *t, struct error *err) {
        int r = sandbox_size_check(app, p->memory_mb, p->cpus, err);
        if (r < 0)
                return r;
        char least[STR_UNIT_SIZE], asked[STR_UNIT_SIZE];
        uint32_t memory, cpus;
        if (template_snapshot(t, &memory, &cpus) &&
            ((p->memory_mb && p->memory_mb != memory) || (p->cpus && p->cpus != cpus)))
                return error_set(err, -EINVAL, "the template is of a VM that ran, with %u MiB and %u CPU%s, and has no other sizes",
                                 memory, cpus, str_s(cpus));
        if (p->disk_bytes && p->disk_bytes < t->disk_bytes)
                return error_set(err, -EINVAL, "the disk cannot be smaller than the template's (%s), and %s were asked for",
                                 str_from_size(t->disk_bytes, least), str_from_size(p->disk_bytes, asked));
        if (p->disk_bytes > (uint64_t) LIMIT_DISK_MAX_MB << 20)
                return error_set(err, -EINVAL, "the disk cannot be larger than %s",
                                 str_from_size((uint64_t) LIMIT_DISK_MAX_MB << 20, asked));
        return 0;
}

static int ttl_to_expiry(const struct app *app, int64_t ttl_s, int64_t *ret_ms, struct error *err) {
        char most[STR_UNIT_SIZE];
        uint64_t ttl = ttl_s < 0 ? app->conf.ttl_s : (uint64_t) ttl_s;
        if (ttl == 0 && app->conf.ttl_s != 0)
                return error_set(err, -ERANGE, "a time to live of 0 (no limit) is not allowed on this host");
        if (ttl > app->conf.ttl_max_s)
                return error_set(err, -ERANGE, "the time to live cannot be longer than %s", str_from_seconds(app->conf.ttl_max_s, most));
        *ret_ms = ttl == 0 ? 0 : clock_real_ms() + (int64_t) ttl * 1000;
        return 0;
}

static int bad_name(const char *name, struct error *err) {
        return error_set(err, -EINVAL,
                         "\"%.80s\" is not a legal name: 1 to %d of a-z 0-9 . _ -, starting with a letter or digit,"
                         " and not in the form of an id",
                         name, SANDBOX_NAME_MAX);
}

static int check(struct app *app, const struct sandbox_params *p, struct tmpl **ret_t, char ref[TEMPLATE_REF_SIZE],
                 enum api_code *ret_code, struct error *err) {
        int r = template_resolve(app, p->template, ret_t, ref, err);
        if (r < 0)
                return fail(ret_code, r == -ENOENT ? API_TEMPLATE_NOT_FOUND : API_INVALID_ARGUMENT, r);
        *ret_code = API_INVALID_ARGUMENT;
        if ((*ret_t)->removing)
                return fail(ret_code, API_TEMPLATE_NOT_FOUND,
                            error_set(err, -ENOENT, "template \"%s\" is being removed", p->template));
        r = check_size(app, p, *ret_t, err);
        if (r >= 0)
                r = check_map(p->env, "env", LIMIT_ENV_ITEMS, LIMIT_PATH, LIMIT_ENV_VALUE, true, err);
        if (r >= 0)
                r = check_map(p->metadata, "metadata", LIMIT_METADATA_ITEMS, LIMIT_METADATA_KEY, LIMIT_METADATA_VALUE, false,
                              err);
        if (r < 0)
                return r;
        if (p->name && !sandbox_name_valid(p->name))
                return bad_name(p->name, err);
        if (p->name && sandbox_find_any(app, p->name))
                return fail(ret_code, API_NAME_TAKEN, error_set(err, -EEXIST, "a sandbox named \"%s\" exists", p->name));
        if (sandbox_count(app, SANDBOX_ALIVE) >= app->conf.max_sandboxes)
                return fail(ret_code, API_TOO_MANY,
                            error_set(err, -EAGAIN, "this host has its %u sandboxes (configuration: [sandbox] max)",
                                      app->conf.max_sandboxes));
        return 0;
}

/* ---- making -------------------------------------------------------------------------------- */

struct durable {
        struct app *app;
        struct sandbox *s; /* a reference */
        char op_id[ID_SIZE];
        char *idem;
        sandbox_durable_cb cb;
        void *arg;
};

static void durable_free(struct durable *d) {
        if (!d)
                return;
        sandbox_unref(d->s);
        free(d->idem);
        free(d);
}

static void forget(void *arg) {
        struct durable *d = arg;
        (void) removal_start(d->app, REMOVAL_PLACEMENT, d->s->id, NULL, NULL);
        durable_free(d);
}

/* The rows were not written: nobody knows of the sandbox yet, so it goes without a trace. Ends d. */
static void undo(struct durable *d, int err, const struct error *e) {
        struct sandbox *s = d->s;
        log_error("sandbox %s was not made: %s", s->id, e->msg);
        idem_settle(d->app, d->idem, false);
        op_discard(d->app, op_find(d->app, d->op_id));
        if (s->state != SANDBOX_DELETING)
                (void) sandbox_move(d->app, s, SANDBOX_DELETING);
        (void) sandbox_move(d->app, s, SANDBOX_DELETED);
        proxy_drop(d->app->proxy, s->id);
        sandbox_unwatch(s);
        sandbox_take_out(d->app, s);
        d->cb(d->arg, err, e);
        if (s->create)
                create_cancel(s->create, forget, d);
        else
                forget(d);
}

static void on_durable(void *arg, int err, const struct error *e) {
        struct durable *d = arg;
        if (err < 0) {
                undo(d, err, e);
                return;
        }
        idem_settle(d->app, d->idem, true);
        d->cb(d->arg, 0, NULL);
        durable_free(d);
}

static int replace(json_t **at, const json_t *with) {
        json_t *copy = with ? json_deep_copy(with) : NULL;
        if (!copy)
                return with ? -ENOMEM : 0;
        json_decref(*at);
        *at = copy;
        return 0;
}

static int check_identity(struct app *app, const struct sandbox *s, struct error *err) {
        _cleanup_free_ char *identity = sandbox_identity(app, s);
        if (!identity)
                return error_set(err, -ENOMEM, "out of memory");
        if (strlen(identity) > LIMIT_IDENTITY_JSON - 512) /* the warden adds time and entropy */
                return error_set(err, -EINVAL, "the environment is larger than %d bytes in all", LIMIT_IDENTITY_JSON - 512);
        return 0;
}

/* Copies what was asked for into s. */
static int fill(struct app *app, struct sandbox *s, const struct sandbox_params *p, const char *ref, struct error *err) {
        int r = ttl_to_expiry(app, p->ttl_s, &s->expires_ms, err);
        if (r < 0)
                return r;
        s->created_ms = s->active_ms = clock_real_ms();
        s->rules = p->rules;
        if (!p->own_checkpoints)
                template_rules(s->tmpl, &s->rules);
        s->rules.ttl_s = s->expires_ms ? (uint64_t) (s->expires_ms - s->created_ms + 999) / 1000 : 0;
        (void) str_copy(s->template_ref, sizeof s->template_ref, ref);
        (void) str_copy(s->owner, sizeof s->owner, p->owner ? p->owner : "");
        if (p->name)
                (void) str_copy(s->name, sizeof s->name, p->name);
        if (replace(&s->env, p->env) < 0 || replace(&s->metadata, p->metadata) < 0 || replace(&s->ext, p->ext) < 0)
                return error_set(err, -ENOMEM, "out of memory");
        r = egress_new(app, s, p->policy, p->bindings, err);
        if (r < 0)
                return r;
        return check_identity(app, s, err);
}

/* ---- copies -------------------------------------------------------------------------------- */

static int copy_ttl(const struct app *app, struct sandbox *s, const struct sandbox *of, int64_t ttl_s, struct error *err) {
        if (ttl_s >= 0) {
                int r = ttl_to_expiry(app, ttl_s, &s->expires_ms, err);
                s->rules.ttl_s = (uint64_t) ttl_s;
                return r;
        }
        s->expires_ms = of->rules.ttl_s ? clock_real_ms() + (int64_t) of->rules.ttl_s * 1000 : 0;
        return 0;
}

static int copy_members(struct app *app, struct sandbox *s, const struct sandbox *of, const struct sandbox_copy *p,
                        struct error *err) {
        json_t *ext = NULL;
        s->memory_mb = of->memory_mb;
        s->cpus = of->cpus;
        s->disk_bytes = of->disk_bytes;
        s->rules = p->rules ? *p->rules : of->rules;
        memcpy(s->template_ref, of->template_ref, sizeof s->template_ref);
        memcpy(s->digest, of->digest, sizeof s->digest);
        memcpy(s->forked_from, of->state == SANDBOX_SNAPSHOT ? of->forked_from : of->id, sizeof s->forked_from);
        (void) str_copy(s->owner, sizeof s->owner, p->owner ? p->owner : "");
        (void) str_copy(s->name, sizeof s->name, p->name ? p->name : "");
        int r = copy_ttl(app, s, of, p->ttl_s, err);
        if (r < 0)
                return r;
        if (replace(&s->env, of->env) < 0 || (p->env && json_object_update(s->env, (json_t *) (uintptr_t) p->env) < 0) ||
            replace(&s->metadata, p->metadata ? p->metadata : of->metadata) < 0 ||
            (!p->own_ext && e2b_ext_fork(of->ext, p->own_policy, &ext) < 0) ||
            (p->own_ext && p->ext && !(ext = json_deep_copy(p->ext))))
                return error_set(err, -ENOMEM, "out of memory");
        s->ext = ext;
        r = check_map(s->env, "env", LIMIT_ENV_ITEMS, LIMIT_PATH, LIMIT_ENV_VALUE, true, err);
        if (r >= 0)
                r = egress_fork(app, s, of, p->own_policy, p->policy, p->bindings, err);
        return r < 0 ? r : check_identity(app, s, err);
}

int sandbox_copy(struct app *app, const struct sandbox *of, const struct sandbox_copy *p, struct sandbox **ret,
                 enum api_code *ret_code, struct error *err) {
        if (p->name && !sandbox_name_valid(p->name))
                return fail(ret_code, API_INVALID_ARGUMENT, bad_name(p->name, err));
        if (p->name && sandbox_find_any(app, p->name))
                return fail(ret_code, API_NAME_TAKEN, error_set(err, -EEXIST, "a sandbox named \"%s\" exists", p->name));
        struct sandbox *s = sandbox_alloc(app);
        if (!s)
                return fail(ret_code, API_INTERNAL, error_set(err, -ENOMEM, "out of memory"));
        (void) sandbox_set_template(app, s, of->tmpl);
        int r = copy_members(app, s, of, p, err);
        if (r < 0) {
                sandbox_copy_free(app, s);
                return fail(ret_code, r == -ENOMEM ? API_INTERNAL : API_INVALID_ARGUMENT, r);
        }
        *ret = s;
        return 0;
}

void sandbox_copy_free(struct app *app, struct sandbox *s) {
        if (!s)
                return;
        (void) sandbox_set_template(app, s, NULL);
        sandbox_unref(s);
}

/* ---- entry --------------------------------------------------------------------------------- */

/* Rows, table, operation. On failure nothing is left. Takes the caller's reference to s. */
static int enter(struct app *app, struct sandbox *s, const char *idem, sandbox_durable_cb durable, void *arg,
                 struct op **ret_op, struct error *err) {
        struct db_batch *b = db_batch_new();
        struct durable *d = calloc(1, sizeof *d);
        struct op *o = b && d ? op_new(app, b, OP_CREATE, s->id, s->template_ref, s->owner) : NULL;
        int r = o ? sandbox_insert(app, s) : -ENOMEM;
        if (r >= 0 && idem && !(d->idem = strdup(idem)))
                r = -ENOMEM;
        if (r >= 0) {
                *d = (struct durable){ .app = app, .s = sandbox_ref(s), .idem = d->idem, .cb = durable, .arg = arg };
                memcpy(d->op_id, o->id, sizeof d->op_id);
                sandbox_row_insert(s, b);
                idem_bind_op(app, idem, o->id, b);
                r = db_batch_submit(app->db, STEAL(b), on_durable, d);
        }
        if (r < 0) {
                db_batch_free(b);
                idem_settle(app, idem, false);
                op_discard(app, o);
                sandbox_take_out(app, s);
                durable_free(d);
                return error_errno(err, r, "could not store the sandbox");
        }
        *ret_op = o;
        return 0;
}

int sandbox_create(struct app *app, const struct sandbox_params *p, sandbox_durable_cb durable, void *arg,
                   struct sandbox **ret_s, struct op **ret_op, enum api_code *ret_code, struct error *err) {
        uint64_t t0_us = clock_mono_us();
        struct tmpl *t = NULL;
        char ref[TEMPLATE_REF_SIZE];
        struct op *o = NULL;
        int r = check(app, p, &t, ref, ret_code, err);
        if (r < 0)
                return r;
        struct sandbox *s = sandbox_alloc(app);
        if (!s)
                return fail(ret_code, API_INTERNAL, error_set(err, -ENOMEM, "out of memory"));
        (void) sandbox_set_template(app, s, t);
        r = fill(app, s, p, ref, err);
        if (r < 0) {
                (void) sandbox_set_template(app, s, NULL);
                sandbox_unref(s);
                return fail(ret_code, r == -ENOMEM ? API_INTERNAL : API_INVALID_ARGUMENT, r);
        }
        s->state = SANDBOX_CREATING;
        size_of(app, p, t, &s->memory_mb, &s->cpus);
        s->disk_bytes = p->disk_bytes ? p->disk_bytes : app->conf.disk_bytes > t->disk_bytes ? app->conf.disk_bytes : 0;
        struct warden *warden = NULL;
        bool warm = warm_take(app, t, s->memory_mb, s->cpus, s->disk_bytes, s->id, &warden);
        r = enter(app, s, p->idem, durable, arg, &o, err);
        if (r < 0) {
                warden_free(warden);
                if (warm)
                        (void) removal_start(app, REMOVAL_PLACEMENT, s->id, NULL, NULL);
                (void) sandbox_set_template(app, s, NULL);
                sandbox_unref(s);
                return fail(ret_code, api_code_from_errno(r), r);
        }
        sandbox_unref(s); /* the table's reference stays */
        if (create_start(app, s, o->id, t0_us, warden) < 0)
                sandbox_fail(app, s, "out of memory");
        expiry_changed(app);
        *ret_s = s;
        *ret_op = o;
        return 0;
}

/* ---- changes ------------------------------------------------------------------------------- */

static int write_row(struct app *app, struct sandbox *s, sandbox_durable_cb cb, void *arg) {
        struct db_batch *b = db_batch_new();
        sandbox_row_update(s, b);
        return db_batch_submit(app->db, b, cb, arg);
}

int sandbox_set_ttl(struct app *app, struct sandbox *s, uint64_t ttl_s, sandbox_durable_cb durable, void *arg,
                    struct error *err) {
        int64_t ms = 0;
        int r = ttl_to_expiry(app, (int64_t) ttl_s, &ms, err);
        if (r < 0)
                return r;
        s->expires_ms = ms;
        s->rules.ttl_s = ttl_s;
        s->retry_ms = 0;
        expiry_changed(app);
        r = write_row(app, s, durable, arg);
        return r < 0 ? error_errno(err, r, "could not store the change") : 0;
}

int sandbox_set_rules(struct app *app, struct sandbox *s, const struct sandbox_rules *rules, sandbox_durable_cb durable,
                      void *arg) {
        bool other = rules->checkpoint_every_s != s->rules.checkpoint_every_s;
        s->rules = *rules;
        s->active_ms = clock_real_ms();
        s->retry_ms = 0;
        if (other)
                s->rolled_ms = 0;
        rolling_prune(app, s);
        expiry_changed(app);
        return write_row(app, s, durable, arg);
}

int sandbox_set_ext(struct app *app, struct sandbox *s, json_t *ext, sandbox_durable_cb durable, void *arg) {
        json_t *copy = ext ? json_deep_copy(ext) : NULL;
        if (ext && !copy)
                return -ENOMEM;
        json_decref(s->ext);
        s->ext = copy;
        return write_row(app, s, durable, arg);
}
