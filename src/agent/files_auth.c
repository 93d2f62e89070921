/* SPDX-License-Identifier: Apache-2.0 */
#include "files_auth.h"

#include <stdlib.h>

#include "api.h"
#include "base/clock.h"
#include "base/str.h"
#include "sign.h"

struct query {
        char *path, *user, *signature, *expiration;
};

static void query_done(struct query *q) {
        free(q->path);
        free(q->user);
        free(q->signature);
        free(q->expiration);
}

static bool signature_ok(struct agent *a, struct http_x *x, const char *operation, const struct query *q) {
        uint64_t end;
        if (!q->signature) {
                api_fail_e2b(x, 401, "missing signature query parameter or access token");
                return false;
        }
        if (!sign_check(q->signature, q->path ? q->path : "", operation, q->user ? q->user : "", a->identity.token,
                        q->expiration)) {
                api_fail_e2b(x, 401, "invalid signature");
                return false;
        }
        if (q->expiration &&
            (str_to_u64(q->expiration, INT64_MAX / 1000, &end) < 0 || (int64_t) end * 1000 < clock_real_ms())) {
                api_fail_e2b(x, 401, "signature is already expired");
                return false;
        }
        return true;
}

bool files_authorise(struct agent *a, struct http_x *x, const char *operation, struct files_request *ret) {
        _cleanup_(query_done) struct query q = { 0 };
        if (api_query(x, "path", &q.path) < 0 || api_query(x, "username", &q.user) < 0 ||
            api_query(x, "signature", &q.signature) < 0 || api_query(x, "signature_expiration", &q.expiration) < 0) {
                api_fail_e2b(x, 400, "the query is not valid");
                return false;
        }
        if (!identity_token_ok(&a->identity, http1_get(http_x_head(x), "X-Access-Token")) &&
            !signature_ok(a, x, operation, &q))
                return false;
        if (identity_user(&a->identity, q.user, &ret->user, NULL) < 0) {
                api_fail_e2b(x, 401, "invalid username: '%s'", q.user);
                return false;
        }
        ret->path = STEAL(q.path);
        return true;
}
