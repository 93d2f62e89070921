/* SPDX-License-Identifier: Apache-2.0 */

/*
 * A host whose disk is full. QEMU stops a VM whose write found no room, and keeps the write: nothing is lost, and the guest
 * need not know. But nobody else lets it go on. So it is tried once a second, which begins with that write and stops the
 * VM again if there is still no room; whoever asks is told meanwhile why nothing moves.
 *
 *   on_no_room: stands -> a second later: resume -> on_no_room again: stands
 *                                                -> a second of peace: told that it goes on
 *
 * One that is paused is left alone: who lets it run again has that write tried, and then it is the same. One that is on its way there
 * is not tried until it is paused, or is not to be any more.
 *
 * QEMU cannot say of a VM that stands so whether it was paused as well. A warden that adopts one does not let it run of its own accord,
 * but takes it for paused: cspaced knows, and asks for a resume of one that is to run.
 */

#include "base/log.h"
#include "ctl.h"
#include "warden_internal.h"

#define ROOM_RETRY_MS 1000
#define ROOM_REASON "the host has no room for what the guest writes to its disk; it stands still until there is some"

static void tell(struct warden *w, bool stands) {
        w->room.told = stands;
        snprintf(w->reason, sizeof(w->reason), "%s", stands ? ROOM_REASON : "");
        log_warn("sandbox %s: %s", w->id, stands ? ROOM_REASON : "the host has room again, and the guest goes on");
        ctl_event(w->ctl, w->state, w->reason);
}

static void on_tried(void *arg, int err, const struct error *e) {
        struct warden *w = arg;
        if (err < 0 && !w->freeing && !warden_ended(w))
                log_warn("sandbox %s: the VM does not go on: %s", w->id, e->msg);
}

static void on_tick(uv_timer_t *t) {
        struct warden *w = t->data;
        if (w->state == WARDEN_PAUSED && w->hold.kind != HOLD_RESUME) {
                w->room.stands = false; /* the first write after it runs again says it anew */
        } else if (w->hold.kind == HOLD_PAUSE || w->hold.kind == HOLD_SAVE || w->hold.kind == HOLD_PARK) {
                return;
        } else if (w->room.stands) {
                w->room.stands = false;
                w->vmm->ops->resume(w->vmm, on_tried, w);
                return;
        }
        uv_timer_stop(t);
        if (w->room.told)
                tell(w, false);
        if (w->state == WARDEN_RUNNING && warden_link(w))
                (void) hold_owes(w);
}

void room_missing(struct warden *w) {
        if (warden_ended(w) || w->freeing)
                return;
        w->room.stands = true;
        if (!w->room.told)
                tell(w, true);
        uv_timer_start(&w->room.timer, on_tick, ROOM_RETRY_MS, ROOM_RETRY_MS);
}

const char *room_reason(const struct warden *w) {
        return w->room.told ? ROOM_REASON : "";
}

void room_init(struct warden *w) {
        uv_timer_init(w->loop, &w->room.timer);
        w->room.timer.data = w;
}

void room_ended(struct warden *w) {
        uv_timer_stop(&w->room.timer);
}
