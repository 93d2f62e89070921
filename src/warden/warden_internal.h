/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* What warden.c and hold.c share: the parts of a warden, and the steps between its states. */

#include <jansson.h>
#include <stddef.h>

#include "base/id.h"
#include "warden.h"

struct control_call;
struct guest;
struct ctl;
struct data;

enum hold_kind { HOLD_NONE, HOLD_PAUSE, HOLD_RESUME, HOLD_SAVE, HOLD_PARK, HOLD_FSFREEZE };

/* Pausing, resuming or saving; one at a time. */
struct hold {
        enum hold_kind kind;
        warden_done cb;
        void *arg;
        struct control_call *call;
        uint64_t asked_us, took_us; /* pause, resume: the VMM's part */
        int fd;         /* HOLD_SAVE */
        bool synced;    /* pause: the guest has written what it held back */
        bool waiting;   /* resume: for the link; save, park: until the guest is left */
        bool owed;      /* a resume that ended without it: clock and thaw, when the agent is there */
};

struct warden {
        uv_loop_t *loop;
        char id[ID_SIZE];
        enum warden_mode mode;
        uint64_t disk_bytes; /* as vmm_config has it */
        enum warden_state state;
        char reason[ERROR_MSG_MAX];
        bool identified, freeing;

        struct vmm *vmm;
        struct guest *guest;
        struct ctl *ctl;
        struct data *data;

        uv_timer_t timer; /* boot attempt, resuming, stop; one at a time */
        size_t boot_attempt;
        uint64_t run_us, up_us;

        struct {
                warden_ready_cb cb;
                void *arg;
                json_t *json; /* until answered: a lost session means once more */
                uint64_t sent_us;
                struct control_call *call;
        } identify;
        struct {
                warden_done cb;
                void *arg;
                struct control_call *call;
        } snapshot, stop;
        unsigned stop_ms;
        struct hold hold;
        struct {
                uv_timer_t timer;
                bool stands; /* stopped by QEMU, and not tried since */
                bool told;
        } room; /* of the host's disk */
        struct control_call *stats_call;
        struct control_call *warm_calls[2];
};

void warden_set_state(struct warden *w, enum warden_state state, const char *reason);
/* Whether something is under way that must not be disturbed; err says what. */
int warden_busy(const struct warden *w, struct error *err);

/* room.c */
void room_init(struct warden *w);
void room_missing(struct warden *w); /* the VM was stopped because the host's disk is full */
const char *room_reason(const struct warden *w); /* why it stands still now, if that is it; "" else */
void room_ended(struct warden *w);

/* hold.c */
void hold_guest_up(struct warden *w);
bool hold_owes(struct warden *w); /* the agent is there, and what an earlier resume could not ask of it is asked now */
void hold_guest_left(struct warden *w);
void hold_ended(struct warden *w, const struct error *e); /* the VM is gone */
