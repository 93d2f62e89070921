/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* Token bucket, for every rate in this layer: what the time since the last call has refilled, up to burst.
 * Time is an argument; one that goes back refills nothing. */

#include <stdbool.h>
#include <stdint.h>

struct bucket {
        uint64_t spent;   /* tokens taken and not yet refilled, in units of 1/60000 */
        uint64_t last_ms;
};

#define BUCKET_UNIT 60000u /* so that a millisecond at a rate of N a minute refills N units */
#define BUCKET_RATE_MAX 1000000000ull

static inline bool bucket_take(struct bucket *b, uint64_t per_minute, uint64_t burst, uint64_t now_ms) {
        uint64_t gone = now_ms > b->last_ms ? now_ms - b->last_ms : 0;

        if (per_minute > BUCKET_RATE_MAX)
                per_minute = BUCKET_RATE_MAX;
        if (burst > BUCKET_RATE_MAX)
                burst = BUCKET_RATE_MAX;
        if (now_ms > b->last_ms)
                b->last_ms = now_ms;
        /* A full minute refills a whole rate; longer gaps must not overflow. */
        if (per_minute && gone > b->spent / per_minute)
                b->spent = 0;
        else
                b->spent -= gone * per_minute;
        if (b->spent + BUCKET_UNIT > burst * BUCKET_UNIT)
                return false;
        b->spent += BUCKET_UNIT;
        return true;
}
