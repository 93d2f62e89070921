/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* The sockets of the DNS server. */

#include "gateway.h"

#define DNS_IO_BATCH 32        /* datagrams before the loop gets its turn */
#define DNS_IO_CLIENTS_MAX 32  /* TCP connections at once */
#define DNS_IO_IDLE_MS 15000   /* of a TCP connection */

struct dns_io;
/* Takes both descriptors. */
int dns_io_new(struct gateway *gw, int udp, int tcp, struct dns_io **ret, struct error *err);
void dns_io_free(struct dns_io *d); /* NULL is fine */
