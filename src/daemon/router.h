/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * Which of two worlds a request on the listener belongs to: the API of this server, or a port of a
 * sandbox. Sans-I/O: looks at the head alone.
 */

#include <stdint.h>

#include "base/id.h"
#include "wire/http1.h"

enum route_kind {
        ROUTE_API,
        ROUTE_SANDBOX, /* id and port are set; the id is well-formed, it need not exist */
        ROUTE_REFUSED, /* meant for a sandbox but wrong: answer status with message */
};

struct route {
        enum route_kind kind;
        char id[ID_SIZE];
        uint16_t port;
        int status;
        const char *message; /* static */
};

/* domain: what stands behind "<port>-<id>." in host names ("" or NULL: no host names). */
void router_decide(const struct http1_head *h, const char *domain, struct route *ret);

/* "<port>-<id>" or "<port>-<id>-<anything>" (the form of old clients): 0 or -EINVAL. */
int router_parse_label(const char *s, size_t n, char ret_id[ID_SIZE], uint16_t *ret_port);

/* Whether a request target may reach the agent from outside: exactly the envd protocol's paths. */
bool router_agent_path_public(const char *target);
