/* SPDX-License-Identifier: Apache-2.0 */

/*
 * /v1/sandboxes/{id}/files: passed on to the agent's file service as it comes, in constant memory.
 * A path is the agent's business alone: nothing here looks at it.
 */

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "api_wait.h"
#include "app.h"
#include "base/buf.h"
#include "base/cleanup.h"
#include "base/limits.h"
#include "peers/agent_call.h"
#include "proxy/proxy.h"
#include "sandbox/sandbox.h"

#define DEFAULT_USER "root"

static bool has_user(const char *query) {
        for (; *query; query += strcspn(query, "&"), query += *query == '&')
                if (strncmp(query, "user=", 5) == 0)
                        return true;
        return false;
}

static void pass_on(struct api_req *r) {
        struct sandbox *s = agent_sandbox(r);
        if (!s)
                return;
        const char *target = http_x_head(r->x)->target, *query = strchr(target, '?');
        const char *rest = strrchr(r->route->path, '}') + 1; /* "/files", "/files/list", ... */
        query = query ? query + 1 : "";
        _cleanup_buf_ struct buf b = BUF_INIT(2 * LIMIT_HTTP_HEAD);
        const char *user = has_user(query) ? "" : query[0] ? "&user=" DEFAULT_USER : "user=" DEFAULT_USER;
        if (buf_printf(&b, "/cspace/v1%s?%s%s", rest, query, user) < 0 || !buf_str(&b)) {
                api_error(r, API_INTERNAL, "out of memory");
                return;
        }
        struct proxy_target t = { .id = s->id,
                                  .port = AGENT_PORT,
                                  .target = buf_str(&b),
                                  .access_token = s->token,
                                  .strip_auth = true,
                                  .errors = PROXY_ERRORS_NATIVE,
                                  .stall_ms = AGENT_TIMEOUT_MS };
        proxy_serve(r->app->proxy, api_take(r), &t);
}

const struct api_route file_routes[] = {
        { "GET", "/v1/sandboxes/{id}/files", pass_on, API_BODY_STREAM, 0 },
        { "PUT", "/v1/sandboxes/{id}/files", pass_on, API_BODY_STREAM, 0 },
        { "DELETE", "/v1/sandboxes/{id}/files", pass_on, API_BODY_STREAM, 0 },
        { "GET", "/v1/sandboxes/{id}/files/list", pass_on, API_BODY_STREAM, 0 },
        { "GET", "/v1/sandboxes/{id}/files/stat", pass_on, API_BODY_STREAM, 0 },
        { "POST", "/v1/sandboxes/{id}/files/mkdir", pass_on, API_BODY_STREAM, 0 },
        { "POST", "/v1/sandboxes/{id}/files/move", pass_on, API_BODY_STREAM, 0 },
};
const size_t file_routes_n = ARRAY_SIZE(file_routes);
