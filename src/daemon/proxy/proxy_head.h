/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * Which fields of a request go into the guest, and which of its answer come out (RFC 9110 section
 * 7.6.1): hop-by-hop fields stay behind, credentials for this server never go in, the way the
 * request came is told in X-Forwarded-*. Sans-I/O.
 */

#include "io/http_server.h" /* struct http_header */
#include "proxy.h"
#include "wire/http1.h"

struct proxy_head {
        struct http_header h[LIMIT_HTTP_HEADERS + 8];
        size_t n;
        char forwarded_for[512];
};

/* Strings are borrowed from head and t. upgrade: Connection and Upgrade are passed on. */
void proxy_head_request(const struct http1_head *head, const struct proxy_target *t, bool upgrade,
                        struct proxy_head *ret);
/* For PROXY_ERRORS_NATIVE the answer is shown under the API's own origin and to holders of its keys,
 * so of what a guest may say only a description of the content is let out, and no browser runs it. */
void proxy_head_response(const struct http1_head *head, const struct proxy_target *t, bool upgrade,
                         struct proxy_head *ret);
