/* SPDX-License-Identifier: Apache-2.0 */

/*
 * What a sandbox sent that never came to its gateway: cspace-rootd tells how many packets its namespace dropped since it
 * told last. A record for each reason says so, with one of them as the record and the others as its repetitions.
 */
#include "egress.h"

#include <string.h>

#include "app.h"
#include "audit/audit_store.h"
#include "base/buf.h"
#include "base/clock.h"
#include "base/log.h"
#include "policy/audit.h"
#include "sandbox/sandbox_flow.h"

static int add(struct buf *lines, const char *id, enum policy_reason reason, uint64_t n) {
        struct audit a;
        if (n == 0)
                return 0;
        audit_init(&a, AUDIT_PACKETS, clock_real_ms(), id);
        audit_deny(&a, reason);
        a.repeated = n - 1;
        return audit_json(&a, lines);
}

void egress_packets(struct app *app, const struct ipc_packets *m) {
        _cleanup_buf_ struct buf lines = BUF_INIT(3 * AUDIT_LINE_MAX);
        const struct sandbox *s = sandbox_find_all(app, m->id);
        if (!s || s->state == SANDBOX_POOLED) /* one that nobody has yet only booted */
                return;
        int r = add(&lines, m->id, REASON_PACKET_SPOOFED, m->spoofed);
        if (r == 0)
                r = add(&lines, m->id, REASON_PACKET_NOT_CARRIED, m->not_carried);
        if (r == 0)
                r = add(&lines, m->id, REASON_PACKET_FLOOD, m->flooded);
        if (r == 0 && lines.len > 0)
                r = audit_store_append(app, m->id, buf_data(&lines), lines.len, 0, NULL, NULL);
        if (r < 0)
                log_warn("sandbox %s: that packets were dropped is not recorded: %s", m->id, strerror(-r));
}
