/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include <uv.h>

struct watchers;
struct watchers *watchers_new(uv_loop_t *loop); /* NULL: no memory */
void watchers_free(struct watchers *all);
void watchers_forget(struct watchers *all);
