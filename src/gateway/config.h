/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * The configuration from cspaced, one JSON object:
 *
 *   "policy"    object   the policy (policy.h); missing: everything is denied
 *   "presets"   object   {"@packages": ["host", ...]}
 *   "own"       array    ranges of this host ("10.0.0.0/8", "203.0.113.7") that are never dialled
 *   "open"      array    private or reserved ranges that count as public, by the operator's word
 *   "ca_seed"   string   base64 of CA_SEED_BYTES; needed the first time, and ignored from then on
 *   "bindings"  array    of credentials (binding.h); missing: none
 *   "secrets"   object   {CREDENTIAL: {"secret": "...", "expires_ms": UNIX_TIME_IN_MS or 0}}; those of before that a binding
 *                        still names are kept, so that a configuration need not repeat them
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
