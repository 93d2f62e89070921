/* SPDX-License-Identifier: Apache-2.0 */

/* Operations of the E2B API that this server does not have yet. Each is named, so that a client is
 * told what is missing instead of "not found", which several clients take for "there is none". */
#include "base/cleanup.h"
#include "e2b_internal.h"

static void not_yet(struct api_req *r) {
        api_error_status(r, 501, "%s %s is not supported by this server yet", r->route->method, r->route->path);
}

#define NOT_YET(method, path) { method, path, not_yet, API_BODY_NONE, API_FLAG_E2B }

const struct api_route e2b_unsupported_routes[] = {
        NOT_YET("POST", "/templates"),
        NOT_YET("POST", "/v2/templates"),
        NOT_YET("POST", "/v3/templates"),
        NOT_YET("PATCH", "/v2/templates/{id}"),
        NOT_YET("PATCH", "/templates/{id}"),
        NOT_YET("GET", "/templates/{id}/files/{hash}"),
        NOT_YET("POST", "/v2/templates/{id}/builds/{build}"),
        NOT_YET("POST", "/templates/{id}/builds/{build}"),
        NOT_YET("GET", "/templates/{id}/builds/{build}/status"),
        NOT_YET("GET", "/templates/{id}/builds/{build}/logs"),
        NOT_YET("POST", "/templates/tags"),
        NOT_YET("DELETE", "/templates/tags"),
        NOT_YET("GET", "/templates/{id}/tags"),
        NOT_YET("GET", "/volumes"),
        NOT_YET("POST", "/volumes"),
        NOT_YET("GET", "/volumes/{id}"),
        NOT_YET("DELETE", "/volumes/{id}"),
        NOT_YET("GET", "/secrets"),
        NOT_YET("POST", "/secrets"),
        NOT_YET("GET", "/secrets/{id}"),
        NOT_YET("POST", "/secrets/{id}"),
        NOT_YET("DELETE", "/secrets/{id}"),
};
const size_t e2b_unsupported_routes_n = ARRAY_SIZE(e2b_unsupported_routes);
