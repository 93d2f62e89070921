/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Sandboxes as E2B clients see them. templateID is the digest: it names exactly what the sandbox
 * was made from and is accepted by create again; the name it was asked for by is the alias.
 */
#include <string.h>

#include "base/clock.h"
#include "base/str.h"
#include "e2b_internal.h"

/* endAt is a required member; a sandbox without a time limit gets a date that is never reached. */
#define NEVER "9999-12-31T23:59:59.000Z"

json_t *e2b_time(int64_t unix_ms) {
        char text[RFC3339_SIZE];

        clock_rfc3339(unix_ms, text);
        return json_string(text);
}

bool e2b_alias(const char *ref, char ret[TEMPLATE_REF_SIZE]) {
        size_t n = strlen(ref);

        if (n == 0 || str_copy(ret, TEMPLATE_REF_SIZE, ref) < 0)
                return false;
        if (str_has_suffix(ref, ":" TEMPLATE_TAG_DEFAULT))
                ret[n - strlen(":" TEMPLATE_TAG_DEFAULT)] = '\0';
        return true;
}

/* What all forms have in common. */
static json_t *identity_json(const struct sandbox *s) {
        char alias[TEMPLATE_REF_SIZE];
        json_t *j = json_pack("{s:s,s:s,s:s,s:s}", "sandboxID", s->id, "templateID", s->digest, "clientID",
                              E2B_CLIENT_ID, "envdVersion", E2B_ENVD_VERSION);

        if (j && e2b_alias(s->template_ref, alias))
                (void) json_object_set_new(j, "alias", json_string(alias));
        return j;
}

static void set_domain(json_t *j, const struct app *app) {
        (void) json_object_set_new(j, "domain", app->conf.domain[0] ? json_string(app->conf.domain) : json_null());
}

json_t *e2b_sandbox_json(struct app *app, const struct sandbox *s) {
        json_t *j = identity_json(s);
        const char *traffic = e2b_traffic_token(s);

        if (!j)
                return NULL;
        (void) json_object_set_new(j, "envdAccessToken", json_string(s->token));
        (void) json_object_set_new(j, "trafficAccessToken", traffic ? json_string(traffic) : json_null());
        set_domain(j, app);
        return j;
}

static const json_t *ext_member(const struct sandbox *s, const char *key) {
        const json_t *m = s->ext ? json_object_get(s->ext, key) : NULL;

        return m && !json_is_null(m) ? m : NULL;
}

json_t *e2b_sandbox_listed_json(struct app *app, const struct sandbox *s) {
        json_t *j = identity_json(s);

        (void) app;
        if (!j)
                return NULL;
        (void) json_object_set_new(j, "startedAt", e2b_time(s->started_ms));
        (void) json_object_set_new(j, "endAt", s->expires_ms ? e2b_time(s->expires_ms) : json_string(NEVER));
        (void) json_object_set_new(j, "cpuCount", json_integer(s->cpus));
        (void) json_object_set_new(j, "memoryMB", json_integer(s->memory_mb));
        uint64_t disk = s->disk_bytes || !s->tmpl ? s->disk_bytes : s->tmpl->disk_bytes;
        (void) json_object_set_new(j, "diskSizeMB", json_integer((json_int_t) (disk >> 20)));
        (void) json_object_set_new(j, "state", json_string(s->state == SANDBOX_RUNNING ? "running" : "paused"));
        if (json_object_size(s->metadata) > 0)
                (void) json_object_set(j, "metadata", s->metadata);
        return j;
}

json_t *e2b_sandbox_detail_json(struct app *app, const struct sandbox *s) {
        json_t *j = e2b_sandbox_listed_json(app, s);
        const json_t *internet = ext_member(s, "allowInternetAccess"), *network = ext_member(s, "network");

        if (!j)
                return NULL;
        (void) json_object_set_new(j, "envdAccessToken", json_string(s->token));
        set_domain(j, app);
        (void) json_object_set_new(j, "allowInternetAccess",
                                   internet ? json_boolean(json_is_true(internet)) : json_null());
        if (network)
                (void) json_object_set_new(j, "network", json_deep_copy(network));
        (void) json_object_set_new(j, "lifecycle",
                                   json_pack("{s:s,s:b}", "onTimeout",
                                             s->rules.on_expiry == SANDBOX_END_DELETE ? "kill" : "pause", "autoResume",
                                             s->rules.wake));
        return j;
}
