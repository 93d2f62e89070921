/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * How long an operation goes on asking a program that has ended or is not there yet (cspace-rootd while it is upgraded, a
 * warden while it is started anew). An operation may take minutes before its first loss, so each is waited out by itself.
 */

#include <stdbool.h>
#include <stdint.h>

#define PATIENCE_MS 20000   /* for it to be there (again); then the operation fails with API_UNAVAILABLE */
#define PATIENCE_ENDS_MAX 3 /* so often it may end during one operation */

struct patience { /* zeroes to begin with */
        uint64_t until_ms; /* monotonic; 0 it was there when it was last asked */
        unsigned ends;
};

/* Whether to ask again after a while. err is what became of the request: -ECONNRESET, it has ended during it; -ENOTCONN, it is
 * not there; with another there is nothing to wait for. */
bool patience_lasts(struct patience *p, int err, uint64_t now_ms);

void patience_answered(struct patience *p);
