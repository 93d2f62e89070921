/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * The link to the agent in the guest: connects to the VM's port, waits for the agent's hello, and
 * starts over when the session is lost while the VM lives.
 */

#include "link/link.h"
#include "vmm/vmm.h"

struct guest;

struct guest_handler {
        void (*on_up)(void *arg);                    /* a session is ready */
        void (*on_down)(void *arg, const char *why); /* lost; it is being tried again */
};

int guest_new(uv_loop_t *loop, struct vmm *vmm, const struct guest_handler *h, void *arg, struct guest **ret,
              struct error *err);
/* hello_ms: an agent that says nothing for so long gets the port closed and opened again; 0 for a
 * guest that is only booting. */
void guest_connect(struct guest *g, unsigned hello_ms);
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
