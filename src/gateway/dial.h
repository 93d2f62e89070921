/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * A connection from the host to where the sandbox may go. The name is resolved here, out of the guest's
 * sight; each address is judged by the policy before connect() gets it, whatever resolved to it.
 */

#include <uv.h>

#include "policy/address.h"
#include "policy/host.h"
#include "policy/policy.h"
#include "resolve.h"

#define DIAL_CONNECT_MS 10000 /* one address */
#define DIAL_TOTAL_MS 30000   /* resolving and all addresses */

struct dial_request {
        uv_loop_t *loop;
        struct resolver *resolver;
        struct policy *policy;             /* borrowed: referenced while dialling */
        const struct address_set *own;     /* outlives the call */
        struct policy_verdict allowed;     /* the verdict that let the connection through */
        enum policy_protocol protocol;
        struct host host;
        uint16_t port;
};

struct dial_result {
        int fd;                     /* connected, non-blocking; owned by the callee; -EBADF on failure */
        struct address address;     /* connected to, or the last one tried or refused */
        bool has_address;
        enum policy_reason reason;  /* on failure */
        struct policy_verdict verdict; /* of REASON_ADDRESS_REFUSED and the like: which rule */
        enum address_class class;
        int error;                  /* negative errno of the last attempt, 0 if none was made */
};

/* What to tell of it beside the reason: "" where nothing is known. */
const char *dial_detail(const struct dial_result *r);

/* Called once, always from the loop, never from inside dial(). */
typedef void (*dial_cb)(void *arg, const struct dial_result *r);
struct dial;
int dial(const struct dial_request *req, dial_cb cb, void *arg, struct dial **ret); /* 0 or -ENOMEM */
void dial_cancel(struct dial *d); /* before cb was called; NULL is fine */
