/* SPDX-License-Identifier: Apache-2.0 */

#include "bindings.h"

#include <errno.h>
#include <string.h>

#include "app.h"
#include "base/cleanup.h"
#include "base/id.h"
#include "base/json.h"
#include "base/log.h"
#include "base/str.h"
#include "credential.h"
#include "policy/binding.h"
#include "provider.h"

#define ENV_NAME_MAX 128

static int check_with_secret(struct app *app, const json_t *list, const char *credential, struct error *err);

static int no_memory(struct error *err) {
        return error_set(err, -ENOMEM, "out of memory");
}

static int check_env_name(const char *s, struct error *err) {
        static const char allowed[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_";
        if (s && (s[0] == 0 || s[strspn(s, allowed)] != 0 || (s[0] >= '0' && s[0] <= '9')))
                return error_set(err, -EINVAL, "env: \"%.64s\" is not the name of a variable", s);
        return 0;
}

static int add_defaults(json_t *j, struct error *err) {
        char placeholder[PLACEHOLDER_SIZE], id[ID_SIZE];
        if (placeholder_new(placeholder) < 0 || id_new(id) < 0)
                return error_set(err, -EIO, "no randomness");
        if (json_object_set_new(j, "placeholder", json_string(placeholder)) < 0 ||
            (!json_object_get(j, "id") && json_object_set_new(j, "id", json_string(id)) < 0) ||
            (!json_object_get(j, "inject") &&
             json_object_set_new(j, "inject", json_pack("{s:s, s:s, s:s}", "as", "header", "name", "Authorization", "template",
                                                        "Bearer {secret}")) < 0))
                return no_memory(err);
        return 0;
}

int binding_make(struct app *app, const json_t *given, json_t **ret, struct error *err) {
        static const char *const keys[] = { "id",   "credential", "hosts",   "methods", "paths", "inject",
                                            "rate", "uses",       "expires", "env",     NULL };
        const char *credential = NULL, *env = NULL;
        if (!json_is_object(given))
                return error_set(err, -EINVAL, "a binding is an object");
        int r = json_only_keys(given, keys, err);
        if (r >= 0)
                r = json_read_str(given, "credential", true, CREDENTIAL_NAME_MAX, &credential, err);
        if (r >= 0)
                r = json_read_str(given, "env", false, ENV_NAME_MAX, &env, err);
        if (r >= 0)
                r = check_env_name(env, err);
        if (r < 0)
                return r;
        if (!credential_find(app, credential))
                return error_set(err, -ENOENT, "credential \"%.64s\" does not exist", credential);
        _cleanup_json_ json_t *j = json_deep_copy(given), *one = NULL;
        if (!j)
                return no_memory(err);
        r = add_defaults(j, err);
        if (r >= 0 && !(one = json_pack("[O]", j)))
                r = no_memory(err);
        if (r >= 0)
                r = check_with_secret(app, one, credential, err);
        if (r < 0)
                return r;
        provider_want(app, credential); /* so that it may be there when the gateway is */
        *ret = STEAL(j);
        return 0;
}

json_t *bindings_for_gateway(const json_t *list) {
        json_t *out = json_deep_copy(list), *b;
        size_t i;
        json_array_foreach(out, i, b)
                (void) json_object_del(b, "env");
        return out;
}

int bindings_check_secret(const json_t *list, const char *credential, const char *secret, struct error *err) {
        _cleanup_(bindings_freep) struct bindings *b = NULL;
        _cleanup_json_ json_t *plain = bindings_for_gateway(list);
        if (!plain || bindings_new(&b) < 0)
                return no_memory(err);
        int r = bindings_load(b, plain, err);
        return r < 0 || !secret ? r : bindings_set_secret(b, credential, secret, strlen(secret), 0, err);
}

int bindings_check(const json_t *list, struct error *err) {
        return bindings_check_secret(list, NULL, NULL, err);
}

/* One that cannot be opened is found out when it is needed. */
static int check_with_secret(struct app *app, const json_t *list, const char *credential, struct error *err) {
        char secret[BINDING_SECRET_MAX + 1];
        bool open = credential_open(app, credential_find(app, credential), secret) >= 0;
        int r = bindings_check_secret(list, credential, open ? secret : NULL, err);
        explicit_bzero(secret, sizeof secret);
        return r;
}

bool bindings_name(const json_t *list, const char *credential) {
        json_t *b;
        size_t i;
        json_array_foreach((json_t *) (uintptr_t) list, i, b)
                if (str_eq(json_string_value(json_object_get(b, "credential")), credential))
                        return true;
        return false;
}

/* ---- secrets ------------------------------------------------------------------------------- */

static int write_secret(struct app *app, const char *name, bool first, struct buf *out) {
        const struct credential *c = credential_find(app, name);
        char secret[BINDING_SECRET_MAX + 1];
        int r = c ? credential_open(app, c, secret) : -EBADMSG;
        if (r < 0) {
                if (r != -ENOENT) /* there is no token yet: it comes by itself */
                        log_error("credential \"%s\" cannot be opened; requests that need it are refused", name);
                return 1;
        }
        r = buf_printf(out, "%s\"%s\":{\"secret\":", first ? "" : ",", name);
        if (r >= 0)
                r = json_put_str(out, secret);
        if (r >= 0)
                r = buf_printf(out, ",\"expires_ms\":%lld}", (long long) credential_expires_ms(c));
        explicit_bzero(secret, sizeof secret);
        return r;
}

int bindings_write_secrets(struct app *app, const json_t *list, struct buf *out) {
        json_t *b;
        size_t i;
        bool first = true;
        int r = buf_puts(out, "{");
        json_array_foreach((json_t *) (uintptr_t) list, i, b) {
                const char *name = json_string_value(json_object_get(b, "credential"));
                bool seen = false;
                for (size_t k = 0; k < i; k++)
                        seen = seen || str_eq(json_string_value(json_object_get(json_array_get(list, k), "credential")), name);
                if (seen || !name || r < 0)
                        continue;
                r = write_secret(app, name, first, out);
                first = first && r != 0;
        }
        return r < 0 ? r : buf_puts(out, "}");
}

void bindings_want_tokens(struct app *app, const json_t *list) {
        json_t *b;
        size_t i;
        json_array_foreach((json_t *) (uintptr_t) list, i, b)
                provider_want(app, json_string_value(json_object_get(b, "credential")));
}

/* ---- use ----------------------------------------------------------------------------------- */

int bindings_add_env(const json_t *list, json_t *env) {
        json_t *b;
        size_t i;
        json_array_foreach((json_t *) (uintptr_t) list, i, b) {
                const char *name = json_string_value(json_object_get(b, "env"));
                json_t *placeholder = json_object_get(b, "placeholder");
                if (name && placeholder && !json_object_get(env, name) && json_object_set(env, name, placeholder) < 0)
                        return -ENOMEM;
        }
        return 0;
}

bool bindings_count_use(json_t *list, const char *id, uint64_t n) {
        json_t *b;
        size_t i;
        json_array_foreach(list, i, b) {
                if (!str_eq(json_string_value(json_object_get(b, "id")), id))
                        continue;
                json_int_t used = json_integer_value(json_object_get(b, "used"));
                (void) json_object_set_new(b, "used", json_integer(used + (json_int_t) n));
                return true;
        }
        return false;
}
