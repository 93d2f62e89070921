/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * Builds (docs/architecture.md, "Build"). The builder is root of a user namespace whose ids are a
 * range that nothing else uses. What it sees of the host is fixed before that namespace is made,
 * and so locked for it: all read-only but its folder and its cache, the data and run folders, /home
 * and /root covered, /tmp, /var/tmp, /run and /dev/shm empty.
 */

#include <stdbool.h>

#include "rootd/rootd.h"

bool build_running(const struct rootd *r, const char *id);
/* Closes what is held of builds; the builders die with us. */
void build_free_all(struct rootd *r);
