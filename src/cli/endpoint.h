/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* Where cspaced listens: unix:PATH or http://HOST[:PORT]. */

#include <netinet/in.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"

#define ENDPOINT_PORT 7070
#define ENDPOINT_HOST_MAX 255
#define ENDPOINT_PATH_MAX 107 /* sockaddr_un */

struct endpoint {
        bool local;                       /* Unix socket */
        char path[ENDPOINT_PATH_MAX + 1]; /* of the socket */
        char host[ENDPOINT_HOST_MAX + 1]; /* name or address, without [] */
        uint16_t port;
        char authority[ENDPOINT_HOST_MAX + 16]; /* value of the Host field */
        char text[ENDPOINT_HOST_MAX + 32];      /* for messages */
};

int endpoint_parse(const char *url, struct endpoint *ret, struct error *err);

#define ENDPOINT_ADDRESSES 8
/* Numeric addresses of host, in the order to try. Returns how many. */
int endpoint_resolve(const struct endpoint *e, char ret[ENDPOINT_ADDRESSES][INET6_ADDRSTRLEN],
                     struct error *err);
