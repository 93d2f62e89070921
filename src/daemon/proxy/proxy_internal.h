/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* Shared by proxy.c and proxy_call.c. */

#include "guest.h"
#include "proxy.h"

struct proxy {
        struct guests *guests;
};
