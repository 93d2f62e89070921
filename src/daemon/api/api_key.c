/* SPDX-License-Identifier: Apache-2.0 */

/* /v1/keys: for local administrators, so that a leaked key cannot make itself a lasting one. */

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "api_wait.h"
#include "app.h"
#include "base/cleanup.h"
#include "base/json.h"
#include "store/db.h"
#include "store/idem.h"
#include "store/key.h"

static bool admin(struct api_req *r) {
        if (!r->key)
                return true;
        api_error(r, API_FORBIDDEN, "API keys are managed by root and the group cspace, over the Unix socket and without a key");
        return false;
}

static void list(struct api_req *r) {
        if (admin(r))
                api_reply(r, 200, json_pack("{s:o}", "keys", keys_to_json(r->app)));
}

static void on_created(void *arg, int err, const struct error *e, const struct key *k, const char *text) {
        struct api_req *r = arg;
        idem_settle(r->app, r->idem_scope, err >= 0);
        if (err < 0) {
                api_error_err(r, api_code_from_errno(err), e);
        } else {
                json_t *j = key_to_json(k);
                (void) json_object_set_new(j, "key", json_string(text));
                api_reply(r, 201, j);
        }
        api_req_unref(r);
}

static void create(struct api_req *r) {
        static const char *const keys[] = { "name", NULL };
        struct error e = ERROR_INIT;
        const char *name = "";
        if (!admin(r))
                return;
        if (r->body && (json_only_keys(r->body, keys, &e) < 0 ||
                        json_read_str(r->body, "name", false, KEY_NAME_MAX, &name, &e) < 0)) {
                api_error_err(r, API_INVALID_ARGUMENT, &e);
                return;
        }
        if (keys_count(r->app->keys) >= KEY_MAX) {
                api_error(r, API_TOO_MANY, "there are %d API keys; revoke some", KEY_MAX);
                return;
        }
        if (idem_begin(r, NULL) != 0)
                return;
        struct db_batch *b = db_batch_new();
        /* A replay says that the key was made, not what it is. */
        _cleanup_json_ json_t *again = json_pack("{s:s, s:n}", "name", name, "key");
        idem_bind_reply(r->app, r->idem_scope, 201, again, b);
        if (key_create(r->app, name, b, on_created, api_req_ref(r), &e) < 0) {
                idem_settle(r->app, r->idem_scope, false);
                api_error_err(r, API_UNAVAILABLE, &e);
                api_req_unref(r);
        }
}

static void revoke_one(struct api_req *r) {
        struct error e = ERROR_INIT;
        if (!admin(r))
                return;
        int rc = key_revoke(r->app, r->params[0], api_removed, api_req_ref(r), &e);
        if (rc < 0) {
                api_error_err(r, rc == -ENOENT ? API_KEY_NOT_FOUND : API_UNAVAILABLE, &e);
                api_req_unref(r);
        }
}

const struct api_route key_routes[] = {
        { "GET", "/v1/keys", list, API_BODY_NONE, 0 },
        { "POST", "/v1/keys", create, API_BODY_JSON, API_FLAG_IDEM },
        { "DELETE", "/v1/keys/{id}", revoke_one, API_BODY_NONE, 0 },
};
const size_t key_routes_n = ARRAY_SIZE(key_routes);
