/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * The folders, opened once at start and held: all later path work goes beneath these descriptors
 * by fd_open_beneath(), so nothing that happens above them matters any more.
 *
 * The data and run folders belong to root with the sticky bit and are writable for cspaced's
 * group: cspaced keeps its database and its own socket there, and cannot rename or replace what
 * root made beside them. What rootd believes later (instance, cgroups) it keeps in <run>/rootd, where
 * nobody else can plant a file.
 */

#include "base/error.h"
#include "rootd/options.h"

struct dirs {
        int run, run_own, run_pool, run_sandboxes;
        int data, templates, sandboxes, checkpoints, builds, cache;
        int lock; /* held while this program lives: one per run folder */
};

int dirs_open(struct dirs *d, const struct options *o, struct error *err);
void dirs_close(struct dirs *d);
