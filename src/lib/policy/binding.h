/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * Credentials that the sandbox never sees. A binding says to which requests a credential is added and how; this
 * is all of that but the bytes' transport. docs/credentials.md has the model; of a binding as JSON:
 *
 *   id, credential   strings of [A-Za-z0-9._-], at most 64
 *   hosts            as in a rule of a policy, but neither "*" nor presets
 *   methods, paths   as in a rule
 *   inject           {"as":"header","name":"Authorization","template":"Bearer {secret}"}
 *                    {"as":"basic","user":"git"}       the secret is the password
 *                    {"as":"query","name":"key"}
 *   rate             {"per_minute":60,"burst":10}
 *   uses, used       how often at all, and how often it was used before this gateway was started
 *   expires          RFC 3339
 *   placeholder      what the guest has in the secret's place
 *
 * It is added over TLS only, to port 443 or a host's own port in "hosts" ("h:8443"), and only to a host that
 * is addressed by name. Toward a bound host (whatever port, scheme, method or path) what the guest itself sent in
 * the same place is left out: so a placeholder needs no search to be replaced, and a guest cannot
 * act there under another account. Everything fails closed: no secret, no request.
 *
 * bindings_judge() is asked once for each request that the policy allows; its answer is used at once, before
 * anything else is done with the bindings.
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/error.h"
#include "base/json.h"
#include "policy/host.h"
#include "policy/policy.h"
#include "wire/http1.h"

#define BINDINGS_MAX 64            /* of one sandbox */
#define BINDING_ID_MAX 64
#define BINDING_SECRET_MIN 8       /* shorter ones could not be told from other bytes in a response */
#define BINDING_SECRET_MAX 8192
#define BINDING_TEMPLATE_MAX 512
#define PLACEHOLDER_MIN 24
#define PLACEHOLDER_MAX 128        /* of [A-Za-z0-9_-], so that nobody encodes it */
#define PLACEHOLDER_SIZE 48        /* of a new one, with the NUL */

struct bindings;
struct binding;

int bindings_new(struct bindings **ret);
void bindings_free(struct bindings *b); /* wipes the secrets */
void bindings_freep(struct bindings **b);

/* Replaces all bindings by those of a JSON array; all or nothing. Uses and rates of an id that stays go on;
 * secrets that no binding names any more are wiped. */
int bindings_load(struct bindings *b, const json_t *list, struct error *err);
size_t bindings_count(const struct bindings *b);

/* The secret of a credential (copied), good until expires_ms (Unix time; 0: always). -ENOENT: no binding
 * names it; -EINVAL: it cannot be put where a binding says. Neither text nor length of it is in the message. */
int bindings_set_secret(struct bindings *b, const char *credential, const void *secret, size_t n, int64_t expires_ms,
                        struct error *err);
void bindings_drop_secret(struct bindings *b, const char *credential); /* revoked: at once */

/* --- one request ------------------------------------------------------------------------ */

struct binding_request {
        const struct host *host; /* of the connection */
        uint16_t port;
        enum policy_protocol protocol;
        const char *method, *target;
        const struct http1_field *fields;
        size_t n_fields;
};

enum binding_outcome {
        BINDING_NONE = 0, /* no credential; fields may still have to be left out */
        BINDING_ADD,      /* use is counted */
        BINDING_DENY,
};

struct binding_use {
        enum binding_outcome outcome;
        enum policy_reason reason; /* DENY */
        const char *id;            /* of the binding, for the record; NULL with NONE, and with a misplaced placeholder */
        const char *credential;    /* its credential; NULL where id is */
        bool touches;              /* some binding names this host: fields and target must go through the functions below */
        const struct bindings *bindings;
        const struct binding *binding;
        const struct host *host;
};

/* now_ms: monotonic; wall_ms: Unix time. */
struct binding_use bindings_judge(struct bindings *b, const struct binding_request *q, uint64_t now_ms, int64_t wall_ms);

/* Whether a field of the guest's is left out: of the name of what is added, however it is spelled, and
 * Accept-Encoding where a secret is added (what is compressed cannot be masked). */
bool binding_leaves_out(const struct binding_use *u, const char *field_name);
/* Appends the fields to add as lines of HTTP/1.1. */
int binding_write_fields(const struct binding_use *u, struct buf *out);
/* The same one by one, for HTTP/2: 1 and name (lower case) and value, or 0 beyond the last. value is appended to. */
int binding_field(const struct binding_use *u, size_t i, const char **name, struct buf *value);
/* The target as it goes out. */
int binding_write_target(const struct binding_use *u, const char *target, struct buf *out);

/* --- placeholders ----------------------------------------------------------------------- */

int placeholder_new(char out[PLACEHOLDER_SIZE]); /* 0 or -EIO; random, the same for nobody else */
bool placeholder_valid(const char *s);

/* --- responses -------------------------------------------------------------------------- */

/*
 * Replaces the secret, and the forms in which it was sent, by "*" of the same length in a response, wherever the pieces
 * are cut. Only bytes that could be the beginning of one are held back.
 */
struct mask;
int mask_new(const struct binding_use *u, struct mask **ret); /* after BINDING_ADD; copies what it needs */
void mask_free(struct mask *m);
void mask_freep(struct mask **m);
int mask_feed(struct mask *m, const void *data, size_t n, struct buf *out);
int mask_end(struct mask *m, struct buf *out); /* what was held back; ready for another body */
/* A whole text, such as a field's value, in place. */
void mask_text(const struct mask *m, char *s, size_t n);
uint64_t mask_count(const struct mask *m); /* how often it had to */
