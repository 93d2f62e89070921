/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include "options.h"
#include "policy/address.h"
#include "policy/host.h"

#define ADDRESSES_MAX 16

/* An endpoint's addresses, all of which may be dialled: the public internet's, or such as the operator opened; never this
 * host's. By c-ares with the given resolvers alone, without search lists or files, as gateways do. */
int resolve(const struct options *o, const struct address_set *set, const struct host *h, struct in_addr *ret, size_t *ret_n,
            struct error *err);
int address_may(const struct address_set *set, const struct address *a, struct error *err);
/* Ranges opened, and this host's own addresses. */
int address_set_make(const struct options *o, struct address_set **ret, struct error *err);
