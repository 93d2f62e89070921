/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * The link to the agent in the guest: connects to the VM's port, waits for the agent's hello, and
 * starts over when the session is lost while the VM lives.
 *
 * A VM that is to be stopped and saved must not be in the middle of a session: guest_leave() ends that in agreement with the
 * agent (link.h). One that cannot do so (of a template from before), or does not within GUEST_PART_MS, has its port closed,
 * and the time to see that: its end closes, the VMM says so (guest_port_closed()), or GUEST_SETTLE_MS go by. QEMU tells of a
 * port's changes at most once a second, so that those often do.
 */

#include "link/link.h"
#include "vmm/vmm.h"

#define GUEST_PART_MS 1000  /* from asking the agent to let go to the VMM's closing */
#define GUEST_SETTLE_MS 300 /* for a guest to see that its port is closed */

struct guest;

struct guest_handler {
        void (*on_up)(void *arg);                    /* a session is ready */
        void (*on_down)(void *arg, const char *why); /* lost; it is being tried again */
        /* guest_leave() is done. agreed: the agent has let go, and nothing of the connection is left in the VMM. */
        void (*on_left)(void *arg, bool agreed);
};

int guest_new(uv_loop_t *loop, struct vmm *vmm, const struct guest_handler *h, void *arg, struct guest **ret,
              struct error *err);
/* hello_ms: an agent that says nothing for so long gets the port closed and opened again; 0 for a
 * guest that is only booting. */
void guest_connect(struct guest *g, unsigned hello_ms);
/* Ends the session, if there is one, closes the port and leaves it closed. ask: the agent may be asked; it is not known to be
 * deaf. on_left comes later, unless guest_connect() or guest_disconnect() does before. */
void guest_leave(struct guest *g, bool ask);
/* The VMM says that the guest has closed its end; may come late or for an earlier time. */
void guest_port_closed(struct guest *g);
/* Closes the port and leaves it closed. */
void guest_disconnect(struct guest *g);
void guest_free(struct guest *g); /* NULL is fine */

bool guest_up(const struct guest *g);
/* NULL while there is no session. */
struct link *guest_link(const struct guest *g);
/* Over all sessions. */
void guest_counters(const struct guest *g, uint64_t *ret_in, uint64_t *ret_out);
/* False once the agent has left a PING unanswered for GUEST_SILENT_MS; each call sends one. */
#define GUEST_SILENT_MS 8000
bool guest_answers(struct guest *g);
