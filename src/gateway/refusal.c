/* SPDX-License-Identifier: Apache-2.0 */
#include "refusal.h"

#include <errno.h>
#include <stdlib.h>

#include "base/cleanup.h"
#include "base/json.h"

static const struct {
        enum policy_reason reason;
        int status;
        const char *code;
} answers[] = {
        { REASON_HTTP_MALFORMED, 400, "bad_request" },
        { REASON_BAD_AUTHORITY, 400, "bad_request" },
        { REASON_LIMIT_REQUESTS, 429, "egress_limit" },
        { REASON_LIMIT_CONNECTIONS, 429, "egress_limit" },
        { REASON_LIMIT_BYTES, 429, "egress_limit" },
        { REASON_BINDING_RATE, 429, "egress_limit" },
        { REASON_RESOLVE_FAILED, 502, "upstream_failed" },
        { REASON_CONNECT_FAILED, 502, "upstream_failed" },
        { REASON_TLS_UPSTREAM, 502, "upstream_failed" },
        { REASON_CREDENTIAL, 503, "credential_unavailable" },
        { REASON_INTERNAL, 502, "gateway_failed" },
        { REASON_TIMEOUT, 504, "upstream_failed" },
        { REASON_LOOP, 508, "egress_denied" },
};

static const char *code_of(enum policy_reason reason, int *ret_status) {
        for (size_t i = 0; i < ARRAY_SIZE(answers); i++)
                if (answers[i].reason == reason) {
                        *ret_status = answers[i].status;
                        return answers[i].code;
                }
        *ret_status = 403;
        return "egress_denied";
}

int refusal_status(enum policy_reason reason) {
        int status;
        (void) code_of(reason, &status);
        return status;
}

int refusal_body(struct buf *out, const struct refusal *r) {
        int unused;
        _cleanup_json_ json_t *j = json_pack("{s:{s:s,s:s,s:s*,s:s*,s:i,s:s*,s:s,s:s*}}", "error", "code", code_of(r->reason, &unused),
                                             "reason", policy_reason_name(r->reason), "rule", r->rule, "host", r->host, "port",
                                             (int) r->port, "credential", r->credential, "message", policy_reason_text(r->reason), "detail", r->detail);
        _cleanup_free_ char *text = j ? json_to_str(j) : NULL;
        if (!text)
                return -ENOMEM;
        int e = buf_puts(out, text);
        return e < 0 ? e : buf_puts(out, "\n");
}
