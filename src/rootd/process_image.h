/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include <stdint.h>
#include <sys/stat.h>
#include <sys/types.h>

#include "base/error.h"

#define PROCESS_IMAGE_NAME "process"
#define VARIANT_FROZEN "frozen" /* folder in a variant: { disk.img, mem, process } that belong together */

/*
 * Makes dir/process, the image (procimage/format.h) of a VM's process that is paused and has no connection open. `bytes` is
 * the size of the guest's memory, which is not in it, `disk` its disk. What the process was made of, if it was thawed, is shared with that.
 * `ret_written`: bytes of pages written. -EOPNOTSUPP: it has something that an image cannot hold; -EAGAIN: not now.
 */
int process_image_save(pid_t pid, uint64_t bytes, const struct stat *disk, const char *host, int dir, uint64_t *ret_written, struct error *err);
