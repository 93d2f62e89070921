/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * Gives blocks of the root filesystem that are in use no more back to the host (FITRIM, as fstrim(8)), some time after commands
 * have ended, and only when enough was written or deleted since the last time. All at once: a filesystem that is mounted
 * with "discard" asks the host for each deleted file, with which deleting many of them takes four times as long.
 */

#include "agent.h"

struct trim;

int trim_new(struct agent *a, struct trim **ret); /* -ENOMEM */
void trim_free(struct trim *t);                   /* before the loop ends; NULL is fine */
void trim_note(struct trim *t);                   /* what is written by now does not count */
void trim_later(void *trim);                      /* a command has ended */
