/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * data.sock: "CONNECT N\n", an answer line, then the bytes of a stream to port N of the guest
 * (docs/architecture.md, "data.sock").
 */

#include "warden.h"

#define DATA_CONNECTIONS_MAX LIMIT_LINK_STREAMS
#define DATA_LINE_MAX 32
#define DATA_LINE_MS 10000  /* to the end of the line */
#define DATA_WAIT_MS 60000  /* for a guest that is still starting, and for its answer */

struct data;
int data_new(uv_loop_t *loop, int listen_fd, struct warden *w, struct data **ret, struct error *err);
/* The link came up: connections that wait for it go on. */
void data_link_up(struct data *d);
/* The VM is gone: everything is cut. */
void data_end(struct data *d, const char *reason);
void data_free(struct data *d); /* NULL is fine */
