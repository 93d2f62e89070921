/* SPDX-License-Identifier: Apache-2.0 */

/* Port 49983: which handler answers which request, and who may ask. */
#include <string.h>

#include "api.h"
#include "base/str.h"
#include "files_http.h"
#include "fs_http.h"
#include "gate.h"
#include "metrics.h"
#include "rpc.h"
#include "rpc_filesystem.h"
#include "rpc_process.h"
#include "session_http.h"

static void preflight(struct http_x *x) {
        struct api_headers h = { .n = 0 };
        api_cors(&h);
        api_header(&h, "Access-Control-Allow-Methods", "GET, HEAD, POST, PUT, PATCH, DELETE, OPTIONS");
        const char *asked = http1_get(http_x_head(x), "Access-Control-Request-Headers");
        api_header(&h, "Access-Control-Allow-Headers", asked ? asked : "*");
        api_header(&h, "Access-Control-Max-Age", "7200");
        (void) http_x_respond(x, 204, h.h, h.n, NULL, 0);
}

static bool is_method(struct http_x *x, const char *m) {
        return str_eq(http_x_head(x)->method, m);
}

static bool authorised(const struct agent *a, struct http_x *x) {
        return identity_token_ok(&a->identity, http1_get(http_x_head(x), "X-Access-Token"));
}

static void rpc_route(struct agent *a, struct http_x *x, const struct rpc_method *methods, const char *name) {
        for (; methods->name; methods++)
                if (str_eq(methods->name, name)) {
                        rpc_dispatch(a, x, methods);
                        return;
                }
        api_fail_e2b(x, 404, "there is no method %s", name);
}

static void native_route(struct agent *a, struct http_x *x, const char *rest) {
        bool trusted = http_x_conn_tag(x) == TAG_LINK || a->trust_listen;
        if (!trusted)
                api_fail(x, 404, "not_found", "there is no such resource");
        else if (!authorised(a, x))
                api_fail(x, 401, "unauthorized", "X-Access-Token is missing or wrong");
        else if (str_has_prefix(rest, "processes") && (rest[9] == '\0' || rest[9] == '/'))
                session_http(a, x, rest + 9);
        else if (str_has_prefix(rest, "files") && (rest[5] == '\0' || rest[5] == '/'))
                fs_http(a, x, rest + 5);
        else
                api_fail(x, 404, "not_found", "there is no such resource");
}

static void small_route(struct agent *a, struct http_x *x, const char *path) {
        if (str_eq(path, "/metrics") && is_method(x, "GET"))
                api_json(x, 200, metrics_read());
        else if (str_eq(path, "/envs") && is_method(x, "GET"))
                api_json(x, 200, json_incref(a->identity.env));
        else
                api_fail_e2b(x, 404, "there is no %s %s", http_x_head(x)->method, path);
}

static void route(struct agent *a, struct http_x *x) {
        static const char process[] = "/process.Process/", filesystem[] = "/filesystem.Filesystem/", native[] = "/cspace/v1/";
        _cleanup_buf_ struct buf b = BUF_INIT(LIMIT_HTTP_HEAD);
        const char *path = http1_path_of(http_x_head(x)->target, &b) < 0 ? NULL : buf_str(&b);
        if (!path)
                api_fail_e2b(x, 400, "the request target is not valid");
        else if (str_has_prefix(path, native))
                native_route(a, x, path + sizeof native - 1);
        else if (str_eq(path, "/files")) /* checks token or signature itself */
                files_http(a, x);
        else if (!authorised(a, x))
                api_fail_e2b(x, 401, "unauthorized access, please provide a valid access token");
        else if (str_has_prefix(path, process))
                rpc_route(a, x, rpc_process_methods, path + sizeof process - 1);
        else if (str_has_prefix(path, filesystem))
                rpc_route(a, x, rpc_filesystem_methods, path + sizeof filesystem - 1);
        else if (str_eq(path, "/files/compose"))
                files_compose_http(a, x);
        else
                small_route(a, x, path);
}

static bool is_health(struct http_x *x) {
        const char *t = http_x_head(x)->target;
        size_t n = strcspn(t, "?");
        return (n == 7 && memcmp(t, "/health", 7) == 0) || (n == 8 && memcmp(t, "/health/", 8) == 0);
}

void api_on_request(void *arg, struct http_x *x) {
        struct agent *a = arg;
        if (is_method(x, "OPTIONS"))
                preflight(x);
        else if (is_health(x) && (is_method(x, "GET") || is_method(x, "HEAD")))
                api_empty(x, 204);
        else if (a->stopping)
                api_fail_e2b(x, 503, "the sandbox is stopping");
        else if (!a->identity.ready)
                gate_wait(a->gate, x, route);
        else
                route(a, x);
}
