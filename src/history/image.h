/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * A raw disk image as bytes. Nothing is opened by a path here, and nothing is ever written.
 *
 * Over the bytes of the source lies an overlay: blocks that the filesystem's journal holds in a newer version.
 * An entry says where in the image that version is, so that the overlay costs no copy of the data.
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <ext2fs/ext2fs.h>

#include "base/error.h"

struct image_source {
        /* Fills all of buf from offset off, or returns a negative errno. */
        int (*read)(void *ctx, uint64_t off, void *buf, size_t n);
        void *ctx;
        uint64_t size;
        int fd;       /* -EBADF where the source is no file */
        uint64_t dev; /* of fd: the filesystem of the host that it lies on */
};

struct overlay_entry {
        uint64_t block; /* of the filesystem */
        uint64_t at;    /* byte in the image */
        bool escaped;   /* its first four bytes were the journal's magic number, and are zero there */
};

struct image {
        struct image_source source;
        uint32_t block_size; /* of the filesystem, once known: the overlay's unit */
        struct overlay_entry *overlay;
        size_t overlay_n;
        uint64_t read_left; /* of HISTORY_READ_BYTES_MAX */
};

#define IMAGE_INIT ((struct image){ .source.fd = -EBADF })

/* The descriptor stays the caller's. A regular file, not larger than HISTORY_IMAGE_BYTES_MAX. */
int image_open_fd(struct image *img, int fd, struct error *err);
void image_open_source(struct image *img, const struct image_source *source);
void image_done(struct image *img);

/* 0, -EIO, -ERANGE (beyond the end) or -EDQUOT (too much was read). */
int image_read(struct image *img, uint64_t off, void *buf, size_t n);
/* As image_read(), without the overlay. */
int image_read_raw(struct image *img, uint64_t off, void *buf, size_t n);
/* The bytes themselves, without a copy and without the overlay, until image_view_done(). NULL where the source has no
 * such thing: then they are read. off and n are multiples of the host's pages. */
const uint8_t *image_view(struct image *img, uint64_t off, size_t n);
void image_view_done(const uint8_t *view, size_t n);
/* Says that this will be read soon, so that a disk has all of it to do at once. */
void image_expect(const struct image *img, uint64_t off, uint64_t n);
/* The overlay's entry for a block, or NULL. */
const struct overlay_entry *image_overlay_find(const struct image *img, uint64_t block);

/* ext2fs_open() over an image: read-only. */
errcode_t image_ext2fs_open(struct image *img, int flags, ext2_filsys *ret);
