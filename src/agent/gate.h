/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* Requests that came before the sandbox has its identity: they wait for POST /control/init, at most
 * GATE_WAITING_MAX of them and for GATE_WAIT_MS. */

#include "agent.h"

#define GATE_WAITING_MAX 256
#define GATE_WAIT_MS 60000

struct gate;
struct gate *gate_new(struct agent *a); /* NULL: no memory */
void gate_free(struct gate *g);
/* Calls go(a, x) later, or answers 503. */
void gate_wait(struct gate *g, struct http_x *x, void (*go)(struct agent *a, struct http_x *x));
void gate_open(struct gate *g); /* lets all go on */
