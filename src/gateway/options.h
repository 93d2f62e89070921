/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include <stdbool.h>

#include "gateway.h"

enum {
        GATEWAY_FD_CTL = 3,     /* seqpacket, listening: ctl.h */
        GATEWAY_FD_DNS_UDP = 4, /* these three are in the sandbox's network namespace */
        GATEWAY_FD_DNS_TCP = 5, /* listening */
        GATEWAY_FD_TCP = 6,     /* listening */
        GATEWAY_FD_TRUST = 7,   /* a file, if there is one: what --trust names as /proc/self/fd/7, closed once read */
        GATEWAY_FD_END,
};

struct options {
        struct gateway_options gateway;
        const char *resolvers[RESOLVE_SERVERS_MAX];
        bool trust_fd; /* --trust is descriptor GATEWAY_FD_TRUST */
};

/* cspace-gateway --id ID --trust FILE --resolver IP[:PORT]... */
int options_parse(int argc, char **argv, struct options *ret, struct error *err);
/* Makes the descriptors close-on-exec and closes all others. */
int options_take_fds(struct error *err);
