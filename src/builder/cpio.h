/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * Writes the cpio format that the kernel unpacks as initramfs ("newc", Documentation/driver-api/
 * early-userspace/buffer-format.rst): per file a header of 110 bytes in hexadecimal, the name with its NUL, the
 * data, each padded to 4 bytes. Owners and times are 0 and inode numbers count up, so that the same
 * files give the same bytes.
 */

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/buf.h"
#include "base/error.h"

struct cpio {
        struct buf *out;
        uint32_t ino;
};

int cpio_dir(struct cpio *c, const char *path, mode_t mode, struct error *err);
int cpio_file(struct cpio *c, const char *path, mode_t mode, const void *data, size_t n, struct error *err);
int cpio_char_device(struct cpio *c, const char *path, mode_t mode, unsigned major, unsigned minor,
                     struct error *err);
/* Trailer, and padding to 512 bytes. */
int cpio_end(struct cpio *c, struct error *err);
