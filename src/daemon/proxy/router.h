/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * Which of two worlds a request on the listener belongs to: the API of this server, or a port of a
 * sandbox. Sans-I/O: looks at the head alone.
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "wire/http1.h"

enum route_kind {
        ROUTE_API,
        ROUTE_SANDBOX, /* id and port are set; no sandbox of that id need exist */
        ROUTE_REFUSED, /* meant for a sandbox but wrong: answer status with message */
};

#define ROUTE_ID_SIZE 65 /* any [a-z0-9]+ that clients may have from elsewhere, not only our ids */

struct route {
        enum route_kind kind;
        char id[ROUTE_ID_SIZE];
        uint16_t port;
        int status;
        const char *message; /* static */
};

/* domain: what stands behind "<port>-<id>." in host names ("" or NULL: no host names). */
void router_decide(const struct http1_head *h, const char *domain, struct route *ret);

/* "<port>-<id>" or "<port>-<id>-<anything>" (the form of old clients): 0 or -EINVAL. */
int router_parse_label(const char *s, size_t n, char ret_id[ROUTE_ID_SIZE], uint16_t *ret_port);

/* Whether a request target may reach the agent from outside: exactly the envd protocol's paths. */
bool router_agent_path_public(const char *target);
