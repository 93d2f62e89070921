/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * Making templates and variants visible: files change owner, are made read-only, checked, synced, and
 * appear under their name by one rename. Until then they live under a name that starts with
 * COMMIT_HIDDEN, which no digest or variant does, and which each start sweeps away.
 */

#include "base/error.h"
#include "rootd/rootd.h"

#define COMMIT_HIDDEN ".new-"

/* What an interrupted commit or removal left. */
void commit_sweep(struct rootd *r);
