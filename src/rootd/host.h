/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * What this host can do, found once at start and told by HELLO.
 *
 * KVM is taken only when two things hold. The CPU flags vmx or svm say that it is the processor's
 * own virtualization: some hosts offer a para-virtual nested /dev/kvm without them, which runs
 * small code and cannot boot a stock kernel. And a machine of one page, run here to its HLT, says
 * that it works: modules, permissions and firmware have their say only then.
 */

#include <stdbool.h>

#include "base/error.h"
#include "rootd/options.h"

struct host {
        char engine[16]; /* "qemu-kvm", "qemu-tcg", "fake" */
        char engine_reason[256];
        char data_fs[16];
        bool reflink;
};

/* True if a flags line of /proc/cpuinfo has vmx or svm. */
bool host_cpuinfo_has_virt(const char *cpuinfo);
/* Runs the one-page machine in a child; 0, or why not in err. */
int kvm_try(struct error *err);

void host_probe_engine(struct host *h, const char *wanted /* conf: auto, kvm, tcg, fake */);
int host_probe_data(struct host *h, int sandboxes_fd, struct error *err);
