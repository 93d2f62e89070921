/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include "base/error.h"

/* The same in every sandbox: each has a network namespace of its own on the host. */
#define NET_INTERFACE "eth0"
#define NET_ADDRESS "10.200.0.2"
#define NET_NETMASK "255.255.255.252"
#define NET_GATEWAY "10.200.0.1"

/* Brings up lo, and eth0 with address and default route where there is one. */
int net_setup(struct error *err);
