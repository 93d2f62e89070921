/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * The guest end of the stream to the host: finds the virtio port, waits until the host end is
 * open, runs one session of lib/link on it, and begins again when the session is over. Commands and
 * their sessions are no part of it and survive.
 */

#include "agent.h"

struct guest;

/* path: a port's device node, or a Unix socket to connect to (tests); NULL: the port whose name is
 * "cspace". -ENOENT: there is no such port. */
int guest_new(struct agent *a, const char *path, struct guest **ret, struct error *err);
void guest_free(struct guest *g);
