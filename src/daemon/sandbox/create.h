/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* Starting the create flow, and the PLACE request (also of variants and the warm pool). */

#include "ipc/ipc.h"
#include "sandbox.h"

struct warden;

/* warden: of one from the warm pool (taken), else NULL. May end at once. */
int create_start(struct app *app, struct sandbox *s, const char *op_id, uint64_t t0_us, struct warden *warden);

/* image: "" none. snapshot: not from the image of a process, which did not start. */
int place_call(struct app *app, const char *id, const char *mode, const char *digest, uint32_t memory_mb,
               uint32_t cpus, uint64_t disk_bytes, const char *image, bool snapshot, unsigned timeout_ms, ipc_reply_cb cb,
               void *arg, struct error *err);
