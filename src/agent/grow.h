/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* The root filesystem of a clone whose disk is larger than the one in its memory image. */

#include <stdint.h>

#include "base/error.h"

/* Waits until the kernel has learnt that the root's disk has at least disk_bytes, and lets the filesystem have all of
 * it. One that has it already is left as it is. */
int grow_root(uint64_t disk_bytes, struct error *err);
