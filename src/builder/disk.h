/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * Step "disk": out/disk.img, an ext4 image of the root filesystem, sparse and of b->disk_bytes.
 */

#include "build.h"

int disk_make(struct build *b, struct error *err);

/*
 * Sets the times of every inode in an ext4 image: data and attribute changes to the modification time, and no
 * time later than epoch. mke2fs copies the change times of the files it reads, which are those of the build.
 */
int disk_set_times(const char *image, uint64_t epoch, struct error *err);
