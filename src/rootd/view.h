/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * What wardens and VMs see of the host's filesystem: a mount namespace made once at start, entered
 * by setns(), with nothing writable in it:
 *
 *   /usr, /lib*, /bin    the host's, read-only, no setuid, no devices
 *   /etc/ld.so.cache     and nothing else of /etc
 *   <libexec>            where our programs are
 *   /dev                 null, zero, urandom; in the second view also kvm
 *   /proc                own processes alone (hidepid), no files about the host (subset=pid)
 *   /sandbox             empty; where a warden's copy of the namespace has its folder
 *
 * Sharing one namespace is sound because nobody in it can change it, and it costs a create nothing.
 */

#include <stdbool.h>

#include "base/error.h"
#include "rootd/options.h"

struct views {
        int plain, kvm; /* namespace descriptors; kvm is -EBADF unless asked for */
};

int views_make(struct views *v, const struct options *o, bool with_kvm, struct error *err);
void views_close(struct views *v);
