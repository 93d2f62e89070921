/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * A sandbox's network namespace: one tap, no route but to the guest, no IPv6, nothing forwarded. All TCP
 * and DNS that the guest sends, wherever to, ends at sockets of the sandbox's gateway (the original
 * destination is SO_ORIGINAL_DST); everything else, and whatever has another source than the guest's,
 * is dropped and counted. Without these sockets connections are refused at once.
 */

#include "base/error.h"

#define NET_TAP "tap0"
#define NET_HOST_MAC "\x02\x63\x73\x00\x00\x01" /* fixed: it stands in the guests' snapshots */

#define NET_GUEST_MAC "02:63:73:00:00:02"
#define NET_GUEST_ADDRESS "10.200.0.2"
#define NET_HOST_ADDRESS "10.200.0.1"
#define NET_DNS_PORT 5300
#define NET_TCP_PORT 5301
#define NET_FLOWS_MAX 4096       /* connections and queries of a guest that the kernel keeps books of */
#define NET_NEW_FLOWS_SECOND 1000

/* Prepares the namespace of the calling process, fresh and empty; gives the tap's descriptor. */
int net_prepare(int *ret_tap, struct error *err);

/* The gateway's sockets, in the namespace of the calling process: DNS over UDP, DNS over TCP, TCP. */
#define NET_SOCKETS 3
int net_listen(int ret[NET_SOCKETS], struct error *err);
/* The same in the namespace of another process. */
int net_listen_in(int pidfd, int ret[NET_SOCKETS], struct error *err);

/* Calls fn in the network namespace of another process, by a thread that enters it and ends there, so that nothing of ours ever
 * has to find back. Gives what fn gives, or a negative errno. */
int net_within(int pidfd, int (*fn)(void *arg), void *arg);
