/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* One request and its answer, as far as it is the same for HTTP/1.1 and HTTP/2: the verdict, the record, the credential. */

#include "base/buf.h"
#include "gateway.h"
#include "http.h"
#include "policy/audit.h"
#include "policy/binding.h"
#include "refusal.h"
#include "wire/http1.h"

struct exchange {
        bool active;               /* and not yet in the record */
        struct audit audit;
        uint64_t start_us;
        struct policy_verdict verdict; /* rule_name is audit.rule */
        char *target;              /* for reconsidering */
        char credential[BINDING_ID_MAX + 1]; /* refused for want of its secret */
        struct mask *mask;         /* where a secret was added: it is not told back */
        struct buf masked;         /* of a piece of the body */
        bool has_body;             /* set before the judgement */
        bool upgrade;              /* a WebSocket is asked for and allowed */
};

void exchange_begin(struct exchange *x, const struct gateway *gw, const struct http_peer *peer);
void exchange_done(struct exchange *x); /* wipes and zeroes */

/*
 * Judges a request by host, policy, limits and bindings. True: *use says how its head goes out, which has to be
 * written before anything else is done with the bindings. False: *ret says why not. head->target is in
 * origin- or absolute-form, the authority is head's Host.
 */
bool exchange_judge(struct exchange *x, struct gateway *gw, const struct http_peer *peer, const struct http1_head *head,
                    struct binding_use *use, struct refusal *ret);
/* The target as it goes out, origin-form. */
int exchange_write_target(const struct http1_head *head, const struct binding_use *use, struct buf *out);
/* Whether the changed policy still allows it; the verdict is the new one then. */
bool exchange_reconsider(struct exchange *x, const struct gateway *gw, const struct http_peer *peer);

/* Closes the record. address and detail may be NULL. */
void exchange_record(struct exchange *x, struct gateway *gw, const struct address *address, bool allowed,
                     enum policy_reason reason, const char *detail);
/* What the world outside failed at is no refusal. */
bool exchange_was_allowed(enum policy_reason r);
void exchange_wipe(struct buf *b);
