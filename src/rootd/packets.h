/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * Tells cspaced, for its audit log, what the namespaces of live placements dropped: every [audit] packets, and once more
 * before a placement's processes are ended. What nobody was there to be told waits for the next time; what came before
 * this program was started again is not told twice, and so perhaps not at all.
 */

#include "rootd/placement.h"

#define PACKETS_AT_ONCE 64 /* placements in one turn of the loop */
#define PACKETS_TURN_MS 10

int packets_start(struct rootd *r, struct error *err);
void packets_stop(struct rootd *r);
void packets_tell(struct placement *p);
void packets_adopt(struct placement *p); /* of an earlier cspace-rootd: from here on */
