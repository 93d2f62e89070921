/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* Unix socket addresses of paths of any length. */

#include <sys/socket.h>
#include <sys/un.h>

#include "base/error.h"

struct unix_addr {
        struct sockaddr_un sa;
        socklen_t len;
        int dirfd; /* held while sa is used; -EBADF when not needed */
};

int unix_addr_init(const char *path, struct unix_addr *ret, struct error *err);
void unix_addr_done(struct unix_addr *a);
