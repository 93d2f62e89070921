/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include "base/json.h"

/* The guest's use of memory, CPU and disk, as E2B's GET /metrics has it. cpu_used_pct is over the
 * time since the last call. */
json_t *metrics_read(void);
