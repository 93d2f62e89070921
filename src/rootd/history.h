/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * Questions about disk images: cspace-history, one process a question, which ends with rootd, with its reader, when
 * its time is up or when it is done, and leaves nothing. The disk of a running sandbox is read from a reflink that
 * never has a name.
 */

#include "rootd/rootd.h"

#define HISTORY_RUNNING_MAX HISTORY_UIDS /* on this host at one time; one a sandbox */
#define HISTORY_TIME_S 600
