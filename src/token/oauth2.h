/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include "options.h"
#include "reply.h"

#define FD_REQUEST 3 /* {"token_url","client_id","secret","scope"?,"audience"?,"auth"?} */
#define FD_TRUST 4   /* PEM certificates that the endpoint is verified by */

/* The client credentials grant (RFC 6749, 4.4). */
int oauth2_run(const struct options *o, struct token *ret, struct error *err);
