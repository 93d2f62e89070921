/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* The URL of a token endpoint, as cspaced checks it and cspace-token asks it: "https://host[:port][/path][?query]", no user, no
 * fragment, printable ASCII; the host a name or an IPv4 address in the one form of host.h. */

#include <stdint.h>

#include "base/error.h"
#include "policy/host.h"

#define TOKEN_URL_MAX 2048

int token_url_parse(const char *url, struct host *ret_host, uint16_t *ret_port, struct error *err);
