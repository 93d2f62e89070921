/* SPDX-License-Identifier: Apache-2.0 */
#include "rootd/packets.h"

#include <stdlib.h>

#include "base/cleanup.h"
#include "base/log.h"
#include "base/str.h"
#include "rootd/server.h"

static int count(const struct placement *p, struct net_counts *ret) {
        struct error e = ERROR_INIT;
        if (p->rec.state != RECORD_LIVE || p->halted || p->vm.gone || p->vm.pidfd < 0)
                return -ESRCH;
        int r = net_counters(p->vm.pidfd, ret, &e);
        if (r < 0 && proc_alive(&p->vm))
                log_debug("sandbox %s: %s", p->rec.id, e.msg);
        return r;
}

void packets_tell(struct placement *p) {
        struct net_counts now, *was = &p->packets;
        if (count(p, &now) < 0)
                return;
        const struct net_counts more = { now.spoofed - was->spoofed, now.not_carried - was->not_carried, now.flooded - was->flooded };
        if ((more.spoofed || more.not_carried || more.flooded) && server_packets(p->rootd, p->rec.id, &more))
                *was = now;
}

void packets_adopt(struct placement *p) {
        (void) count(p, &p->packets);
}

/* ---- every while ----------------------------------------------------------------------------- */

static void on_timer(uv_timer_t *t) {
        struct rootd *r = t->data;
        unsigned n = 0;
        for (struct placement *p = r->placements; p; p = p->next) {
                if (p->packets_round == r->packets_round)
                        continue;
                if (n++ == PACKETS_AT_ONCE) {
                        (void) uv_timer_start(t, on_timer, PACKETS_TURN_MS, 0);
                        return;
                }
                p->packets_round = r->packets_round;
                packets_tell(p);
        }
        r->packets_round++;
        (void) uv_timer_start(t, on_timer, r->opt.conf.audit_packets_s * 1000, 0);
}

static void on_closed(uv_handle_t *h) {
        free(h);
}

int packets_start(struct rootd *r, struct error *err) {
        r->packets_timer = calloc(1, sizeof *r->packets_timer);
        if (!r->packets_timer)
                return error_set(err, -ENOMEM, "out of memory");
        (void) uv_timer_init(r->loop, r->packets_timer);
        r->packets_timer->data = r;
        r->packets_round = 1;
        (void) uv_timer_start(r->packets_timer, on_timer, r->opt.conf.audit_packets_s * 1000, 0);
        return 0;
}

void packets_stop(struct rootd *r) {
        uv_timer_t *t = STEAL(r->packets_timer);
        if (t)
                uv_close((uv_handle_t *) t, on_closed);
}
