/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * A sandbox that must not outlive this program, whatever ends it: it has a time to live of LEASE_TTL,
 * which is renewed while the program runs. Long enough for a laptop's nap, short enough for a host
 * that must not fill up.
 */

#include "client.h"

#define LEASE_TTL "1h"
#define LEASE_TTL_S 3600
#define LEASE_RENEW_MS (10 * 60 * 1000)
#define LEASE_RETRY_MS (30 * 1000)

struct lease;
/* The sandbox has just been created with LEASE_TTL. */
struct lease *lease_new(struct client *c, const char *sandbox);
void lease_free(struct lease *l); /* NULL is fine */
