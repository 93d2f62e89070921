/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include "agent.h"

/* E2B's GET and POST /files, and POST /files/compose. */
void files_http(struct agent *a, struct http_x *x);
void files_compose_http(struct agent *a, struct http_x *x);
