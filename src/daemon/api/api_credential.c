/* SPDX-License-Identifier: Apache-2.0 */

/* /v1/credentials, and which sandbox may use them. Secrets come in and never go out. */

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "api_named.h"
#include "api_wait.h"
#include "app.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "base/json.h"
#include "base/str.h"
#include "egress/bindings.h"
#include "egress/credential.h"
#include "egress/egress.h"
#include "egress/provider.h"
#include "policy/token_url.h"
#include "sandbox/sandbox_flow.h"
#include "store/db.h"
#include "store/idem.h"

#define TIME_MAX 40
#define SETTING_MAX 1024

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

/* Answered when every gateway that has the old secret has the new one, or when a token is there or cannot be had. */
struct renewal {
        struct api_req *r;
        char name[CREDENTIAL_NAME_MAX + 1];
        bool rotate; /* that there is no token is an error, not only a state */
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

static void on_token(void *arg, int err, const struct error *e) {
        struct renewal *w = arg;
        if (err < 0 && w->rotate && w->err >= 0) {
                api_error(w->r, API_CREDENTIAL_FAILED, "there is no new token: %s", e->msg);
                api_req_unref(w->r);
                free(w);
                return;
        }
        renewal_part(w, 0, NULL);
}

static void renew_everywhere(struct renewal *w) {
        struct app *app = w->r->app;
        for (struct sandbox *s = sandbox_oldest(app), *next; s; s = next) {
                struct error why = ERROR_INIT;
                next = s->next;
                w->waiting++;
                int r = egress_renew(app, s, w->name, on_renewed, w, &why);
                if (r < 0)
                        renewal_part(w, r == -ENOENT ? 0 : r, &why); /* has no use for it */
        }
        renewal_part(w, 0, NULL);
}

static void on_stored(void *arg, int err, const struct error *e) {
        struct renewal *w = arg;
        struct app *app = w->r->app;
        const struct credential *c = credential_find(app, w->name);
        struct error why = ERROR_INIT;
        if (err < 0 || !c) {
                renewal_part(w, err, e);
                return;
        }
        if (credential_provider(c) == CREDENTIAL_STATIC) {
                renew_everywhere(w);
                return;
        }
        /* Settings that changed end what was got with the old ones, or was given before. */
        for (struct sandbox *s = w->rotate || credential_expires_ms(c) ? NULL : sandbox_oldest(app); s; s = s->next)
                if (egress_needs(s, w->name))
                        egress_give_secret(s, w->name);
        int r = provider_fetch(app, w->name, on_token, w, &why);
        if (r < 0)
                renewal_part(w, r, &why);
}

/* ---- reading one ---------------------------------------------------------------------------- */

/* A text that goes into a form: no control characters. */
static int read_field(const json_t *b, const char *key, bool required, json_t *settings, struct error *err) {
        const char *v = NULL;
        int r = json_read_str(b, key, required, SETTING_MAX, &v, err);
        if (r < 0 || !v)
                return r;
        if (!*v)
                return error_set(err, -EINVAL, "\"%s\" is empty", key);
        for (const char *p = v; *p; p++)
                if ((unsigned char) *p < 0x20 || *p == 0x7f)
                        return error_set(err, -EINVAL, "\"%s\" has a control character", key);
        return json_object_set_new(settings, key, json_string(v)) < 0 ? error_set(err, -ENOMEM, "out of memory") : 0;
}

static int read_oauth2(const json_t *b, json_t *settings, struct credential_spec *spec, struct error *err) {
        static const char *const keys[] = { "provider", "secret", "token_url", "client_id", "scope", "audience", "auth", NULL };
        const char *auth = "basic", *url = NULL;
        struct host host;
        uint16_t port;
        int r = json_only_keys(b, keys, err);
        if (r >= 0)
                r = json_read_str(b, "secret", true, BINDING_SECRET_MAX, &spec->secret, err);
        if (r >= 0)
                r = read_field(b, "client_id", true, settings, err);
        if (r >= 0)
                r = read_field(b, "scope", false, settings, err);
        if (r >= 0)
                r = read_field(b, "audience", false, settings, err);
        if (r >= 0)
                r = json_read_str(b, "auth", false, 8, &auth, err);
        if (r >= 0 && !str_eq(auth, "basic") && !str_eq(auth, "body"))
                r = error_set(err, -EINVAL, "\"auth\" must be \"basic\" or \"body\"");
        if (r >= 0)
                r = json_read_str(b, "token_url", true, TOKEN_URL_MAX, &url, err);
        if (r >= 0 && (r = token_url_parse(url, &host, &port, err)) < 0)
                r = error_wrap(err, "token_url");
        if (r >= 0 && (json_object_set_new(settings, "token_url", json_string(url)) < 0 ||
                       json_object_set_new(settings, "auth", json_string(auth)) < 0))
                r = error_set(err, -ENOMEM, "out of memory");
        return r;
}

static int read_command(const json_t *b, json_t *settings, struct error *err) {
        static const char *const keys[] = { "provider", "command", NULL };
        const char *command = NULL;
        int r = json_only_keys(b, keys, err);
        if (r >= 0)
                r = json_read_str(b, "command", true, CREDENTIAL_NAME_MAX, &command, err);
        if (r >= 0 && !credential_name_valid(command))
                r = error_set(err, -EINVAL, "\"command\" is not the name of a file in the folder that the operator has set");
        if (r >= 0 && json_object_set_new(settings, "command", json_string(command)) < 0)
                r = error_set(err, -ENOMEM, "out of memory");
        return r;
}

static int read_static(const json_t *b, struct credential_spec *spec, struct error *err) {
        static const char *const keys[] = { "secret", "provider", "expires_at", NULL };
        const char *expires = NULL;
        int r = json_only_keys(b, keys, err);
        if (r >= 0)
                r = json_read_str(b, "secret", true, BINDING_SECRET_MAX, &spec->secret, err);
        if (r >= 0)
                r = json_read_str(b, "expires_at", false, TIME_MAX, &expires, err);
        if (r >= 0 && expires && clock_parse_rfc3339(expires, &spec->expires_ms) < 0)
                r = error_set(err, -EINVAL, "\"expires_at\" is not a time such as 2026-01-02T03:04:05Z");
        return r;
}

/* settings: an empty object, filled. */
static int read_spec(const json_t *b, json_t *settings, struct credential_spec *spec, struct error *err) {
        const char *provider = "static";
        int r = b ? json_read_str(b, "provider", false, 16, &provider, err)
                  : error_set(err, -EINVAL, "a body with \"secret\" is needed");
        if (r >= 0 && credential_provider_of(provider, &spec->provider) < 0)
                r = error_set(err, -EINVAL, "\"provider\" must be \"static\", \"oauth2\" or \"command\"");
        if (r < 0)
                return r;
        if (spec->provider == CREDENTIAL_STATIC)
                return read_static(b, spec, err);
        spec->settings = settings;
        return spec->provider == CREDENTIAL_OAUTH2 ? read_oauth2(b, settings, spec, err) : read_command(b, settings, err);
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

static void store(struct api_req *r, const struct credential_spec *spec, bool rotate) {
        struct error e = ERROR_INIT;
        struct db_batch *b = db_batch_new();
        struct renewal *w = calloc(1, sizeof *w);
        int rc = spec->provider == CREDENTIAL_STATIC ? check_users(r->app, r->params[0], spec->secret, &e) : 0;
        if (rc < 0)
                rc = -EINVAL;
        else
                rc = b && w ? credential_set(r->app, r->params[0], spec, b, &e) : error_set(&e, -ENOMEM, "out of memory");
        if (rc >= 0) {
                *w = (struct renewal){ .r = api_req_ref(r), .waiting = 1, .rotate = rotate };
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

static void put(struct api_req *r) {
        struct error e = ERROR_INIT;
        _cleanup_json_ json_t *settings = json_object();
        struct credential_spec spec = { .secret = NULL };
        if (read_spec(r->body, settings, &spec, &e) < 0)
                api_error_err(r, API_INVALID_ARGUMENT, &e);
        else
                store(r, &spec, false);
}

/* Another secret under the settings that there are, or, without one, a new token. */
static void rotate(struct api_req *r) {
        static const char *const keys[] = { "secret", "expires_at", NULL };
        struct error e = ERROR_INIT;
        const struct credential *c = credential_find(r->app, r->params[0]);
        if (!c) {
                api_error(r, API_CREDENTIAL_NOT_FOUND, "credential \"%.80s\" does not exist", r->params[0]);
                return;
        }
        struct credential_spec spec = { .provider = credential_provider(c), .settings = credential_settings(c) };
        int rc = 0;
        if (spec.provider == CREDENTIAL_STATIC)
                rc = r->body && json_object_get(r->body, "secret")
                             ? read_static(r->body, &spec, &e)
                             : error_set(&e, -EINVAL, "credential \"%.80s\" is a static one: it has no token, and \"secret\" is needed",
                                         r->params[0]);
        else if (r->body && (rc = json_only_keys(r->body, keys, &e)) >= 0)
                rc = json_read_str(r->body, "secret", false, BINDING_SECRET_MAX, &spec.secret, &e);
        if (rc >= 0 && spec.provider == CREDENTIAL_COMMAND && spec.secret)
                rc = error_set(&e, -EINVAL, "a credential with a command has no secret");
        if (rc < 0)
                api_error_err(r, API_INVALID_ARGUMENT, &e);
        else
                store(r, &spec, true);
}

static void remove_one(struct api_req *r) {
        const struct sandbox *first = NULL;
        unsigned users = 0;
        for (const struct sandbox *s = sandbox_oldest(r->app); s; s = s->next) {
                if (!bindings_name(egress_bindings(s), r->params[0]))
                        continue;
                if (users++ == 0)
                        first = s;
        }
        if (!credential_find(r->app, r->params[0])) {
                api_error(r, API_CREDENTIAL_NOT_FOUND, "credential \"%.80s\" does not exist", r->params[0]);
                return;
        }
        if (users > 0) {
                api_error(r, API_CONFLICT, "credential \"%s\" is bound to %u sandbox%s%s \"%s\"", r->params[0], users,
                          users == 1 ? "" : "es", users == 1 ? "," : ", first", *first->name ? first->name : first->id);
                return;
        }
        struct db_batch *b = db_batch_new();
        (void) credential_remove(r->app, r->params[0], b);
        if (db_batch_submit(r->app->db, b, api_removed, api_req_ref(r)) < 0) {
                api_error(r, API_INTERNAL, "the removal could not be stored");
                api_req_unref(r);
        }
}

/* ---- bindings ------------------------------------------------------------------------------ */

static struct sandbox *find(struct api_req *r) {
        struct sandbox *s = api_sandbox(r);
        if (!s || s->state != SANDBOX_DELETING)
                return s;
        api_error(r, API_SANDBOX_NOT_RUNNING, "the sandbox is being deleted");
        return NULL;
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
        { "POST", "/v1/credentials/{name}/rotate", rotate, API_BODY_JSON, 0 },
        { "GET", "/v1/sandboxes/{id}/bindings", bindings_list, API_BODY_NONE, 0 },
        { "POST", "/v1/sandboxes/{id}/bindings", add_binding, API_BODY_JSON, 0 },
        { "DELETE", "/v1/sandboxes/{id}/bindings/{binding}", remove_binding, API_BODY_NONE, 0 },
};
const size_t credential_routes_n = ARRAY_SIZE(credential_routes);
