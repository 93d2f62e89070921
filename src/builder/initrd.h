/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* The initramfs, and the kernel modules for the root filesystem; both from work/kernel/lib/modules. */

#include "build.h"

int initrd_make(struct build *b, struct error *err);
int initrd_add_modules(struct build *b, struct error *err);
