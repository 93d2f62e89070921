/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* Connects to an endpoint: the socket, or the addresses of the host one after the other. */

#include "endpoint.h"
#include "io/stream.h"

struct dialer;
/* Called once, from the loop: s is owned by the callee; NULL: err says why. */
typedef void (*dialer_cb)(void *arg, const struct error *err, struct stream *s);

struct dialer *dialer_start(uv_loop_t *loop, const struct endpoint *to, dialer_cb cb, void *arg);
void dialer_cancel(struct dialer *d); /* before cb; NULL is fine */
