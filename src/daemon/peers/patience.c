/* SPDX-License-Identifier: Apache-2.0 */
#include "peers/patience.h"

#include <errno.h>

bool patience_lasts(struct patience *p, int err, uint64_t now_ms) {
        if (err == -ECONNRESET) {
                p->until_ms = now_ms + PATIENCE_MS;
                return ++p->ends <= PATIENCE_ENDS_MAX;
        }
        if (err != -ENOTCONN)
                return false;
        if (p->until_ms == 0)
                p->until_ms = now_ms + PATIENCE_MS;
        return now_ms < p->until_ms;
}

void patience_answered(struct patience *p) {
        p->until_ms = 0;
}
