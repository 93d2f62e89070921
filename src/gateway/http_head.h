/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* Heads on their way through: what goes on unchanged, what belongs to one connection only. */

#include <stdbool.h>

#include "base/buf.h"
#include "policy/host.h"
#include "wire/http1.h"

/* Whether the caller wants a field left out; NULL: none. */
typedef bool (*head_skip)(void *arg, const struct http1_field *f);

/* The path and query of any form of target, as it was sent; "/" for none. */
const char *head_origin_form(const char *target);

/* All fields but those of the connection (RFC 9110, 7.6.1), of the framing, and those that `skip` names. */
int head_forward_fields(struct buf *out, const struct http1_head *h, head_skip skip, void *arg);

/* Content-Length or Transfer-Encoding as h has them, written anew: no field of the guest's decides them. */
int head_write_framing(struct buf *out, const struct http1_head *h);

int head_write_host(struct buf *out, const struct host *host, uint16_t port, uint16_t default_port);
