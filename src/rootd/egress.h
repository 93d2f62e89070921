/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * The gateway of a placement: the one process that hears what the VM sends. It is started once the
 * placement is live, off the way of the create, and again whenever it ends; while there is none, the
 * VM's connections are refused by its namespace.
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

/* ctl: the listening gw.sock, taken; -EBADF makes one anew. net: its sockets in the namespace, taken; NULL: its
 * launcher makes them. Failures are logged and tried again. */
void egress_start(struct placement *p, int ctl, int *net);
/* The gateway has ended: another one, unless that happened too often. */
void egress_revive(struct placement *p);
void egress_cancel(struct placement *p);
