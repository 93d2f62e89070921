/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* Bindings as they are kept: made by binding_parse.c, used by binding.c. */

#include "policy/binding.h"
#include "policy/bucket.h"
#include "policy/policy_internal.h"

enum binding_place { BINDING_HEADER, BINDING_BASIC, BINDING_QUERY };

struct binding {
        char id[BINDING_ID_MAX + 1], credential[BINDING_ID_MAX + 1];
        struct host_pattern *hosts;
        size_t n_hosts;
        char **methods, **paths;
        size_t n_methods, n_paths;
        enum binding_place place;
        char *name;           /* of the header, lower case, or of the parameter; "authorization" for basic */
        char *before, *after; /* what is around the secret */
        uint64_t per_minute, burst, uses, used; /* 0: no limit */
        int64_t expires_ms;   /* 0: never */
        char *placeholder;    /* or NULL */
        struct bucket bucket;
};

struct secret {
        char credential[BINDING_ID_MAX + 1];
        uint8_t *data;
        size_t n;
        int64_t expires_ms;
};

struct bindings {
        struct binding *list;
        size_t n;
        struct secret secrets[BINDINGS_MAX];
        size_t n_secrets;
};

void binding_done(struct binding *b);
int binding_parse(const json_t *j, struct binding *ret, struct error *err);
bool binding_names_host(const struct binding *b, const struct host *h);
const struct secret *bindings_secret(const struct bindings *b, const char *credential);
/* The value as it is sent: header value, "user:secret" in base64, or percent-encoded. */
int binding_render(const struct binding *b, const struct secret *s, struct buf *out);
