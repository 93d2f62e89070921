/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * What a token endpoint (RFC 6749, 5.1 and 5.2) or a command says, and what this program says of it on its standard
 * output:
 *
 *   token SECONDS LENGTH\n  LENGTH bytes  \n      SECONDS: good for so long
 *   error TEXT\n                                  never anything that was received but a code of RFC 6749
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/error.h"

#define REPLY_MAX (64 * 1024)         /* bytes of an answer */
#define TOKEN_LENGTH_MIN 8            /* as a static secret: BINDING_SECRET_MIN and MAX */
#define TOKEN_LENGTH_MAX 8192
#define TOKEN_SECONDS_MAX (30u * 86400) /* longer is cut */
#define TOKEN_SECONDS_DEFAULT 300     /* of one that does not say it */

struct token {
        uint64_t seconds;
        size_t n;
        char text[TOKEN_LENGTH_MAX + 1];
};

/* {"access_token","token_type":"Bearer","expires_in"?}; -EPROTO. */
int reply_read_oauth2(const void *data, size_t n, struct token *ret, struct error *err);
/* {"token","expires_in"?} */
int reply_read_command(const void *data, size_t n, struct token *ret, struct error *err);
/* The "error" of a refusal, if it is one that is known: a constant; NULL: none. */
const char *reply_error_code(const void *data, size_t n);

int reply_write(const struct token *t, struct buf *out);
