/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * What the process takes from itself before it reads the first byte of an image, whatever its parent has done already:
 * memory, CPU time, wall time, new files, core dumps; and every system call but reading from and asking about
 * descriptors that are open, writing to them, memory and the end. Nothing can be opened, made, executed or signalled any more.
 */

#include "base/error.h"

int confine(struct error *err);
