/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * What the agent does as PID 1. From an initramfs that holds the agent and kernel modules alone:
 * load the modules, wait for the disk, mount it, make it the root, free the initramfs. On the disk's
 * root filesystem: the mounts, sysctls and the network that Debian's init would set up.
 */

#include <stdbool.h>

#include "base/error.h"

#define BOOT_CGROUP_DIR "/sys/fs/cgroup"

/* Whether this process is a machine's own init: PID 1 of an initramfs. PID 1 of a container or of a
 * pid namespace is not, and must never configure the network or the mounts that it shares. */
bool boot_is_machine(void);
/* Mounts /dev, /proc, /sys and opens the console, so that a message has somewhere to go. */
void boot_early(void);
/* Switches to the root filesystem, then sets the machine up. An error is
 * fatal; what does not matter that much is logged. */
int boot_machine(struct error *err);
/* Does not return. The caller has ended the processes and synced. */
void boot_power_off(void) __attribute__((noreturn));
