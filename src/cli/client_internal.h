/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* Shared by client.c (JSON calls), xfer.c (streamed bodies) and upgrade.c. */

#include "client.h"
#include "conf/conf.h"
#include "dialer.h"
#include "io/http_client.h"

#define CLIENT_HEADERS_MAX 8

struct client {
        uv_loop_t loop;
        struct endpoint to;
        char listen[CONF_STR_MAX + 1]; /* where this host's API listens for TCP; "": not known */
        char *key; /* API key or NULL */
        bool interrupted;
        const char *idempotency; /* of the POST under way */
        bool alive;              /* a call was answered: a lost connection is worth another try */
};

/* Fills h with Host and authorisation; returns how many. */
size_t client_headers(const struct client *c, struct http_header h[CLIENT_HEADERS_MAX]);
/* A failed dial told as an api_error, with what to do. */
void client_dial_error(const struct client *c, const struct error *err, struct api_error *e);
/* The error that the body of a status other than 2xx holds. */
void client_body_error(int status, const void *body, size_t n, struct api_error *e);
