/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * The configuration from cspaced, one JSON object:
 *
 *   "policy"    object   the policy (policy.h); missing: everything is denied
 *   "presets"   object   {"@packages": ["host", ...]}
 *   "own"       array    ranges of this host ("10.0.0.0/8", "203.0.113.7") that are never dialled
 *   "ca_seed"   string   base64 of CA_SEED_BYTES; needed the first time, and ignored from then on
 *   "names"     object   the names table of an earlier gateway of this sandbox (dns_names.h); only the first time
 *
 * Unknown members are refused.
 */

#include <stddef.h>

#include "gateway.h"

#define CONFIG_PRESETS_MAX 32
#define CONFIG_OWN_MAX 256
#define CONFIG_PATTERN_MAX 512

/* All or nothing. Open connections are judged again before it returns. */
int config_apply(struct gateway *gw, const void *json, size_t n, struct error *err);
