/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include "agent.h"

/* Requests to /cspace/v1/files...; rest is what follows "files" in the path. */
void fs_http(struct agent *a, struct http_x *x, const char *rest);
