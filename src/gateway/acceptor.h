/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* The listening socket that the guest's connections are redirected to. */

#include "gateway.h"

struct acceptor;
int acceptor_new(struct gateway *gw, int fd, struct acceptor **ret, struct error *err); /* takes fd */
void acceptor_free(struct acceptor *a); /* NULL is fine */
