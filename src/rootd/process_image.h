/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <sys/stat.h>
#include <sys/types.h>

#include "base/error.h"
#include "rootd/image_memory.h"

#define PROCESS_IMAGE_NAME "process"
#define VARIANT_FROZEN "frozen" /* folder in a variant: { disk.img, mem, process } that belong together */

/*
 * Makes dir/process, the image (procimage/format.h) of a VM's process that is paused and has no connection open. `bytes` is
 * the size of the guest's memory, which is not in it, `disk` its disk, `runs` what of the memory
 * is its own (NULL: no matter). What the process was made of, if it was thawed, is shared with that.
 * `ret_written`: bytes of pages written. -EOPNOTSUPP: it has something that an image cannot hold; -EAGAIN: not now.
 */
int process_image_save(pid_t pid, uint64_t bytes, const struct stat *disk, const struct image_runs *runs, const char *host, int dir,
                       uint64_t *ret_written, struct error *err);

/* Whether the files behind the two are the base of the image behind `image`. */
bool process_image_based_on(int image, int process, int memory);
