/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * The gateway of a placement: the one process that hears what the VM sends. Once the placement is live its sockets
 * are watched, and the first packet for one of them starts it; after its end, and a pause in which the VM's connections
 * are refused by its namespace, that is so again.
 */

#include "rootd/net.h"
#include "rootd/placement.h"

/* Numbers of a gateway's descriptors (docs/architecture.md, "Descriptors of a gateway"). */
enum gateway_fd {
        GATEWAY_FD_CTL = 3,
        GATEWAY_FD_DNS_UDP,
        GATEWAY_FD_DNS_TCP,
        GATEWAY_FD_TCP,
        GATEWAY_FD_TRUST,
};

/* net: its sockets in the namespace, taken; NULL: they are made. Failures are logged and tried again. */
void egress_start(struct placement *p, int net[NET_SOCKETS]);
/* The gateway has ended, or there is none and an earlier rootd had the sockets: the next packet starts one. */
void egress_revive(struct placement *p);
/* Nothing is waited for any more. A gateway that runs is left alone. */
void egress_cancel(struct placement *p);
/* In a child that lives on with a copy of all our descriptors: its copies of the sockets would keep them open, for nobody. */
void egress_close_copies(const struct placement *p);
