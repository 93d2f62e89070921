/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * What a warden takes from itself once it has started. rootd has already given it a uid of its own,
 * no capability and no network; this removes every system call it does not need, so that somebody
 * who takes it over from within the VM's stream finds nothing to go on with: no file can be opened,
 * nothing executed, no socket made but a Unix one.
 */

#include <stdbool.h>

#include "base/error.h"

/* threads: a VM that will be snapshotted needs libuv's workers for fsync. */
int confine(bool threads, struct error *err);

/* What the stub takes from the VM it is about to become: new processes, other users, namespaces, mounts, tracing,
 * sockets but Unix ones. QEMU's own filter (-sandbox), where its binary has one, comes on top; the KVM-only binary
 * of Debian's package has none. The one thing left open that QEMU does not need is the exec that is still to come. */
int confine_vm(struct error *err);
