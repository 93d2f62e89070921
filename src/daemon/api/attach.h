/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* Attached clients, for those who want to know whether a sandbox is used. */

#include <stdbool.h>

struct app;
bool attach_busy(struct app *app, const char *sandbox_id);
