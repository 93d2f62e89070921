/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include "agent.h"

/* The handler of the control service (authority "control" of the guest stream); arg is the agent. */
void control_on_request(void *arg, struct http_x *x);
