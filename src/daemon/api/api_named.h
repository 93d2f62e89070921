/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* What a request names: borrowed, or NULL, and then the request is answered. */

#include "api.h"

struct sandbox;
struct checkpoint;

struct sandbox *api_sandbox(struct api_req *r); /* the first path parameter, id or name, in whatever state */
struct checkpoint *api_checkpoint(struct api_req *r, const struct sandbox *s, const char *id_or_name);
