/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/stat.h>
#include <sys/types.h>

#include "base/error.h"

/* How much of a VM's memory is its own, and how much was written for it. */
struct image_memory {
        uint64_t private_bytes, written_bytes;
};

/*
 * Makes dir/mem from the memory of a paused VM: a reflink of the file that its process has mapped for
 * it, with the pages over it that are the process's own. `bytes` is the size of the guest's memory.
 */
int image_memory_save(pid_t pid, uint64_t bytes, int dir, struct image_memory *ret, struct error *err);

/*
 * Makes dir/mem of all the memory of a paused VM, with holes where nothing is. Much is copied, but the file has few extents: a
 * reflink, which every image of a VM that has it mapped begins with, takes as long as it has extents (12 ms for 2,000).
 */
int image_memory_save_whole(pid_t pid, uint64_t bytes, int dir, struct error *err);

/* As image_memory_save(), and which runs of pages those are, with what they were laid over. Free runs->run; `over` says that there were
 * more than `max`, which counts all of them. */
struct image_run {
        uint64_t address, offset, bytes;
};
struct image_runs {
        struct image_run *run;
        size_t n, max;
        bool over;
        struct stat base;
};
int image_memory_save_runs(pid_t pid, uint64_t bytes, int dir, struct image_runs *runs, struct image_memory *ret, struct error *err);
