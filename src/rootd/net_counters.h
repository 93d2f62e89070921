/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* What the rules of a sandbox's namespace (net.h) have dropped. */

#include <stdint.h>

#include "base/error.h"

struct net_counts {
        uint64_t spoofed;     /* packets that said to be another's */
        uint64_t not_carried; /* neither TCP nor DNS, or for a place that nobody listens at */
        uint64_t flooded;     /* beyond the limits of connections */
};

/* Since the namespace was made. pidfd: of a process in it. Takes no longer than a moment, and stays out of the namespace. */
int net_counters(int pidfd, struct net_counts *ret, struct error *err);
