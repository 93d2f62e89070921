/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * Step "kernel": out/kernel and out/initrd from the kernel package, and into the root filesystem those of its modules that
 * programs in a sandbox ask for (containers, tunnels, filesystems in files).
 */

#include "build.h"

int kernel_make(struct build *b, struct error *err);
