/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* A request body received into an unnamed temporary file of the data folder: written by the thread
 * pool, the client held back while it does. */

#include <stdint.h>

#include "api.h"

struct upload;

/* Takes r's exchange for the time of the upload and gives it back before cb: fd >= 0, positioned at
 * its start and owned by the callee, or a negative errno with e. cb is not called when the client
 * leaves. */
typedef void (*upload_cb)(struct api_req *r, int fd, const struct error *e);
int upload_start(struct api_req *r, uint64_t max, upload_cb cb, struct error *err);
