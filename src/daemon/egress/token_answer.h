/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* What cspace-token wrote (src/token/reply.h): it has spoken with the outside, so it is read as if it had been taken over. */

#include <stddef.h>
#include <stdint.h>

#include "base/error.h"
#include "policy/binding.h"

#define TOKEN_ANSWER_MAX (16 * 1024)
#define TOKEN_SECONDS_MAX (30u * 86400)

/* secret: BINDING_SECRET_MAX + 1 bytes, wiped on failure. -EIO: there is no token, the message says why; -EPROTO. */
int token_answer_read(const void *data, size_t n, char *secret, uint64_t *ret_seconds, struct error *err);
