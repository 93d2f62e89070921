/* SPDX-License-Identifier: Apache-2.0 */

/*
 * The E2B API beside the native one: its routes, and the hook that takes sandbox traffic out of the
 * API's way. No API key is asked of sandbox traffic: the agent checks its own access token, and a
 * sandbox made with allowPublicTraffic false has a second one for its other ports.
 */
#include "e2b.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "base/limits.h"
#include "base/str.h"
#include "e2b_internal.h"
#include "proxy/proxy.h"
#include "proxy/router.h"
#include "sandbox/wake.h"

#define TRAFFIC_TOKEN_FIELD "e2b-traffic-access-token"

static void refuse(struct http_x *x, const struct route *route, int status, const char *message) {
        static const struct http_header type = { "Content-Type", "application/json" };
        _cleanup_json_ json_t *j = json_pack("{s:s, s:s, s:i}", "sandboxId", route->id, "message", message, "code",
                                             status);
        _cleanup_free_ char *text = j ? json_to_str(j) : NULL;

        if (http_x_respond(x, status, &type, 1, text, text ? strlen(text) : 0) < 0)
                http_x_abort(x);
}

static bool may_pass(const struct sandbox *s, const struct route *route, const struct http1_head *h) {
        const char *want = e2b_traffic_token(s), *got = http1_get(h, TRAFFIC_TOKEN_FIELD);

        if (!want || route->port == AGENT_PORT)
                return true;
        return got && strlen(got) == strlen(want) && mem_eq_ct(got, want, strlen(want));
}

static bool route_traffic(struct app *app, struct http_x *x) {
        const struct http1_head *h = http_x_head(x);
        struct route route;

        router_decide(h, app->conf.domain, &route);
        if (route.kind == ROUTE_API)
                return false;
        if (route.kind == ROUTE_REFUSED) {
                refuse(x, &route, route.status, route.message);
                return true;
        }
        struct sandbox *s = sandbox_find(app, route.id);
        if (!s || (s->state != SANDBOX_RUNNING && !wake_wanted(s))) {
                proxy_refuse_not_found(x, route.id);
                return true;
        }
        if (!may_pass(s, &route, h)) {
                refuse(x, &route, 403, "The field " TRAFFIC_TOKEN_FIELD " is missing or wrong");
                return true;
        }
        if (s->state != SANDBOX_RUNNING) {
                wake_traffic(app, x, s, route_traffic);
                return true;
        }
        sandbox_touch(s);
        struct proxy_target t = { .id = s->id, .port = route.port, .errors = PROXY_ERRORS_E2B };
        proxy_serve_traffic(app->proxy, x, &t);
        return true;
}

int e2b_init(struct app *app, struct error *err) {
        /* The first route that matches is taken: fixed paths before those with a parameter. */
        const struct {
                const struct api_route *routes;
                size_t n;
        } tables[] = {
                { e2b_info_routes, e2b_info_routes_n },
                { e2b_snapshot_routes, e2b_snapshot_routes_n },
                { e2b_unsupported_routes, e2b_unsupported_routes_n },
                { e2b_sandbox_routes, e2b_sandbox_routes_n },
                { e2b_egress_routes, e2b_egress_routes_n },
                { e2b_template_routes, e2b_template_routes_n },
        };
        struct e2b *e = calloc(1, sizeof(*e));
        int r;

        if (!e)
                return error_set(err, -ENOMEM, "no memory for the E2B routes");
        r = e2b_metrics_new(app, &e->metrics, err);
        for (size_t i = 0; r == 0 && i < ARRAY_SIZE(tables); i++)
                r = api_add_routes(app->api, tables[i].routes, tables[i].n, err);
        if (r < 0) {
                e2b_metrics_free(e->metrics);
                free(e);
                return r;
        }
        app->e2b = e;
        api_set_router(app->api, route_traffic);
        return 0;
}

void e2b_free(struct app *app) {
        if (!app->e2b)
                return;
        e2b_metrics_free(app->e2b->metrics);
        free(app->e2b);
        app->e2b = NULL;
}
