/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * A sandbox's network namespace: one tap, no address, no route, no IPv6, nothing forwarded, and
 * rules that drop and count whatever comes. A packet of the guest ends here until a gateway
 * listens in the namespace.
 */

#include "base/error.h"

#define NET_TAP "tap0"
#define NET_HOST_MAC "\x02\x63\x73\x00\x00\x01" /* fixed: it stands in the guests' snapshots */

/* Prepares the namespace of the calling process, fresh and empty; gives the tap's descriptor. */
int net_prepare(int *ret_tap, struct error *err);
