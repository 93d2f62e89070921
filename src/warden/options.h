/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* The command line and the descriptors by number (docs/architecture.md, "Descriptors of a warden"). */

#include "warden.h"

enum warden_fd {
        WARDEN_FD_CTL = 3,
        WARDEN_FD_DATA,
        WARDEN_FD_STUB,
        WARDEN_FD_TAP,
        WARDEN_FD_DISK,
        WARDEN_FD_MEM,
        WARDEN_FD_STATE,
        WARDEN_FD_KERNEL,
        WARDEN_FD_INITRD,
        WARDEN_FD_QMP,
        WARDEN_FD_PORT,
        WARDEN_FD_END,
};

int options_parse(int argc, char **argv, struct warden_config *ret, struct error *err);
/* Fills in the descriptors that are open; all others from 3 on are closed. */
int options_take_fds(struct warden_config *cfg, struct error *err);
