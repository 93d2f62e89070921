/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * What a warden is: one VM, the link into it, and the two sockets through which others use it.
 * warden.c is the state machine between them; ctl.c and data.c are its outside.
 */

#include <stdbool.h>
#include <uv.h>

#include "base/error.h"
#include "link/link.h"
#include "vmm/vmm.h"

enum warden_mode { WARDEN_BOOT, WARDEN_RESTORE, WARDEN_ADOPT };

enum warden_state {
        WARDEN_STARTING, /* the VM or its agent is not up yet */
        WARDEN_RUNNING,  /* the agent has answered once */
        WARDEN_PAUSED,   /* the VM stands still: until resumed, and after a save */
        WARDEN_FAILED,   /* final: the VM ended and nobody wanted it to */
        WARDEN_EXITED,   /* final: the guest powered off, or its snapshot was taken */
};
const char *warden_state_name(enum warden_state s);

struct warden_config {
        const char *id;
        enum warden_mode mode;
        struct vmm_config vmm;
        int ctl, data; /* listening */
};

struct warden;

/* Takes the descriptors in cfg. A VM that cannot be started is a state, not an error of this. */
int warden_new(uv_loop_t *loop, struct warden_config *cfg, struct warden **ret, struct error *err);
/* Leaves the VM running. */
void warden_free(struct warden *w);

struct warden_times {
        uint64_t spawn_us, load_us, link_us, identify_us;
};

typedef void (*warden_done)(void *arg, int err, const struct error *e);
typedef void (*warden_ready_cb)(void *arg, int err, const struct error *e, const struct warden_times *t);

/* Each callback comes once, maybe before the call returns. */
void warden_identify(struct warden *w, const void *json, size_t n, warden_ready_cb cb, void *arg);
void warden_snapshot(struct warden *w, warden_done cb, void *arg);
void warden_stop(struct warden *w, unsigned timeout_ms, warden_done cb, void *arg);
/* hold.c. Of a VM in the wanted state already: done. save leaves it paused; takes fd. */
void warden_pause(struct warden *w, warden_done cb, void *arg);
/* How long the VMM took for the last pause or resume. */
uint64_t warden_held_us(const struct warden *w);
/* Whether before the last pause the guest wrote to its disk what it held back. */
bool warden_synced(const struct warden *w);
void warden_resume(struct warden *w, warden_done cb, void *arg);
void warden_save(struct warden *w, int fd, warden_done cb, void *arg);
/* Ends all processes, forgets the identity and leaves the VM paused: what is made of it now belongs to nobody. */
void warden_park(struct warden *w, bool keep, warden_done cb, void *arg);
void warden_fsfreeze(struct warden *w, bool on, warden_done cb, void *arg);

struct warden_info {
        enum warden_state state;
        const char *reason; /* of a final state, else "" */
        bool identified, link_up;
        uint64_t bytes_in, bytes_out;
};
void warden_query(struct warden *w, struct warden_info *ret);

bool warden_ended(const struct warden *w);
/* The session into the guest, or NULL. */
struct link *warden_link(const struct warden *w);
