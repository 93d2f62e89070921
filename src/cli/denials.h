/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include "client.h"

/* After a command that failed: a note on what its sandbox was refused on the way out, if anything, by the audit log. Without one,
 * nothing is told. */
void denials_tell(struct client *c, const char *sandbox);
