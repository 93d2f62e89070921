/* SPDX-License-Identifier: Apache-2.0 */

/* /v1/credentials, and which sandbox may use them. Secrets come in and never go out. */

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "api_wait.h"
#include "app.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "base/json.h"
#include "base/str.h"
#include "bindings.h"
#include "credential.h"
#include "db.h"
#include "egress.h"
#include "idem.h"
#include "sandbox_flow.h"

#define TIME_MAX 40

static enum api_code code_of(int err) {
        switch (err) {
        case -EBADMSG:
                return API_GATEWAY_REFUSED;
        case -ETIMEDOUT:
                return API_GATEWAY_TIMEOUT;
        case -ENOENT:
                return API_CREDENTIAL_NOT_FOUND;
        case -EAGAIN:
                return API_TOO_MANY;
        case -EBUSY:
                return API_CONFLICT;
        case -E2BIG:
        case -EFBIG:
                return API_INVALID_ARGUMENT;
        default:
                return api_code_from_errno(err);
        }
}

/* ---- credentials --------------------------------------------------------------------------- */

static void list(struct api_req *r) {
        api_reply(r, 200, json_pack("{s:o}", "credentials", credentials_to_json(r->app)));
}

/* Answered when every gateway that has the old secret has the new one. */
struct renewal {
        struct api_req *r;
        char name[CREDENTIAL_NAME_MAX + 1];
        unsigned waiting;
        int err;
        struct error e;
};

static void renewal_part(struct renewal *w, int err, const struct error *e) {
        if (err < 0 && w->err >= 0) {
                w->err = err;
                w->e = *e;
        }
        if (--w->waiting > 0)
                return;
        const struct credential *c = credential_find(w->r->app, w->name);
        if (w->err < 0)
                api_error_err(w->r, code_of(w->err), &w->e);
        else if (!c)
                api_error(w->r, API_CREDENTIAL_NOT_FOUND, "credential \"%s\" has been removed", w->name);
        else
                api_reply(w->r, 200, credential_to_json(c));
        api_req_unref(w->r);
        free(w);
}

static void on_renewed(void *arg, int err, const struct error *e) {
        renewal_part(arg, err, e);
}

static void on_stored(void *arg, int err, const struct error *e) {
        struct renewal *w = arg;
        struct app *app = w->r->app;
        for (struct sandbox *s = sandbox_oldest(app), *next; err >= 0 && s; s = next) {
                struct error why = ERROR_INIT;
                next = s->next;
                w->waiting++;
                int r = egress_renew(app, s, w->name, on_renewed, w, &why);
                if (r < 0)
                        renewal_part(w, r == -ENOENT ? 0 : r, &why); /* has no use for it */
        }
        renewal_part(w, err, e);
}

static int read_secret(const json_t *b, const char **ret_secret, int64_t *ret_expires_ms, struct error *err) {
        static const char *const keys[] = { "secret", "provider", "expires_at", NULL };
        const char *provider = "static", *expires = NULL;
        int r = b ? json_only_keys(b, keys, err) : error_set(err, -EINVAL, "a body with \"secret\" is needed");
        if (r >= 0)
                r = json_read_str(b, "secret", true, BINDING_SECRET_MAX, ret_secret, err);
        if (r >= 0)
                r = json_read_str(b, "provider", false, 16, &provider, err);
        if (r >= 0)
                r = json_read_str(b, "expires_at", false, TIME_MAX, &expires, err);
        if (r >= 0 && !str_eq(provider, "static"))
                r = error_set(err, -EINVAL, "\"provider\" must be \"static\"");
        if (r >= 0 && expires && clock_parse_rfc3339(expires, ret_expires_ms) < 0)
                r = error_set(err, -EINVAL, "\"expires_at\" is not a time such as 2026-01-02T03:04:05Z");
        return r;
}

/* Nobody's gateway may find out that it cannot be used: it would go on without any. */
static int check_users(struct app *app, const char *name, const char *secret, struct error *err) {
        int r = 0;
        for (const struct sandbox *s = sandbox_oldest(app); s && r >= 0; s = s->next)
                if (bindings_name(egress_bindings(s), name) &&
                    (r = bindings_check_secret(egress_bindings(s), name, secret, err)) < 0)
                        (void) error_wrap(err, "as the bindings of sandbox %s use it", s->id);
        return r;
}

static void put(struct api_req *r) {
        struct error e = ERROR_INIT;
        const char *secret = NULL;
        int64_t expires_ms = 0;
        if (read_secret(r->body, &secret, &expires_ms, &e) < 0 || check_users(r->app, r->params[0], secret, &e) < 0) {
                api_error_err(r, API_INVALID_ARGUMENT, &e);
                return;
        }
        struct db_batch *b = db_batch_new();
        struct renewal *w = calloc(1, sizeof *w);
        int rc = b && w ? credential_set(r->app, r->params[0], secret, expires_ms, b, &e) : error_set(&e, -ENOMEM, "out of memory");
        if (rc >= 0) {
                w->r = api_req_ref(r);
                w->waiting = 1;
                (void) str_copy(w->name, sizeof w->name, r->params[0]);
                rc = db_batch_submit(r->app->db, STEAL(b), on_stored, w);
                if (rc < 0) {
                        (void) error_errno(&e, rc, "could not store the credential");
                        api_req_unref(r);
                }
        }
        if (rc < 0) {
                api_error_err(r, code_of(rc), &e);
                db_batch_free(b);
                free(w);
        }
}

static void on_removed(void *arg, int err, const struct error *e) {
        struct api_req *r = arg;
        if (err < 0)
                api_error_err(r, api_code_from_errno(err), e);
        else
                api_reply_empty(r, 204);
        api_req_unref(r);
}

static void remove_one(struct api_req *r) {
        unsigned users = 0;
        for (const struct sandbox *s = sandbox_oldest(r->app); s; s = s->next)
                users += bindings_name(egress_bindings(s), r->params[0]);
        if (!credential_find(r->app, r->params[0])) {
                api_error(r, API_CREDENTIAL_NOT_FOUND, "credential \"%.80s\" does not exist", r->params[0]);
                return;
        }
        if (users > 0) {
                api_error(r, API_CONFLICT, "credential \"%s\" is bound to %u sandboxes", r->params[0], users);
                return;
        }
        struct db_batch *b = db_batch_new();
        (void) credential_remove(r->app, r->params[0], b);
        if (db_batch_submit(r->app->db, b, on_removed, api_req_ref(r)) < 0) {
                api_error(r, API_INTERNAL, "the removal could not be stored");
                api_req_unref(r);
        }
}

/* ---- bindings ------------------------------------------------------------------------------ */

static struct sandbox *find(struct api_req *r) {
        struct sandbox *s = sandbox_find_any(r->app, r->params[0]);
        if (!s)
                api_error(r, API_SANDBOX_NOT_FOUND, "sandbox \"%.80s\" does not exist", r->params[0]);
        else if (s->state == SANDBOX_DELETING)
                api_error(r, API_SANDBOX_NOT_RUNNING, "the sandbox is being deleted");
        return s && s->state != SANDBOX_DELETING ? s : NULL;
}

static void bindings_list(struct api_req *r) {
        const struct sandbox *s = find(r);
        const json_t *have = s ? egress_bindings(s) : NULL;
        if (s)
                api_reply(r, 200, json_pack("{s:o}", "bindings", have ? json_deep_copy(have) : json_array()));
}

struct changed {
        struct api_req *r;
        json_t *binding; /* the new one; NULL: one was removed */
};

static void on_changed(void *arg, int err, const struct error *e) {
        struct changed *c = arg;
        if (err < 0)
                api_error_err(c->r, code_of(err), e);
        else if (c->binding)
                api_reply(c->r, 201, json_incref(c->binding));
        else
                api_reply_empty(c->r, 204);
        json_decref(c->binding);
        api_req_unref(c->r);
        free(c);
}

/* binding is taken. */
static void change(struct api_req *r, struct sandbox *s, const json_t *all, json_t *binding) {
        struct changed *c = calloc(1, sizeof *c);
        struct error e = ERROR_INIT;
        int rc = c && all ? 0 : error_set(&e, -ENOMEM, "out of memory");
        if (rc >= 0) {
                *c = (struct changed){ .r = api_req_ref(r), .binding = binding };
                rc = egress_set_bindings(r->app, s, all, on_changed, c, &e);
                if (rc < 0)
                        api_req_unref(r);
        }
        if (rc < 0) {
                api_error_err(r, code_of(rc), &e);
                json_decref(binding);
                free(c);
        }
}

static size_t index_of(const json_t *list, const char *id) {
        size_t i = 0;
        while (i < json_array_size(list) && !str_eq(json_string_value(json_object_get(json_array_get(list, i), "id")), id))
                i++;
        return i;
}

static void add_binding(struct api_req *r) {
        json_t *binding = NULL;
        struct error e = ERROR_INIT;
        struct sandbox *s = find(r);
        if (!s)
                return;
        int rc = r->body ? binding_make(r->app, r->body, &binding, &e) : error_set(&e, -EINVAL, "a body with a binding is needed");
        if (rc < 0) {
                api_error_err(r, code_of(rc), &e);
                return;
        }
        const json_t *have = egress_bindings(s);
        _cleanup_json_ json_t *all = have ? json_copy((json_t *) (uintptr_t) have) : json_array();
        if (index_of(have, json_string_value(json_object_get(binding, "id"))) < json_array_size(have)) {
                api_error(r, API_CONFLICT, "the sandbox has a binding of that id");
                json_decref(binding);
                return;
        }
        (void) json_array_append(all, binding);
        change(r, s, all, binding);
}

static void remove_binding(struct api_req *r) {
        struct sandbox *s = find(r);
        const json_t *have = s ? egress_bindings(s) : NULL;
        size_t at = index_of(have, r->params[1]);
        if (!s)
                return;
        if (at == json_array_size(have)) {
                api_error(r, API_BINDING_NOT_FOUND, "the sandbox has no binding \"%.80s\"", r->params[1]);
                return;
        }
        _cleanup_json_ json_t *all = json_copy((json_t *) (uintptr_t) have);
        (void) json_array_remove(all, at);
        change(r, s, all, NULL);
}

const struct api_route credential_routes[] = {
        { "GET", "/v1/credentials", list, API_BODY_NONE, 0 },
        { "PUT", "/v1/credentials/{name}", put, API_BODY_JSON, 0 },
        { "DELETE", "/v1/credentials/{name}", remove_one, API_BODY_NONE, 0 },
        { "GET", "/v1/sandboxes/{id}/bindings", bindings_list, API_BODY_NONE, 0 },
        { "POST", "/v1/sandboxes/{id}/bindings", add_binding, API_BODY_JSON, 0 },
        { "DELETE", "/v1/sandboxes/{id}/bindings/{binding}", remove_binding, API_BODY_NONE, 0 },
};
const size_t credential_routes_n = ARRAY_SIZE(credential_routes);
