/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* What a guest is told about a request that is not let through: one JSON object, the same for all protocols. */

#include <stdint.h>

#include "base/buf.h"
#include "policy/policy.h"

struct refusal {
        enum policy_reason reason;
        const char *rule;   /* NULL: none */
        const char *host;
        uint16_t port;
        const char *detail; /* NULL: none */
        const char *credential; /* whose secret is not there; NULL: none */
        int status;         /* 0: by the reason */
};

int refusal_status(enum policy_reason reason); /* 403, 400, 429, 502, 503, 504 */
/* {"error":{"code":"egress_denied","reason":"method","rule":"rules[2]","host":"...","port":443,"message":"..."}} */
int refusal_body(struct buf *out, const struct refusal *r);
