/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* ctl.sock: IDENTIFY, QUERY, SNAPSHOT, STOP from cspaced, on any number of connections one after
 * the other or at a time (cspaced restarts), and WARDEN_EVENT to all of them. Who may connect is
 * decided by the socket's mode. */

#include "warden.h"

#define CTL_CONNECTIONS_MAX 8

struct ctl;
int ctl_new(uv_loop_t *loop, int listen_fd, struct warden *w, struct ctl **ret, struct error *err);
void ctl_event(struct ctl *c, enum warden_state state, const char *reason);
void ctl_free(struct ctl *c); /* NULL is fine */
