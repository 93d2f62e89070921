/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include "agent.h"

/* Requests to /cspace/v1/processes...; rest is what follows "processes" in the path. */
void session_http(struct agent *a, struct http_x *x, const char *rest);
