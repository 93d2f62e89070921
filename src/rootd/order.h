/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* What a launcher is told to become: the warden of a placement, or its VM. */

#include "rootd/launch.h"
#include "rootd/record.h"
#include "rootd/rootd.h"

/* Numbers of a warden's descriptors (docs/architecture.md, "Descriptors of a warden"). */
enum warden_fd {
        WARDEN_FD_CTL = 3,
        WARDEN_FD_DATA,
        WARDEN_FD_STUB,
        WARDEN_FD_TAP,
        WARDEN_FD_DISK,
        WARDEN_FD_MEM,
        WARDEN_FD_STATE,
        WARDEN_FD_KERNEL,
        WARDEN_FD_BASE = WARDEN_FD_KERNEL, /* --thaw */
        WARDEN_FD_INITRD,
        WARDEN_FD_DELTA = WARDEN_FD_INITRD,
        WARDEN_FD_QMP,
        WARDEN_FD_PORT,
};

/* Program, arguments and limits; the descriptors are the caller's to add. grown: the disk may be larger than
 * the guest knows yet. */
int order_warden(const struct rootd *r, const struct record *rec, bool adopt, bool grown, bool thaw,
                 struct launch_order *ret, struct error *err);
/* Its listening sockets are its launcher's to add. */
int order_gateway(const struct rootd *r, const struct record *rec, struct launch_order *ret, struct error *err);
int order_vm(const struct rootd *r, const struct record *rec, struct launch_order *ret, struct error *err);
/* -1 leaves it out. */
void order_fd(struct launch_order *o, int fds[LAUNCH_FDS_MAX], int number, int fd);
